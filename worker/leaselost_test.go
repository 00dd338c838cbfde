package worker_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// Two tasks can't be deferred, because Redis is gone for longer than their
// lease: asynq gives the leases up, and its recoverer takes the tasks for failed
// ones. This process knows better, and defers them then.
func TestVirtualDeferralOutlivesItsLease(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pools  int
		outage time.Duration
	}{
		"one pool": {1, 45 * time.Second},
		"beside a pool that looks first for tasks of dead processes": {2, 45 * time.Second},
		"another pool looks for such tasks as soon as Redis is back": {2, 104300 * ms},
		"an outage of half an hour":                                  {1, 30 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { outlivesItsLease(t, tc.pools, tc.outage) })
		})
	}
}

func outlivesItsLease(t *testing.T, pools int, outage time.Duration) {
	t.Helper()
	per := outage + 55*time.Second
	clients, m := mini(t, pools)
	rdb, seen := clients[0], &runs{}
	lim, err := throttle.New(rdb, "one", throttle.Sliding(1, per), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	retries := map[string]int{"archived": 0, "retried": 3} // what asynq would do
	var booked sync.WaitGroup
	booked.Add(len(retries))
	handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "busy" {
			<-ctx.Done()
			return nil
		}
		id, _ := asynq.GetTaskID(ctx)
		if err := lim.Acquire(ctx, id, 1); err != nil {
			booked.Done()
			booked.Wait()
			m.SetError("LOADING an outage")
			return err
		}
		seen.note(ctx, task)
		return nil
	})
	cfg := worker.Config{}
	cfg.Asynq.Queues = map[string]int{"default": 1, "other": 1}
	for _, other := range clients[1:] {
		cfg.Asynq.Concurrency = 1
		started(t, other, handler, cfg)
		enqueue(t, rdb, queue.NewTask("busy", nil, asynq.Queue("other"), asynq.MaxRetry(0))) // so that it takes none of the others
		time.Sleep(10500 * ms)                                                               // of the bubble
	}
	cfg.Asynq.Concurrency = 2
	started(t, rdb, handler, cfg)
	time.Sleep(5 * time.Second)
	for id, n := range retries {
		if d, err := lim.TryAcquire(t.Context(), id, 1); err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
		enqueue(t, rdb, queue.NewTask("any", nil, asynq.TaskID(id), asynq.MaxRetry(n)))
	}
	spent := time.Now()
	time.Sleep(outage)
	m.SetError("")
	time.Sleep(per)
	for id := range retries {
		if got := seen.first(id).at.Sub(spent); seen.count(id) != 1 || got < per || got > per+time.Second {
			t.Errorf("%s: %d runs, the first %v after the last permit, want 1, %v", id, seen.count(id), got, per)
		}
	}
	q, err := asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo("default")
	if err != nil {
		t.Fatal(err)
	}
	if q.ProcessedTotal != 2 || q.FailedTotal != 0 || q.Size != 0 {
		t.Errorf("asynq counts %d processed, %d failed, %d left, want 2, 0, 0", q.ProcessedTotal, q.FailedTotal, q.Size)
	}
}

// Redis goes away while handlers run, and stays away for longer than asynq's lease on their tasks. They have succeeded, so nothing
// counts as failed, is archived, or runs again, although no task has an attempt left.
func TestVirtualFinishedTaskOutlivesItsLease(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pools   int
		outage  time.Duration
		forgets bool // Redis was restarted
	}{
		"one pool": {1, 45 * time.Second, false},
		"beside a pool that looks first for tasks of dead processes": {2, 45 * time.Second, false},
		"another pool looks for such tasks as soon as Redis is back": {2, 104300 * ms, false},
		"an outage of half an hour":                                  {1, 30 * time.Minute, false},
		"Redis has forgotten asynq's scripts":                        {1, 45 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { finishedOutlivesItsLease(t, tc.pools, tc.outage, tc.forgets) })
		})
	}
}

func finishedOutlivesItsLease(t *testing.T, pools int, outage time.Duration, forgets bool) {
	t.Helper()
	clients, m := mini(t, pools)
	rdb, seen := clients[0], &runs{}
	options := map[string][]asynq.Option{
		"plain": {asynq.MaxRetry(0)}, "unique": {asynq.MaxRetry(0), asynq.Unique(time.Hour)}, "kept": {asynq.MaxRetry(0), asynq.Retention(time.Hour)},
		"retried": {asynq.MaxRetry(3)},
	}
	var began sync.WaitGroup
	began.Add(len(options))
	handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "busy" {
			<-ctx.Done()
			return nil
		}
		if id := seen.note(ctx, task).id; seen.count(id) > 1 {
			return nil
		}
		began.Done()
		began.Wait()
		m.SetError("LOADING an outage")
		return nil
	})
	cfg := worker.Config{}
	cfg.Asynq.Queues = map[string]int{"default": 1, "other": 1}
	for _, other := range clients[1:] {
		cfg.Asynq.Concurrency = 1
		started(t, other, handler, cfg)
		enqueue(t, rdb, queue.NewTask("busy", nil, asynq.Queue("other"), asynq.MaxRetry(0))) // so that it takes none of the others
		time.Sleep(10500 * ms)                                                               // of the bubble
	}
	cfg.Asynq.Concurrency = len(options)
	started(t, rdb, handler, cfg)
	time.Sleep(5 * time.Second)
	for id, o := range options {
		enqueue(t, rdb, queue.NewTask(id, nil, append(o, asynq.TaskID(id))...))
	}
	time.Sleep(outage)
	m.SetError("")
	if forgets {
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(3 * time.Minute)
	for id := range options {
		if seen.count(id) != 1 {
			t.Errorf("%s: %d runs, want 1", id, seen.count(id))
		}
	}
	q, err := asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo("default")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(options); q.ProcessedTotal != n || q.FailedTotal != 0 || q.Completed != 1 || q.Size != 1 {
		t.Errorf("asynq counts %d processed, %d failed, %d completed, %d in all, want %d, 0, 1, 1", q.ProcessedTotal, q.FailedTotal, q.Completed, q.Size, n)
	}
}
