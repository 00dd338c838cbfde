package throttle_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// play lets two limiters take turns at a key while Redis' clock goes its way,
// and answers what was decided.
func play(t *testing.T, first, second *throttle.Limiter, setTime func(time.Time)) []string {
	t.Helper()
	ctx := context.Background()
	var out []string
	for i, at := range []time.Duration{0, 0, ms, 30 * time.Second, time.Minute - 20*ms, time.Minute, 59 * time.Second, 3 * time.Minute} {
		setTime(start.Add(at))
		for j, l := range []*throttle.Limiter{first, second} {
			d, err := l.Policy().Redeem(ctx, throttle.Request{Key: key, Cost: 1 + (i+j)%2, Job: fmt.Sprint("job", i%3, j)})
			if err != nil {
				t.Fatal(err)
			}
			s, err := l.Peek(ctx, key, 10)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprint(at, d.Granted, d.At.Sub(start), d.Now.Sub(start), d.Wait() > 0, s.Available, s.Waiting, s.Next.Sub(start)))
		}
	}
	return out
}

// The local clock decides about nothing: in a bubble the year is 2000, Redis
// says 2026, and the decisions are those of a client whose clock is right.
func TestWrongLocalClockDecidesTheSame(t *testing.T) {
	t.Parallel()
	two := func(t *testing.T, clients ...redis.UniversalClient) (a, b *throttle.Limiter) {
		limit := throttle.Sliding(2, time.Minute)
		return newLimiter(t, clients[0], "sms", limit, throttle.Config{}), newLimiter(t, clients[1], "sms", limit, throttle.Config{})
	}
	m := miniredis.NewMiniRedis()
	t.Cleanup(m.Close)
	a, b := two(t, miniClient(t, m), miniClient(t, m))
	right := play(t, a, b, m.SetTime)
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		m.ClockTTL(false)
		a, b := two(t, miniClient(t, m), miniClient(t, m))
		if y := time.Now().Year(); y != 2000 {
			t.Fatalf("the bubble's year is %d, want 2000", y)
		}
		if wrong := play(t, a, b, m.SetTime); !slices.Equal(wrong, right) {
			t.Errorf("with a clock that is years off: %q, want %q", wrong, right)
		}
	})
	s := newScene(t)
	a, b = two(t, s.rdb, s.rdb)
	if redis := play(t, a, b, func(now time.Time) { s.at(now.Sub(start)) }); !slices.Equal(redis, right) {
		t.Errorf("on a real Redis: %q, want %q", redis, right)
	}
}

// Time that goes backward credits nothing: neither permits nor a place.
func TestClockThatGoesBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(2, time.Minute))
	s.at(time.Minute)
	s.want(s.try(l, 2), true, time.Minute)
	s.want(s.job(l, "a", 1), false, 2*time.Minute)
	for _, at := range []time.Duration{50 * time.Second, 0, -time.Hour} {
		s.at(at)
		s.want(s.try(l, 1), false, 2*time.Minute)
		s.want(s.job(l, "a", 1), false, 2*time.Minute)
		if got, err := l.Peek(t.Context(), key, 1); err != nil || got.Available != 0 {
			t.Errorf("at %v: Available = %d, %v, want 0", at, got.Available, err)
		}
	}
	s.at(2 * time.Minute)
	s.want(s.job(l, "a", 1), true, 2*time.Minute)

	// Also where permits are left: nothing goes before the newest grant.
	some := s.limiter("some", throttle.Sliding(3, time.Minute))
	s.want(s.try(some, 1), true, 2*time.Minute)
	s.at(time.Minute)
	s.want(s.try(some, 1), false, 2*time.Minute)
	if got, err := some.Peek(t.Context(), key, 0); err != nil || got.Available != 0 {
		t.Errorf("Available = %d, %v, want 0", got.Available, err)
	}
}
