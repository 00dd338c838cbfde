package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/worker"
)

// A Redis that was restarted may have forgotten what was written last: the pool says so, once.
func TestARestartOfRedisIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.AOF())
	told := make(chan event.RedisReplaced, 10)
	cfg := worker.Config{}
	cfg.Observer.RedisReplaced = func(_ context.Context, e event.RedisReplaced) { told <- e }
	r.start((&runs{}).handler(), cfg)
	never(t, 4*time.Second, "told of the first server", func() bool { return len(told) > 0 })
	r.srv.Restart()
	r.eventually("told of the second", func() bool { return len(told) > 0 })
	never(t, 4*time.Second, "told again", func() bool { return len(told) > 1 })
	if e := <-told; e.Addr != r.srv.Addr() {
		t.Errorf("told of %s, want %s", e.Addr, r.srv.Addr())
	}
	if n := r.logs.FilterMessageSnippet("another Redis server answers").Len(); n != 1 {
		t.Errorf("%d lines say it, want 1", n)
	}
}

// A Redis that begins again without its data has no list of queues, and clients name a queue once only. The pool names its queues again.
func TestQueuesAreNamedToAnEmptyRedis(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seen := &runs{}
	r.start(seen.handler(), worker.Config{Unlimited: worker.UnlimitedAllow})
	r.enqueuePlain("sms", "first", to("+1"))
	seen.ran(t, 1)
	if queues, err := r.insp.Queues(); err != nil || len(queues) != 1 {
		t.Fatalf("the queues are %v, %v, want one", queues, err)
	}
	never(t, 4*time.Second, "the watch looks", func() bool { return false }) // it has seen this server
	r.srv.Restart()
	r.eventually("the queue is listed", func() bool {
		queues, err := r.insp.Queues()
		return err == nil && len(queues) == 1
	})
}

// So it is when a server's clock is set.
func TestAClockThatWasSetIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var ahead atomic.Int64
	r.rdb.AddHook(shiftedTime(func() time.Duration { return time.Duration(ahead.Load()) }))
	looks := make(chan event.ClockJumped, 10)
	cfg := worker.Config{}
	cfg.Observer.ClockJumped = func(_ context.Context, e event.ClockJumped) { looks <- e }
	r.start((&runs{}).handler(), cfg)
	never(t, 4*time.Second, "told of the clock as it was", func() bool { return len(looks) > 0 })
	ahead.Store(int64(time.Hour))
	r.eventually("told of the jump", func() bool { return len(looks) > 0 })
	if e := <-looks; e.Addr != r.srv.Addr() || e.By < time.Hour-time.Second || e.By > time.Hour+time.Second {
		t.Errorf("told of %v at %s, want an hour at %s", e.By, e.Addr, r.srv.Addr())
	}
	never(t, 4*time.Second, "told again", func() bool { return len(looks) > 0 })
	if n := r.logs.FilterMessageSnippet("Redis' clock was set").Len(); n != 1 {
		t.Errorf("%d lines say it, want 1", n)
	}
}

// A call that takes long is no jump.
func TestJumpOfRedisClock(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	began := time.Now()
	for name, tc := range map[string]struct {
		passed time.Duration // by the server, in 3 s
		call   time.Duration // so long the second call took
		want   time.Duration
	}{
		"no jump":               {3 * time.Second, 0, 0},
		"forward":               {63 * time.Second, 0, time.Minute},
		"back":                  {-57 * time.Second, 0, -time.Minute},
		"half a second":         {3500 * ms, 0, 0},
		"an answer came late":   {3 * time.Second, 10 * time.Second, 0},
		"a command came late":   {13 * time.Second, 10 * time.Second, 0},
		"forward and came late": {73 * time.Second, 10 * time.Second, time.Minute},
	} {
		if got := worker.Jump(at, at.Add(tc.passed), began, began.Add(3*time.Second), tc.call); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
