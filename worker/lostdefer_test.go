package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// isDeferral recognises defer.lua on its way to Redis.
func isDeferral(request []byte) bool {
	return bytes.Contains(request, []byte("hw:{default}:due")) && bytes.Contains(request, []byte("asynq:{default}:lease"))
}

// lostDeferral is a task whose deferral was written while the answer was lost.
type lostDeferral struct {
	*rig
	pool  *worker.Pool
	proxy *redistest.Proxy
	per   time.Duration
	spent time.Time // when the permit was taken that it waits for
	seen  crowd
}

// crowd notes runs and how many there are at a time.
type crowd struct {
	runs
	now, most int // of runs, whose mu guards them
}

// enter notes a run that lasts until leave is called.
func (c *crowd) enter(ctx context.Context, task *asynq.Task) (leave func()) {
	c.note(ctx, task)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.most = max(c.most, c.now)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
	}
}

// newLostDeferral lets a task come whose handler takes longer than asynq's
// syncer waits until it repeats a call.
func newLostDeferral(t *testing.T, per, work time.Duration, retries int) *lostDeferral {
	t.Helper()
	r := newRig(t)
	c := &lostDeferral{rig: r, per: per}
	// Redis knows the script: otherwise the answer that is lost would be NOSCRIPT
	_ = queuescripts.Defer(t.Context(), r.rdb, queuescripts.NewQueueKeys("hw", "default"), queuescripts.DeferArgs{ID: "nobody", Token: 1})
	rdb, proxy := redistest.Behind(t, r.srv, func(o *redis.Options) { o.MaxRetries = retries })
	c.proxy = proxy
	c.pool, _ = r.startOn(rdb, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		defer c.seen.enter(ctx, task)()
		time.Sleep(work)
		return nil
	}), policies(phone("sms", per)))
	c.spent = r.take(r.limiter("sms", throttle.Sliding(1, per)), "+1").At
	c.proxy.CutNext(isDeferral)
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
	return c
}

// The task runs once, at its instant, whether go-redis sends the call again at
// once or asynq does it 5 s later: before the task is woken, or while it runs.
func TestLostAnswerToADeferral(t *testing.T) {
	t.Parallel()
	const byDefault, never = 0, -1
	const syncer = 5 * time.Second     // asynq repeats a call after so long: a grant that came later may be due to that
	cases := map[string]*lostDeferral{ // side by side: their time is waiting
		"go-redis repeats it":                  newLostDeferral(t, 1500*ms, 5500*ms, byDefault),
		"asynq repeats it while the task runs": newLostDeferral(t, 1500*ms, 5500*ms, never),
		"asynq repeats it before":              newLostDeferral(t, 8*time.Second, 5*time.Second, never),
	}
	for name, c := range cases {
		c.seen.ran(t, 1)
		c.eventually(name+": an empty queue", func() bool { return c.queueInfo().Size == 0 })
		if got := c.proxy.Cuts(); got != 1 {
			t.Fatalf("%s: %d answers were lost, want 1", name, got)
		}
		if got := c.seen.first("a").grant.Promised.Sub(c.spent); got != c.per {
			t.Errorf("%s: promised %v after the last permit, want %v", name, got, c.per)
		}
		most := syncer
		if c.per >= syncer {
			most = c.per + syncer
		}
		if got := c.seen.first("a").grant.At.Sub(c.spent); got < c.per || got >= most {
			t.Errorf("%s: granted %v after the last permit, want %v, and less than %v", name, got, c.per, most)
		}
		if runs, most := c.seen.count("a"), c.seen.most; runs != 1 || most != 1 {
			t.Errorf("%s: %d runs, %d at a time, want 1 and 1", name, runs, most)
		}
		if got := c.pool.Stats(); got.Deferred != 1 {
			t.Errorf("%s: Deferred = %d, want 1", name, got.Deferred)
		}
		c.wantQueue(1, 0, 0)
	}
}

// The answer to a real failure is lost. Whether go-redis repeats the call at once or asynq 5 s
// later: the task runs again by then, and that run must not be ended.
func TestLostAnswerToAFailure(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]int{"go-redis repeats it": 0, "asynq repeats it": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, seen := newRig(t), &crowd{}
			rdb, proxy := redistest.Behind(t, r.srv, func(o *redis.Options) { o.MaxRetries = retries })
			cfg := worker.Config{Asynq: asynq.Config{RetryDelayFunc: func(_ int, _ error, task *asynq.Task) time.Duration {
				if task.Type() == "first" {
					return time.Hour
				}
				return 0
			}}}
			r.startOn(rdb, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				defer seen.enter(ctx, task)()
				if task.Type() == "first" || seen.count("a") == 1 {
					return errGateway
				}
				time.Sleep(8 * time.Second)
				return nil
			}), cfg)
			r.enqueue("first", "first", "{}") // from then on Redis knows the script
			r.eventually("a failure", func() bool { return r.is("first", asynq.TaskStateRetry) })
			proxy.CutNext(func(request []byte) bool {
				return bytes.Contains(request, []byte("asynq:{default}:retry")) && bytes.Contains(request, []byte(errGateway.Error()))
			})
			r.enqueue("any", "a", "{}", asynq.MaxRetry(3))
			r.eventually("an end", func() bool { return r.info("a") == nil })
			if proxy.Cuts() != 1 {
				t.Fatalf("%d answers were lost, want 1", proxy.Cuts())
			}
			if runs, most := seen.count("a"), seen.most; runs != 2 || most != 1 {
				t.Errorf("%d runs, %d at a time, want 2 and 1", runs, most)
			}
		})
	}
}

// The answer to a fetch is lost, and go-redis does not send the call again. The task runs
// all the same, soon, and on its one attempt: asynq alone would archive it unrun.
func TestLostAnswerToAFetch(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &crowd{}
	rdb, proxy := redistest.Behind(t, r.srv, func(o *redis.Options) { o.MaxRetries = -1 })
	r.startOn(rdb, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		defer seen.enter(ctx, task)()
		return nil
	}), worker.Config{})
	r.enqueue("any", "first", "{}") // from then on Redis knows the script
	seen.ran(t, 1)
	const n = 20
	for i := range n {
		proxy.CutNext(func(request []byte) bool {
			return bytes.Contains(request, []byte("asynq:{default}:pending")) && bytes.Contains(request, []byte("asynq:{default}:active"))
		})
		r.enqueue("any", fmt.Sprint(i), "{}", asynq.MaxRetry(0))
		seen.ran(t, 2+i)
	}
	r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
	r.wantQueue(n+1, 0, 0)
}
