package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisclock"
)

// redisAhead is a hook that sets Redis' clock, as far as TIME tells it.
type redisAhead struct{ by time.Duration }

func (r *redisAhead) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (r *redisAhead) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (r *redisAhead) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if c, ok := cmd.(*redis.TimeCmd); ok {
				c.SetVal(c.Val().Add(r.by))
			}
		}
		return err
	}
}

// sentScripts notes the first argument of the script that was sent last.
type sentScripts struct {
	redis.UniversalClient
	first any
}

func (s *sentScripts) EvalSha(ctx context.Context, _ string, _ []string, args ...any) *redis.Cmd {
	s.first = args[0]
	return done(ctx)
}

func (s *sentScripts) instant() int64 {
	at, _ := s.first.(int64)
	return at
}

// The local clock is an hour off Redis'. What asynq tells of instants goes to Redis by Redis' clock all the same: otherwise this
// process would recover the tasks of living ones, or its own tasks would be recovered.
func TestAsynqsInstantsFollowRedisClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			r := newFetchRig(t, 1, "q")
			r.rdb.AddHook(&redisAhead{by: -ahead})
			r.a.servers.look(t.Context())
			r.enqueue("q", 2)
			near := func(what string, got, want int64) {
				t.Helper()
				if want -= int64(ahead / time.Second); got < want-2 || got > want+2 {
					t.Errorf("%s: %d, want %d by Redis' clock", what, got, want)
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
			c.EvalSha(ctx, "16988a462595f6ee317be300951533b004f27f5c", []string{"asynq:{q}:lease"}, now-30, "asynq:{q}:t:")
			near("what has ended before is recovered", wire.instant(), now-30)
			c.EvalSha(ctx, "522b1a6ae66fe79ea2f24a9af58798ab71879035", []string{"asynq:{q}:retry", "asynq:{q}:pending"}, now, "asynq:{q}:t:", now*1e9, "asynq:{q}:g:")
			near("what is due is forwarded", wire.instant(), now)
		})
	}
}

// A clock was set: for a while the leases of living processes may be by another clock than the one that this process goes by.
func TestNothingIsRecoveredWhileClocksSettle(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 1, "q")
	clock := &redisAhead{}
	r.rdb.AddHook(clock)
	for _, step := range []struct {
		ahead    time.Duration
		recovers bool
	}{{0, true}, {time.Hour, false}, {time.Hour, false}, {0, false}} {
		if clock.by = step.ahead; r.c.recovers(t.Context()) != step.recovers {
			t.Errorf("Redis' clock is %v ahead: recovers: %v, want %v", step.ahead, !step.recovers, step.recovers)
		}
	}
}

func TestLocalClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := func(ahead time.Duration) *redisclock.Clock {
			c := new(redisclock.Clock)
			c.Observe(time.Now().Add(ahead), time.Now(), time.Now())
			return c
		}
		for _, tc := range []struct {
			masters []time.Duration // how far they are ahead
			off     time.Duration   // how far the local clock is ahead
		}{
			{nil, 0},
			{[]time.Duration{0}, 0},
			{[]time.Duration{900 * time.Millisecond}, 0},
			{[]time.Duration{-2 * time.Second}, 2 * time.Second},
			{[]time.Duration{time.Hour}, -time.Hour},
			{[]time.Duration{time.Hour, 0, -time.Hour}, 0}, // of a Cluster: the local clock is right by one of them
			{[]time.Duration{-time.Hour, -time.Hour - 3*time.Second}, time.Hour},
		} {
			var c localClock
			var masters []*redisclock.Clock
			for _, ahead := range tc.masters {
				masters = append(masters, clock(ahead))
			}
			c.learn(masters)
			if off := c.off(); off != tc.off {
				t.Errorf("masters that are %v ahead: off is %v, want %v", tc.masters, off, tc.off)
			}
			if time.Sleep(time.Minute); c.off() != tc.off {
				t.Errorf("masters that are %v ahead: a minute later off is %v, want %v", tc.masters, c.off(), tc.off)
			}
			if c.settles() {
				t.Errorf("masters that are %v ahead: a first look says that a clock was set", tc.masters)
			}
		}
		c := localClock{}
		for i, tc := range []struct {
			ahead   time.Duration
			settles bool
		}{{0, false}, {3 * time.Second, false}, {time.Hour, true}, {time.Hour, true}, {time.Hour + 4*time.Second, false}, {0, true}} {
			c.learn([]*redisclock.Clock{clock(tc.ahead)})
			if c.settles() != tc.settles {
				t.Errorf("look %d, at a master that is %v ahead: settles: %v, want %v", i, tc.ahead, !tc.settles, tc.settles)
			}
			time.Sleep(clocksSettle / 2)
		}
	})
}
