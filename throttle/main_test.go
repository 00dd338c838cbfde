package throttle_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

const (
	ms  = time.Millisecond
	key = "+49 170 1234567"
)

// TestMain makes the test binary two programs: with [turnsEnv] set it is the
// other process of a test that needs two.
func TestMain(m *testing.M) {
	if redisAt := os.Getenv(turnsEnv); redisAt != "" {
		if err := takeTurns(redisAt, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "the other process:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// start is when the clock of a [scene] begins.
var start = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// scene is a real Redis, or a Cluster, whose scripts read a clock that the test sets. Keys
// expire by the server's own clock and get an hour more, see [redistest.NewTimedForLong].
type scene struct {
	*testing.T
	rdb redistest.Timed
	raw redis.UniversalClient
	now time.Time
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return sceneOn(t, redistest.Client(t))
}

// newSceneOnOne is [newScene] on one Redis in any case, and says why.
func newSceneOnOne(t *testing.T, why string, opts ...redistest.Option) *scene {
	t.Helper()
	redistest.OneRedis(t, why)
	return sceneOn(t, redistest.Start(t, opts...).Client(t))
}

func sceneOn(t *testing.T, raw redis.UniversalClient) *scene {
	t.Helper()
	rdb := redistest.NewTimedForLong(raw, start)
	return &scene{T: t, rdb: rdb, raw: raw, now: start}
}

// at moves the clock to d after the start.
func (s *scene) at(d time.Duration) {
	s.Helper()
	s.now = start.Add(d)
	s.rdb.SetTime(s.now)
}

func (s *scene) limiter(rule string, limit throttle.Limit) *throttle.Limiter {
	s.Helper()
	return newLimiter(s.T, s.rdb, rule, limit, throttle.Config{})
}

func newLimiter(tb testing.TB, rdb redis.UniversalClient, rule string, limit throttle.Limit, cfg throttle.Config) *throttle.Limiter {
	tb.Helper()
	l, err := throttle.New(rdb, rule, limit, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// job asks for permits on behalf of a job, each time as a new attempt.
// acquireWithin blocks for d at most; not at all for zero and below.
func acquireWithin(ctx context.Context, l *throttle.Limiter, key string, n int, d time.Duration) error {
	if d <= 0 {
		d = -1
	}
	_, err := l.Policy().Acquire(ctx, throttle.Request{Key: key, Cost: n, MaxWait: d})
	return err
}

// setLimit stores a limit without conditions.
func setLimit(ctx context.Context, l *throttle.Limiter, limit throttle.Limit) error {
	_, err := l.SetLimit(ctx, limit, throttle.SetLimitOptions{})
	return err
}

func (s *scene) job(l *throttle.Limiter, job string, cost int) throttle.Decision {
	s.Helper()
	d, err := l.Policy().Redeem(s.Context(), throttle.Request{Key: key, Cost: cost, Job: job})
	if err != nil {
		s.Fatalf("Redeem(%q, %d): %v", job, cost, err)
	}
	return d
}

func (s *scene) try(l *throttle.Limiter, cost int) throttle.Decision {
	s.Helper()
	d, err := l.TryAcquire(s.Context(), key, cost)
	if err != nil {
		s.Fatalf("TryAcquire(%d): %v", cost, err)
	}
	return d
}

// want checks what was decided, and for when.
func (s *scene) want(d throttle.Decision, granted bool, at time.Duration) {
	s.Helper()
	if d.Granted != granted || d.At.Sub(start) != at {
		s.Errorf("%v: granted = %v at %v, want %v at %v", d, d.Granted, d.At.Sub(start), granted, at)
	}
}

// soleTurn is the one who was told to come earlier, the zero Turn for nobody.
func soleTurn(tb rapid.TB, turns []throttle.Promotion) throttle.Promotion {
	tb.Helper()
	switch len(turns) {
	case 0:
		return throttle.Promotion{}
	case 1:
		return turns[0]
	}
	tb.Fatalf("%d were told to come earlier, want one at most: %+v", len(turns), turns)
	return throttle.Promotion{}
}

// calls counts the scripts that a client runs, and calls after when one came
// back.
type calls struct {
	n     atomic.Int64
	after func()
}

func (c *calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if redistest.IsScript(cmd) && !redistest.IsUnknown(err) {
			c.n.Add(1)
			if c.after != nil {
				c.after()
			}
		}
		return err
	}
}

// life is the TTL that a script gave a key.
func (s *scene) life(name string) time.Duration {
	s.Helper()
	ttl, err := s.raw.PTTL(s.Context(), name).Result()
	if err != nil || ttl < 0 {
		s.Errorf("PTTL(%s) = %v, %v, want a life", name, ttl, err)
	}
	return ttl - time.Hour
}
