package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentScripts notes the first argument of the script that was sent last.
type sentScripts struct {
	redis.UniversalClient
	first any
}

func (s *sentScripts) EvalSha(ctx context.Context, _ string, _ []string, args ...any) *redis.Cmd {
	s.first = args[0]
	return answerOK(ctx)
}

func (s *sentScripts) instant() int64 {
	at, _ := s.first.(int64)
	return at
}

// The local clock was set by an hour. What asynq tells of instants goes to Redis as if it had not been: otherwise this
// process would recover the tasks of living ones, or its own tasks would be recovered.
func TestAsynqsInstantsStayWhenTheClockIsSet(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			r := newFetchRig(t, 1, "q")
			r.a.localClock.set(ahead)
			r.enqueue("q", 2)
			near := func(what string, got, want int64) {
				t.Helper()
				if want -= int64(ahead / time.Second); got < want-2 || got > want+2 {
					t.Errorf("%s: %d, want %d by the right clock", what, got, want)
				}
			}
			ctx, now := t.Context(), time.Now().Unix()
			score := func(set, id string) int64 { return int64(r.rdb.ZScore(ctx, "asynq:{q}:"+set, id).Val()) }

			r.fetch("q")
			near("the lease of a task that was fetched", score("lease", "q0"), now+30)
			r.rdb.ZAdd(ctx, "asynq:{q}:lease", redis.Z{Member: "q0", Score: 1})
			r.c.ZAddXX(ctx, "asynq:{q}:lease", redis.Z{Member: "q0", Score: float64(now + 30)})
			near("the lease of a task that was renewed", score("lease", "q0"), now+30)

			wire := &sentScripts{UniversalClient: r.c.UniversalClient}
			c := &client{UniversalClient: wire, a: r.a}
			c.EvalSha(ctx, "16988a462595f6ee317be300951533b004f27f5c", []string{"asynq:{q}:lease"}, now-9999, "asynq:{q}:t:")
			near("what has ended before is recovered", wire.instant(), now-30) // not by what asynq read a while ago
			c.EvalSha(ctx, "522b1a6ae66fe79ea2f24a9af58798ab71879035", []string{"asynq:{q}:retry", "asynq:{q}:pending"}, now, "asynq:{q}:t:", now*1e9, "asynq:{q}:g:")
			near("what is due is forwarded", wire.instant(), now)
		})
	}
}

// Redis says whether the local clock is right: by most of its masters on a Cluster, and also where a user may not ask who it is.
func TestRedisConfirmsTheLocalClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			masters []time.Duration // how far they are ahead of the local clock, which was set an hour ahead
			right   bool
		}{
			{nil, false},
			{[]time.Duration{0}, true},
			{[]time.Duration{4 * time.Second}, true},
			{[]time.Duration{-6 * time.Second}, false},
			{[]time.Duration{-time.Hour}, false},
			{[]time.Duration{0, 0, -time.Hour}, true},
			{[]time.Duration{0, -time.Hour, -time.Hour}, false},
			{[]time.Duration{0, -time.Hour}, false},
		} {
			w := &serverWatch{core: &core{}}
			w.localClock.set(time.Hour)
			var told []serverSeen
			for _, ahead := range tc.masters {
				told = append(told, serverSeen{clock: time.Now().Add(ahead), after: time.Now()})
			}
			w.confirmClock(told)
			want := time.Hour
			if tc.right {
				want = 0
			}
			if off := w.localClock.off(); off != want {
				t.Errorf("masters that are %v ahead: the clock is off by %v, want %v", tc.masters, off, want)
			}
		}
	})
	r := newFetchRig(t, 1, "q")
	if err := r.rdb.ACLSetUser(t.Context(), "default", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	r.a.localClock.set(time.Hour)
	if r.a.servers.look(t.Context()); r.a.localClock.off() != 0 {
		t.Errorf("a user who is barred from INFO: the clock is off by %v, want that Redis' TIME counts", r.a.localClock.off())
	}
}

func TestLocalClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c localClock
		if off := c.off(); off != 0 {
			t.Errorf("before the start the clock is off by %v, want 0", off)
		}
		c.right(time.Now())
		for _, tc := range []struct{ set, off time.Duration }{
			{0, 0}, {4 * time.Second, 0}, {-4 * time.Second, 0}, {6 * time.Second, 6 * time.Second}, {time.Hour, time.Hour}, {-time.Hour, -time.Hour},
		} {
			c.set(tc.set)
			for range 2 {
				if off := c.off(); off != tc.off {
					t.Errorf("set by %v: off is %v, want %v", tc.set, off, tc.off)
				}
				if now := c.now(); !now.Equal(time.Now().Add(-tc.off)) {
					t.Errorf("set by %v: now is %v, want %v", tc.set, now, time.Now().Add(-tc.off))
				}
				time.Sleep(time.Minute)
			}
		}
	})
}

// set acts as if the clock of this machine was set ahead just now.
func (c *localClock) set(by time.Duration) {
	c.last.Store(&rightInstant{time.Now().Round(0).Add(-by), time.Now()})
}
