package worker_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// occupied is a handler that holds its worker until it is let go, type by type.
type occupied struct {
	seen runs
	hold map[string]chan struct{}
}

func (h *occupied) ProcessTask(ctx context.Context, task *asynq.Task) error {
	h.seen.note(ctx, task)
	if c := h.hold[task.Type()]; c != nil {
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
	return nil
}

// phonesSpent takes the permits of n phones and defers a task to each.
func (r *rig) phonesSpent(lim *throttle.Limiter, n int) (spent time.Time) {
	r.Helper()
	for i := range n {
		spent = r.take(lim, fmt.Sprint("+", i)).At
	}
	for i := range n {
		id := fmt.Sprint("s", i)
		r.enqueue("sms", id, to(fmt.Sprint("+", i)), asynq.MaxRetry(0))
		r.eventually(id+" deferred", func() bool { return r.is(id, asynq.TaskStateRetry) })
	}
	return spent
}

// All workers are with another queue's tasks when three tasks become due: as
// many start as workers become free there, and not a second later.
func TestWorkerFreedInAnotherQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // all have to be deferred before the first is due
		rdb, _ := redistest.Mini(t)
		workerFreed(rigOn(t, nil, rdb))
	})
}

func workerFreed(r *rig) {
	r.Helper()
	const n, per = 3, 700 * ms
	h := &occupied{hold: map[string]chan struct{}{"block": make(chan struct{}), "sms": make(chan struct{})}}
	cfg := policies(phone("sms", per))
	cfg.Asynq.Concurrency = n
	cfg.Asynq.Queues = map[string]int{"default": 1, "other": 1}
	p, _ := r.start(h, cfg)
	spent := r.phonesSpent(p.Limiter("sms"), n)
	for i := range n {
		r.enqueue("block", fmt.Sprint("b", i), "{}", asynq.Queue("other"))
	}
	h.seen.ran(r.T, n)
	r.eventually("all due", func() bool { return time.Since(spent) > per+100*ms })
	close(h.hold["block"])
	freed := time.Now()
	h.seen.ran(r.T, 2*n)
	if took := time.Since(freed); took > 650*ms {
		r.Errorf("due tasks start %v after workers became free, want at once", took)
	}
	close(h.hold["sms"])
}

// A server of one's own has more workers than the adapter's Config says: they
// count, and half of them are free.
func TestAdapterCountsTheWorkersOfItsServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		workersOfItsServer(t, rigOn(t, nil, rdb))
	})
}

func workersOfItsServer(t *testing.T, r *rig) {
	t.Helper()
	const per = 400 * ms
	cfg := policies(phone("sms", per))
	cfg.Logger, cfg.Asynq.Concurrency = r.log, 2 // what asynq takes on two processors
	a, err := worker.NewAdapter(r.rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := &occupied{hold: map[string]chan struct{}{"block": make(chan struct{})}}
	srv := asynq.NewServerFromRedisClient(a.Client(), a.Server(asynq.Config{Concurrency: 10}))
	if err := srv.Start(a.Handler(h)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Stop(); srv.Shutdown(); a.Close() })
	defer close(h.hold["block"])
	for i := range 5 {
		r.enqueue("block", fmt.Sprint("b", i), "{}")
	}
	h.seen.ran(t, 5)
	spent := r.phonesSpent(a.Limiter("sms"), 3)
	h.seen.ran(t, 8)
	for i := range 3 {
		n := h.seen.first(fmt.Sprint("s", i))
		if late := n.at.Sub(spent.Add(per)); late > 2500*ms { // 4.6 s when two are counted
			t.Errorf("%s started %v after its instant, want at once", n.id, late)
		}
	}
}

// 200 tasks with a rule become due within a moment, and two workers take 40 of them a
// second. Others run between them.
func TestOthersRunWhileMoreIsDueThanWorkersCanTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // all have to be deferred before the first is due
		rdb, _ := redistest.Mini(t)
		othersRun(t, rigOn(t, nil, rdb))
	})
}

func othersRun(t *testing.T, r *rig) {
	const phones, free = 200, 10
	var seen, others runs
	cfg := policies(phone("sms", 6*time.Second))
	cfg.Asynq.Concurrency = 2
	p, stop := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "free" {
			others.note(ctx, task)
			return nil
		}
		seen.note(ctx, task)
		time.Sleep(50 * ms)
		return nil
	}), cfg)
	for i := range phones {
		r.take(p.Limiter("sms"), fmt.Sprint(i))
	}
	for i := range phones {
		r.enqueue("sms", fmt.Sprint("s", i), to(fmt.Sprint(i)), asynq.MaxRetry(0))
	}
	r.eventually("all deferred", func() bool { return p.Stats().Deferred >= phones })
	seen.ran(t, 5)
	for i := range free {
		r.enqueue("free", fmt.Sprint("f", i), "{}")
	}
	before := len(seen.all())
	others.ran(t, free)
	ran := len(seen.all()) - before
	stop()
	t.Logf("%d tasks with a rule ran before %d without one were through", ran, free)
	if most := 10 * free; ran > most {
		t.Errorf("%d tasks with a rule ran before %d without one were through, want %d at most", ran, free, most)
	}
}
