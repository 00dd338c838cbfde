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

// Handlers that asynq has given up go on for as long as they like. They hold no worker any more, and so
// deferred tasks are woken at their instants.
func TestVirtualGivenUpHandlersHoldNoWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const per = 20 * time.Second
		rdb, _ := redistest.Mini(t)
		r, seen, hung := rigOn(t, nil, rdb), &runs{}, make(chan struct{})
		cfg := policies(phone("sms", per))
		cfg.Asynq.Concurrency, cfg.Asynq.DelayedTaskCheckInterval = 2, 30*time.Second // asynq's own forwarder is no help
		cfg.Unlimited = worker.UnlimitedAllow
		r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if task.Type() == "hangs" {
				<-hung
				return nil
			}
			seen.note(ctx, task)
			return nil
		}), cfg)
		t.Cleanup(func() { close(hung) })
		for i := range 5 {
			r.enqueue("hangs", fmt.Sprint("hangs ", i), "{}", asynq.Timeout(time.Second), asynq.MaxRetry(0))
		}
		r.eventually("all are given up", func() bool { return r.queueInfo().Archived == 5 })
		r.enqueue("sms", "a", to("+1"))
		r.enqueue("sms", "b", to("+1"))
		seen.ran(t, 2)
		if apart := seen.first("b").at.Sub(seen.first("a").at); apart > per+time.Second {
			t.Errorf("b ran %v after a, want %v", apart, per)
		}
	})
}

// At a shutdown asynq gives a handler up that takes too long, and its task goes back to the queue. A handler that heeds
// its context has a moment to end: its slot is free when the pool is shut down, and not only when its lease ends.
func TestVirtualSlotOfAGivenUpHandlerIsFreeAfterShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := rigOn(t, nil, rdb)
		p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			<-ctx.Done()
			time.Sleep(200 * ms) // it tidies up
			return ctx.Err()
		}), policies(oneSlot()))
		r.enqueue("export", "a", "{}")
		r.eventually("it runs", func() bool { return r.is("a", asynq.TaskStateActive) })
		p.Shutdown()
		if !r.is("a", asynq.TaskStatePending) {
			t.Errorf("the task is %v, want pending", r.info("a").State)
		}
		if free := r.peek(p.Limiter("slots"), "acme").Available; free != 1 {
			t.Errorf("%d slots are free, want the one", free)
		}
	})
}

// A handler returns the error of a deferral long after asynq has given it up, while the task runs again. That
// run ends as it ends.
func TestVirtualLateDeferralIsNoneOfTheNextRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r, seen := rigOn(t, nil, rdb), &runs{}
		lim := r.limiter("one", throttle.Sliding(1, time.Hour))
		r.take(lim, "k")
		cfg := worker.Config{Asynq: asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}}
		r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if seen.note(ctx, task); seen.count("a") == 1 {
				err := lim.Acquire(ctx, "k", 1)
				time.Sleep(8 * time.Second) // asynq gives it up after five
				return err
			}
			time.Sleep(4500 * ms)
			return nil
		}), cfg)
		r.enqueue("any", "a", "{}", asynq.Timeout(5*time.Second), asynq.MaxRetry(1))
		seen.ran(t, 2)
		time.Sleep(time.Minute)
		if n := seen.count("a"); n != 2 || r.info("a") != nil {
			t.Errorf("%d runs, and asynq has %+v, want two and that it is done", n, r.info("a"))
		}
	})
}

// What a handler has started may ask for permits when it has returned: there is no attempt any more that they
// are for. Nothing is held, and what the attempt has paid stays paid.
func TestAcquireOfAHandlerThatHasReturned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slots, rate := r.limiter("slots", throttle.Concurrent(1, time.Minute)), r.limiter("rate", throttle.Sliding(1, time.Hour))
	r.take(rate, "k")
	left := make(chan context.Context, 1)
	p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		left <- context.WithoutCancel(ctx)
		return nil
	}), policies(phone("sms", time.Hour)))
	r.enqueue("sms", "a", to("+1"))
	ctx := <-left
	r.eventually("done", func() bool { return r.info("a") == nil })
	for _, l := range []*throttle.Limiter{slots, rate} {
		if err := l.Acquire(ctx, "k", 1); err == nil {
			t.Errorf("Acquire of %s = nil, want an error", l.Rule())
		}
	}
	if s := r.peek(slots, "k"); s.Available != 1 {
		t.Errorf("%d slots are free, want the one", s.Available)
	}
	if s := r.peek(rate, "k"); s.Waiting != 0 {
		t.Errorf("%d wait for the rate, want none", s.Waiting)
	}
	if s := r.peek(p.Limiter("sms"), "+1"); s.Available != 0 {
		t.Errorf("%d permits came back, want none", s.Available)
	}
}
