package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

const (
	poolConcurrency = 64
	poolConnections = 80 // more than workers, so that nobody waits for one
	poolPhones      = 1_000
	roundTrip       = 2500 * time.Microsecond
	drainWithin     = 2 * time.Minute
	taskType        = "sms"
	manyServers     = 4 // of bare asynq's in one process
)

// distance is from where Redis is seen, and what is expected there.
type distance struct {
	where, file string
	addr        string
	tasks       int
	target      float64 // times a bare asynq.Server, with a rule that never binds
}

// pool measures tasks a second with handlers that do nothing.
func pool(ctx context.Context, b *bench) error {
	proc, rdb, err := b.server()
	if err != nil {
		return err
	}
	away, err := listenFar(proc.Addr(), roundTrip)
	if err != nil {
		return err
	}
	b.onEnd(away.close)

	near, far := 20_000, 2_000
	if b.short {
		near, far = 2_000, 200
	}
	b.say("Tasks are in the queue before the clock starts; it stops with the last handler, which does nothing. Concurrency %d in all, up to %d "+
		"connections a client for everybody. "+
		"The pool has one asynq server in its process, its default. %s tasks on loopback, %s behind a proxy that makes a round trip %v longer. "+
		"Redis' processor time is that of INFO cpu. The rule is %v on one key, or 1000/1s for each of %d phones; the five are of five kinds, on keys "+
		"from the phone to the whole.",
		poolConcurrency, poolConnections, number(float64(near)), number(float64(far)), roundTrip, never, poolPhones)
	for _, at := range []distance{
		{"on loopback", "pool-near", proc.Addr(), near, 1.7},
		{"behind 2.5 ms", "pool-far", away.addr(), far, 4},
	} {
		if err := comparePools(ctx, b, rdb, at); err != nil {
			return err
		}
	}
	return nil
}

// comparePools measures all fleets in turns at one distance from Redis.
func comparePools(ctx context.Context, b *bench, rdb *redis.Client, at distance) error {
	ours := []fleet{
		headwayPool("no policy"), headwayPool("a rule that never binds", neverBinds()),
		headwayPool("a rule for each phone that never binds", easyRules()[:1]...),
		headwayPool("five rules that never bind", easyRules()...),
	}
	theirs := []fleet{bareAsynq("a bare asynq.Server", 1), bareAsynq(fmt.Sprintf("%d bare asynq servers", manyServers), manyServers)}
	all := slices.Concat(ours, theirs)
	var measures []func() (float64, error)
	spent := make([][]float64, len(all)) // of each fleet, in each round: Redis' processor time for a task
	for i, f := range all {
		measures = append(measures, func() (float64, error) {
			rate, us, err := drain(ctx, rdb, at.addr, f, at.tasks)
			spent[i] = append(spent[i], us)
			return rate, err
		})
	}
	rates, err := b.interleave(measures...)
	if err != nil {
		return err
	}
	bars := chart{file: at.file, title: "Tasks a second " + at.where, unit: "tasks/s"}
	for i, f := range ours {
		label, _, _ := strings.Cut("Headway, "+f.name, " that")
		bars.bars = append(bars.bars, bar{label: label, value: median(rates[i]), ours: true})
		for j, rival := range theirs {
			r := against(at.where+", "+f.name, "tasks/s", higher, rival.name, rates[i], rates[len(ours)+j])
			if i == 1 && j == 0 {
				r = r.holding(fmt.Sprintf("≥ %.1f", at.target), r.Ratio >= at.target)
			}
			b.row(r)
		}
		b.row(against(at.where+", "+f.name+": Redis' processor time for a task", "µs", lower, theirs[0].name, spent[i], spent[len(ours)]))
	}
	for j, f := range theirs {
		bars.bars = append(bars.bars, bar{label: f.name, value: median(rates[len(ours)+j])})
	}
	b.draw(bars)
	return nil
}

// drain measures how fast a fleet works a queue off, in tasks a second, and Redis' processor time
// for each task, in microseconds.
func drain(ctx context.Context, rdb *redis.Client, addr string, f fleet, tasks int) (rate, us float64, err error) {
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return 0, 0, err
	}
	if err := fillQueue(ctx, rdb, tasks); err != nil {
		return 0, 0, err
	}
	var handled atomic.Int64
	done := make(chan time.Time, 1)
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if handled.Add(1) == int64(tasks) {
			done <- time.Now()
		}
		return nil
	})
	before, err := cpuTime(ctx, rdb)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	stop, err := f.start(addr, handler)
	if err != nil {
		return 0, 0, err
	}
	timeout := time.NewTimer(drainWithin)
	defer timeout.Stop()
	select {
	case ended := <-done:
		after, err := cpuTime(ctx, rdb)
		return float64(tasks) / ended.Sub(began).Seconds(), (after - before) / float64(tasks), errors.Join(err, stop())
	case <-timeout.C:
		err = fmt.Errorf("%s: %d of %d tasks within %v", f.name, handled.Load(), tasks, drainWithin)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return 0, 0, errors.Join(err, stop())
}

// fillQueue enqueues tasks to all phones in turns, in no particular order.
func fillQueue(ctx context.Context, rdb *redis.Client, tasks int) error {
	const producers = 32
	client := asynq.NewClientFromRedisClient(rdb)
	var wg sync.WaitGroup
	errs := make([]error, producers)
	for p := range producers {
		wg.Go(func() {
			for i := p; i < tasks && errs[p] == nil; i += producers {
				body := fmt.Appendf(nil, `{"to":%q,"tenant":"t%d","country":"+86","provider":"p%d","all":"all"}`, phoneNumber(i%poolPhones), i%10, i%3)
				_, errs[p] = client.EnqueueContext(ctx, asynq.NewTask(taskType, body))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
