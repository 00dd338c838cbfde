package worker_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/precheck"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// userOf is a client of a user with the least rights of a role, without some of them.
func userOf(t *testing.T, s *redistest.Server, admin *redis.Client, name string, role precheck.Role, without ...string) *redis.Client {
	t.Helper()
	args := []any{"acl", "setuser", name, "reset", "on", ">correct-horse"}
	for _, rule := range precheck.ACL(role, "hw") {
		if !slices.Contains(without, rule) {
			args = append(args, rule)
		}
	}
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	o := s.ClientOptions()
	o.Username, o.Password = name, "correct-horse"
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// A pool and a client run with the rights that docs/production.md lists, and no others:
// the server notes each command that it refused. The same goes for the two shorter lists that
// stand there: without functions, and with functions but without SCRIPT LOAD.
func TestTheLeastRightsSuffice(t *testing.T) {
	t.Parallel()
	for name, without := range map[string][]string{
		"as listed": nil, "without functions": {"+fcall", "+function|load"}, "without SCRIPT LOAD": {"+script|load"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			useLeastRights(t, without)
		})
	}
}

// useLeastRights runs a pool, a client and a limiter with the least rights, without some of them.
func useLeastRights(t *testing.T, without []string) {
	t.Helper()
	s := redistest.Start(t, redistest.Own())
	admin := s.Client(t)
	rdb := userOf(t, s, admin, "app", precheck.Worker, without...)
	to, err := queue.JSONKey("$.to")
	if err != nil {
		t.Fatal(err)
	}
	policies := []queue.Policy{{Type: "sms:send", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, 300*time.Millisecond), Key: to},
		{Name: "slots", Limit: throttle.Concurrent(2, 10*time.Second), Constant: "all"},
	}}}
	ran := make(chan string, 10)
	var failed atomic.Bool
	handler := asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		if strings.Contains(string(task.Payload()), "fail") && failed.CompareAndSwap(false, true) {
			return errors.New("once")
		}
		ran <- string(task.Payload())
		return nil
	})
	pool, err := worker.New(rdb, handler, worker.Config{
		Asynq: asynq.Config{Concurrency: 2, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 10 * time.Millisecond }}, Servers: 1, Policies: policies, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := queue.NewClient(userOf(t, s, admin, "enqueuer", precheck.Enqueuer, without...), queue.ClientConfig{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer pool.Shutdown()
	for _, payload := range []string{`{"to":"1"}`, `{"to":"1"}`, `{"to":"2","fail":1}`} {
		if _, err := client.Enqueue(t.Context(), queue.NewTask("sms:send", []byte(payload)), asynq.MaxRetry(5)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Book(t.Context(), queue.NewTask("sms:send", []byte(`{"to":"3"}`)), asynq.Unique(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		select {
		case <-ran:
		case <-time.After(30 * time.Second):
			t.Fatal("a task has not run")
		}
	}
	pool.Shutdown()
	useLimiter(t, userOf(t, s, admin, "limiter", precheck.Limiter, without...))
	wantNothingRefused(t, admin, without)
}

// wantNothingRefused checks that the server has refused no command to the users without some rights, but those that are
// tried to see whether they are allowed.
func wantNothingRefused(t *testing.T, admin *redis.Client, without []string) {
	t.Helper()
	log, err := admin.ACLLog(t.Context(), 100).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range log {
		tried := slices.Contains(without, "+"+e.Object)
		if !tried && !strings.HasPrefix(e.Object, "client|") { // go-redis names itself where it may
			t.Errorf("the server refused %s to %s: %s %q", e.Object, e.Username, e.Reason, e.Context)
		}
	}
}

// A program that feeds batches, cancels one and ticks a schedule runs with the rights that docs/production.md lists, beside a
// pool and a program that starts batches.
func TestTheLeastRightsSufficeToFeedAndTick(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Own())
	admin := s.Client(t)
	to, err := queue.JSONKey("$.to")
	if err != nil {
		t.Fatal(err)
	}
	policies := []queue.Policy{{Type: "sms", Rules: []queue.Rule{{Name: "phone", Limit: throttle.Sliding(1, 5*time.Second), Key: to}}}}
	var ticked atomic.Int64
	pool, err := worker.New(userOf(t, s, admin, "pool", precheck.Worker), asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		if task.Type() == "tick" {
			time.Sleep(1500 * time.Millisecond) // the next tick waits for it
			ticked.Add(1)
		}
		return nil
	}), worker.Config{Policies: policies, Unlimited: worker.UnlimitedAllow, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer pool.Shutdown()
	clientOf := func(name string, role precheck.Role) *queue.Client {
		t.Helper()
		client, err := queue.NewClient(userOf(t, s, admin, name, role), queue.ClientConfig{Policies: policies})
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	feeding := clientOf("feeder", precheck.Feeder)
	feeder, err := batch.NewFeeder(feeding, batch.FeederConfig{Queues: []string{"default"}, Logger: zap.NewNop(), Sources: map[string]batch.Source{
		"phones": batch.Seq(func(b batch.Spec) iter.Seq[batch.Element] {
			return func(yield func(batch.Element) bool) {
				for i := range 20 {
					phone := i
					if b.ID == "cancelled" {
						phone = 20 // one that the other batch has not: its elements wait for each other
					}
					if !yield(batch.Element{ID: strconv.Itoa(i), Payload: fmt.Appendf(nil, `{"to":"%d"}`, phone)}) {
						return
					}
				}
			}
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	ticks, err := schedule.New(feeding, schedule.Config{Logger: zap.NewNop()}, schedule.Entry{
		Name: "each", Spec: "@every 1s", Overlap: schedule.OverlapQueueOne,
		TaskFunc: func(context.Context, time.Time) (*queue.Task, error) { return queue.NewTask("tick", nil), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = feeder.Run(ctx) })
	running.Go(func() { _ = ticks.Run(ctx) })
	defer running.Wait()
	defer stop()
	control := batch.NewControl(clientOf("starter", precheck.Enqueuer))
	progress := func(id string) batch.Progress {
		p, err := control.Progress(t.Context(), "default", id)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, id := range []string{"done", "cancelled"} {
		if _, err := control.Start(t.Context(), batch.Spec{ID: id, Type: "sms", Source: "phones", Total: 20, Window: 10}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "one batch is done, and of the other some elements wait", func() bool {
		return progress("done").State == batch.Ended && progress("cancelled").Open > 2
	})
	if _, err := batch.NewControl(feeding).Cancel(t.Context(), "default", "cancelled"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what waits of it is taken out, and three ticks ran", func() bool {
		_, err := control.Progress(t.Context(), "default", "cancelled")
		return errors.Is(err, batch.ErrNotFound) && ticked.Load() >= 3
	})
	pool.Shutdown()
	stop()
	running.Wait()
	wantNothingRefused(t, admin, nil)
}

// useLimiter makes the calls that a program makes which only asks for permits.
func useLimiter(t *testing.T, rdb *redis.Client) {
	t.Helper()
	for i, limit := range []throttle.Limit{
		throttle.Sliding(2, 200*time.Millisecond), throttle.GCRA(100, time.Second, 1), throttle.Fixed(5, 200*time.Millisecond), throttle.Concurrent(1, time.Second),
	} {
		l, err := throttle.New(rdb, string(rune('a'+i)), limit, throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		p := l.Policy()
		d, err := p.TryAcquire(t.Context(), throttle.Request{Key: "k", Cost: 1})
		if err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v", d, err)
		}
		_, renewed := p.Release(t.Context(), d)
		_, booked := p.Book(t.Context(), throttle.Request{Key: "k", Cost: 1, Job: "j"})
		_, cancelled := p.Cancel(t.Context(), throttle.Request{Key: "k", Cost: 1, Job: "j"})
		_, peeked := l.Peek(t.Context(), "k", 10)
		_, refunded := p.Refund(t.Context(), d.Request)
		_, set := l.SetLimit(t.Context(), limit, throttle.SetLimitOptions{})
		_, closed := l.CloseKey(t.Context(), "k", time.Second)
		_, opened := l.OpenKey(t.Context(), "k")
		_, reset := l.Reset(t.Context(), "k")
		if err := errors.Join(renewed, booked, cancelled, peeked, refunded, set, l.UnsetLimit(t.Context()), closed, opened, reset, l.Acquire(t.Context(), "k", 1)); err != nil {
			t.Error(err)
		}
	}
}

// A pool refuses to start on a Redis that is not fit, with all faults, the address and
// what to do.
func TestStartRefusesAnUnfitRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Arg("maxmemory", "100mb"), redistest.Arg("maxmemory-policy", "allkeys-lru"))
	admin := s.Client(t)
	start := func(rdb *redis.Client, allow bool) error {
		t.Helper()
		pool, err := worker.New(rdb, asynq.NotFoundHandler(), worker.Config{Logger: zap.NewNop(), AllowEviction: allow})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Shutdown()
		return pool.Start(t.Context())
	}
	err := start(admin, false)
	if !errors.Is(err, worker.ErrRedisUnfit) || !strings.Contains(err.Error(), s.Addr()) || !strings.Contains(err.Error(), "set maxmemory-policy to noeviction") {
		t.Errorf("Start = %v, want %v with the address and the remedy", err, worker.ErrRedisUnfit)
	}
	if err := start(admin, true); err != nil {
		t.Errorf("Start with AllowEviction = %v, want nil", err)
	}
	err = start(userOf(t, s, admin, "app", precheck.Worker, "+evalsha", "+eval", "+script|load"), true)
	if !errors.Is(err, worker.ErrRedisUnfit) || !strings.Contains(err.Error(), "may not run asynq's scripts: it lacks +evalsha, +eval") {
		t.Errorf("Start with functions alone = %v, want %v: asynq could end no task", err, worker.ErrRedisUnfit)
	}
	err = start(userOf(t, s, admin, "app", precheck.Limiter), false)
	if !errors.Is(err, worker.ErrRedisUnfit) || !strings.Contains(err.Error(), "+lpush on asynq's keys") || !strings.Contains(err.Error(), "noeviction") || strings.Contains(err.Error(), "horse") {
		t.Errorf("Start = %v, want %v with both faults", err, worker.ErrRedisUnfit)
	}
}
