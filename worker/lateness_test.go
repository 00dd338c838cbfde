package worker_test

import (
	"context"
	"fmt"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// slowHook makes one call slow: the first, once it is armed, whose arguments match.
type slowHook struct {
	call          *regexp.Regexp
	before, after time.Duration
	then          func() // after it was answered; nil for nothing
	armed         atomic.Bool
	hits          atomic.Int32
}

func (h *slowHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *slowHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.slow([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (h *slowHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h.slow(cmds, func() error { return next(ctx, cmds) })
	}
}

func (h *slowHook) slow(cmds []redis.Cmder, do func() error) error {
	for _, cmd := range cmds {
		if h.call.MatchString(fmt.Sprint(cmd.Args())) && h.armed.CompareAndSwap(true, false) {
			h.hits.Add(1)
			time.Sleep(h.before)
			err := do()
			time.Sleep(h.after)
			if h.then != nil {
				h.then()
			}
			return err
		}
	}
	return do()
}

// A task becomes due 1.5 s after another, the look at which is slow: the first
// is late, the second is not.
func TestSlowLookDelaysNoOther(t *testing.T) {
	redistest.NeedFunctions(t) // their names are looked at
	t.Parallel()
	const per, apart, slow = 2000 * ms, 1500 * ms, 1300 * ms
	refresh, due := regexp.MustCompile(`_refresh .*:line\b`), regexp.MustCompile(`:due\b`)
	for name, h := range map[string]*slowHook{
		"refresh":         {call: refresh, after: slow},
		"way to the due":  {call: due, before: slow},
		"way back of due": {call: due, after: slow},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, seen := newRig(t), &runs{}
			o := r.srv.ClientOptions()
			rdb := redis.NewClient(o)
			t.Cleanup(func() { _ = rdb.Close() })
			rdb.AddHook(h)
			r.startOn(rdb, seen.handler(), policies(phone("sms", per)))
			lim := r.limiter("sms", throttle.Sliding(1, per))
			first := r.take(lim, "+1").At
			r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
			r.eventually("apart", func() bool { return time.Since(first) >= apart })
			spent := r.take(lim, "+2").At
			r.enqueue("sms", "b", to("+2"), asynq.MaxRetry(0))
			r.eventually("b deferred", func() bool { return r.is("b", asynq.TaskStateRetry) })
			h.armed.Store(true) // the next look is that at a
			seen.ran(t, 2)
			if h.hits.Load() != 1 {
				t.Fatalf("%d calls were slow, want 1", h.hits.Load())
			}
			if late := seen.first("b").at.Sub(spent.Add(per)); late > 350*ms {
				t.Errorf("b started %v after its instant, want at once", late)
			}
		})
	}
}

// While the pool moves a task behind one that waits for an hour, that one is cancelled. The
// task runs, and does not wait for an hour.
func TestPromotedWhileATaskIsMoved(t *testing.T) {
	redistest.NeedFunctions(t) // their names are looked at
	t.Parallel()
	const per = 3 * time.Second // so long the second task is not looked at, also on a slow machine
	r, seen := newRig(t), &runs{}
	provider := queue.Rule{Name: "provider", Limit: throttle.Sliding(1, time.Hour), Key: queue.MustJSONKey("$.via")}
	cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{phone("phone", per).Rules[0], provider}})
	inspector, err := inspect.New(r.rdb, inspect.Config{Policies: cfg.Policies})
	if err != nil {
		t.Fatal(err)
	}
	between := &slowHook{call: regexp.MustCompile(`_refresh .*{free}:provider:line`), then: func() {
		for end := time.Now().Add(within); !r.is("x", asynq.TaskStateRetry) && time.Now().Before(end); { // x is being deferred again
			time.Sleep(ms)
		}
		if err := inspector.Cancel(t.Context(), "default", "x", inspect.Reason{Who: "test", Why: "test"}); err != nil {
			t.Error(err)
		}
	}}
	// x is let in by its phone and refused by its provider: behind it, a is moved
	refused := &slowHook{call: regexp.MustCompile(`_acquire .*{spent}:provider:line`), then: func() { between.armed.Store(true) }}
	rdb := redis.NewClient(r.srv.ClientOptions())
	t.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(between)
	rdb.AddHook(refused)
	r.startOn(rdb, seen.handler(), cfg)
	r.take(r.limiter("provider", provider.Limit), "spent")
	r.take(r.limiter("phone", throttle.Sliding(1, per)), "+1")
	for _, task := range []struct{ id, via string }{{"x", "spent"}, {"a", "free"}} {
		r.enqueue("sms", task.id, fmt.Sprintf(`{"to":"+1","via":%q}`, task.via), asynq.MaxRetry(0))
		r.eventually(task.id+" deferred", func() bool { return r.is(task.id, asynq.TaskStateRetry) })
	}
	refused.armed.Store(true)
	defer func() { // also when a does not run: then x may be there still
		if between.hits.Load() != 1 {
			t.Errorf("%d tasks were cancelled during a refresh, want 1", between.hits.Load())
		}
	}()
	seen.ran(t, 1)
}

// Three tasks become due while the only worker is busy for longer: all three
// are late, also those that were woken only when it was free again.
func TestWaitForABusyWorkerIsLateness(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n, per, busy = 3, 1500 * ms, 700 * ms // within per the blocker runs, also on a slow machine
	h := &occupied{hold: map[string]chan struct{}{"block": make(chan struct{})}}
	grants := make(chan event.Granted, 10)
	cfg := policies(phone("sms", per))
	cfg.Asynq.Concurrency = 1
	cfg.Observer.Granted = func(_ context.Context, e event.Granted) { grants <- e }
	p, _ := r.start(h, cfg)
	spent := r.phonesSpent(p.Limiter("sms"), n)
	r.enqueue("block", "block", "{}")
	h.seen.ran(t, 1)
	r.eventually("all long due", func() bool { return time.Since(spent) > per+busy })
	close(h.hold["block"])
	h.seen.ran(t, n+1)
	for range n {
		if e := <-grants; e.Late < busy-100*ms || e.Late > busy+time.Second {
			t.Errorf("%v: Late = %v, want about %v", e.Task, e.Late, busy)
		}
	}
	if got := p.Stats(); got.Redeemed != n || got.LatenessP50 < busy-100*ms {
		t.Errorf("Redeemed, LatenessP50 = %d, %v, want %d, about %v", got.Redeemed, got.LatenessP50, n, busy)
	}
}
