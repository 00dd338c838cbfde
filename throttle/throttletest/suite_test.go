package throttletest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/throttletest"
)

var (
	start  = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	secret = []byte("a secret of the tests, and of nobody else")
)

// variants are configurations that decide alike.
var variants = map[string]throttle.Config{
	"plain":      {},
	"hashed":     {Secret: secret, Prefix: "other"},
	"per client": {PerClient: true, Client: "one"},
	"no inline":  {InlineWait: throttle.InlineWaitNone},
}

// clock is one that a server is told.
type clock struct {
	now time.Time
	set func(time.Time) error
}

func (c *clock) advance(t *testing.T) func(time.Duration) {
	return func(d time.Duration) {
		c.now = c.now.Add(d)
		if err := c.set(c.now); err != nil {
			t.Fatal(err)
		}
	}
}

// subjects makes limiters on one server, each of a rule of its own.
func subjects(rdb redis.UniversalClient, cfg throttle.Config, c *clock) func(*testing.T, throttle.Limit) throttletest.Subject {
	rules := 0
	return func(t *testing.T, limit throttle.Limit) throttletest.Subject {
		rules++
		l, err := throttle.New(rdb, fmt.Sprint("rule", rules), limit, cfg)
		if err != nil {
			t.Fatal(err)
		}
		s := throttletest.Subject{Limiter: throttletest.Of(l)}
		if c != nil {
			s.Advance, s.GoesBack = c.advance(t), true
		}
		return s
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	for name, cfg := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &clock{now: start}
			rdb := redistest.NewTimedForLong(redistest.Start(t).Client(t), start)
			c.set = func(now time.Time) error { rdb.SetTime(now); return nil }
			throttletest.Run(t, subjects(rdb, cfg, c))
		})
	}
}

// On a server whose clock goes on by itself.
func TestRedisInRealTime(t *testing.T) {
	t.Parallel()
	throttletest.Run(t, subjects(redistest.Start(t).Client(t), throttle.Config{}, nil))
}

func TestMiniredis(t *testing.T) {
	t.Parallel()
	m := miniredis.NewMiniRedis()
	t.Cleanup(m.Close)
	m.SetTime(start)
	rdb := redis.NewClient(redistest.MiniOptions(m))
	t.Cleanup(func() { _ = rdb.Close() })
	throttletest.Run(t, subjects(rdb, throttle.Config{}, &clock{now: start, set: func(now time.Time) error {
		m.SetTime(now)
		return nil
	}}))
}

func TestMiniredisInABubble(t *testing.T) {
	t.Parallel()
	throttletest.RunInBubble(t, func(t *testing.T, limit throttle.Limit) throttletest.Limiter {
		_, m := redistest.Mini(t)
		rdb := redis.NewClient(redistest.MiniOptions(m))
		t.Cleanup(func() { _ = rdb.Close() })
		l, err := throttle.New(rdb, "sms", limit, throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return throttletest.Of(l)
	})
}

func TestFake(t *testing.T) {
	t.Parallel()
	for name, cfg := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttletest.Run(t, func(t *testing.T, limit throttle.Limit) throttletest.Subject {
				f := throttletest.New(t)
				return throttletest.Subject{Limiter: throttletest.Of(f.Limiter("sms", limit, cfg)), Advance: f.Advance, GoesBack: true}
			})
		})
	}
}

func TestLocalInABubble(t *testing.T) {
	t.Parallel()
	throttletest.RunInBubble(t, func(t *testing.T, limit throttle.Limit) throttletest.Limiter { return local(t, limit) })
}

func TestLocalInRealTime(t *testing.T) {
	t.Parallel()
	throttletest.Run(t, func(t *testing.T, limit throttle.Limit) throttletest.Subject {
		return throttletest.Subject{Limiter: local(t, limit)}
	})
}

func local(tb testing.TB, limit throttle.Limit) throttletest.Limiter {
	tb.Helper()
	l, err := throttle.NewLocal("sms", limit, throttle.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return throttletest.Of(l)
}
