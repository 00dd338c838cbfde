package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

const (
	sourceName = "csv" // what batch.Spec.Source names
	windowMost = 100
)

// replica is what one process of a deployment runs: a schedule, a feeder and a pool,
// each like those of all other replicas. Here two of them are in one process, with
// connections of their own.
type replica struct {
	name     string
	s        *session
	rdb      *redis.Client
	feedRdb  *redis.Client // the feeder's, which can be cut
	schedule *schedule.Schedule
	feeder   *batch.Feeder
	pool     *worker.Pool
	batches  *batch.Control

	stop func()
	wg   sync.WaitGroup
	end  sync.Once
}

// newReplica is how a program uses batches: one client for what enqueues, a schedule
// whose tick starts the batch, a feeder that has its source, and a pool that sends.
func newReplica(s *session, name string) (*replica, error) {
	r := &replica{name: name, s: s, rdb: redis.NewClient(s.rdb.Options()), feedRdb: redis.NewClient(s.rdb.Options())}
	policies := []queue.Policy{policyOf(s.cfg, s.clock.Zone)}
	secret := throttle.Config{Secret: s.secret}
	client, err := queue.NewClient(r.rdb, queue.ClientConfig{Policies: policies, Throttle: secret})
	if err != nil {
		return r, err
	}
	feedClient, err := queue.NewClient(r.feedRdb, queue.ClientConfig{Policies: policies, Throttle: secret})
	if err != nil {
		return r, err
	}
	r.batches = batch.NewControl(client)
	if r.schedule, err = schedule.New(client, schedule.Config{Logger: s.log, TickFunc: r.ticked}, s.nightly()); err != nil {
		return r, err
	}
	r.feeder, err = batch.NewFeeder(feedClient, batch.FeederConfig{
		Queues: []string{s.queue}, Sources: map[string]batch.Source{sourceName: r.source}, Logger: s.log,
	})
	if err != nil {
		return r, err
	}
	mux := asynq.NewServeMux()
	mux.HandleFunc(typeStart, r.startBatch)
	mux.Handle(typeSend, &mailer{server: s.server.Addr(), log: s.log})
	r.pool, err = worker.New(r.rdb, mux, worker.Config{
		Asynq:    asynq.Config{Concurrency: 10, Queues: map[string]int{s.queue: 1}, RetryDelayFunc: s.env.retryDelay},
		Policies: policies, Throttle: secret, Logger: s.log,
	})
	return r, err
}

// start runs the replica until it is stopped or killed.
func (r *replica) start(ctx context.Context) error {
	ctx, r.stop = context.WithCancel(ctx)
	// The schedule first: an entry that nobody has asked for has no ticks yet.
	for _, run := range []func(context.Context) error{r.schedule.Run, r.feeder.Run} {
		r.wg.Go(func() {
			if err := run(ctx); err != nil {
				r.s.watch.Say("%s: %v", r.name, err)
			}
		})
	}
	return r.pool.Start(ctx)
}

// kill stops the replica in the middle of its work: its feeder loses Redis before it
// ends, and gives nothing up, as if its process had died. The pool ends in good order;
// had it died as well, the mails under way might come twice.
func (r *replica) kill() {
	_ = r.feedRdb.Close()
	r.wg.Go(r.finish)
}

// finish ends the replica gracefully, once.
func (r *replica) finish() {
	r.end.Do(func() {
		if r.stop != nil {
			r.stop()
		}
		if r.pool != nil {
			r.pool.Shutdown()
		}
	})
}

// close ends the replica, waits for that, and closes the connections.
func (r *replica) close() error {
	r.finish()
	r.wg.Wait()
	if err := r.feedRdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return err
	}
	return r.rdb.Close()
}

// nightly is the entry of the schedule, by the clock of the demonstration.
func (s *session) nightly() schedule.Entry {
	at := s.tick.In(s.clock.Zone)
	return schedule.Entry{
		Name: "nightly", Queue: s.queue, Zone: s.clock.Zone,
		Spec: fmt.Sprintf("%d %d %d * * *", at.Second(), at.Minute(), at.Hour()),
		TaskFunc: func(_ context.Context, tick time.Time) (*queue.Task, error) {
			payload, err := json.Marshal(tick.UTC()) // the demonstration's zone may be more than a day from it, which JSON can't say
			return queue.NewTask(typeStart, payload), err
		},
	}
}

// ticked tells of a tick that this replica decided. No other hears of it.
func (r *replica) ticked(t schedule.Tick) {
	r.s.watch.Say("%s: the tick of %s is %s", r.name, t.At.Format("15:04"), t.Outcome)
}

// startBatch is the handler of the tick's task. It may run twice, as any: the batch's
// id is that of its day, and starts once.
func (r *replica) startBatch(ctx context.Context, task *asynq.Task) error {
	var tick time.Time
	if err := json.Unmarshal(task.Payload(), &tick); err != nil {
		return fmt.Errorf("the payload is no tick: %w", asynq.SkipRetry)
	}
	n := len(r.s.mails)
	spec := batch.Spec{
		ID: "nightly-" + tick.In(r.s.clock.Zone).Format(time.DateOnly), Queue: r.s.queue, Type: typeSend, Source: sourceName, Total: int64(n),
		Window: min(max(n/4, 10), windowMost), // little, so that the feeder works as long as the batch does
	}
	if id := r.s.watch.Batch(); id != "" && id != spec.ID {
		return nil // the clock has come to the next day, and this program shows one
	}
	started, err := r.batches.Start(ctx, spec)
	if err != nil {
		return err
	}
	r.s.watch.Say("%s: batch %s of %s, started: %t", r.name, spec.ID, e2e.Count(n, "mail"), started)
	r.s.watch.Started(spec.ID)
	return nil
}

// source gives the mails to this replica's feeder, from where another left off. An
// element's id is its position: the mails are the same ones in the same order.
func (r *replica) source(ctx context.Context, b batch.Spec, from batch.Position) iter.Seq2[batch.Element, error] {
	r.s.watch.Feeds(r.name, from.Read, r.kill)
	all := batch.Seq(func(batch.Spec) iter.Seq[batch.Element] {
		return func(yield func(batch.Element) bool) {
			for _, m := range r.s.mails {
				payload, err := json.Marshal(m)
				if err != nil || !yield(batch.Element{Payload: payload}) { // three strings can't fail
					return
				}
			}
		}
	})
	return all(ctx, b, from)
}
