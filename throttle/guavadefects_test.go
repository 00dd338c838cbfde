package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/throttle"
)

// The permits that warm a limiter up take the time to warm up, however they are
// split.
func TestGuavaWarmUpTimeWithWeights(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		s.raw.FlushDB(ctx)
		s.at(0)
		cold := rapid.SampledFrom([]int{1, 2, 3, 10}).Draw(rt, "cold")
		n := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(rt, "n")
		permits := 10
		per := time.Second / time.Duration(n)
		over := time.Duration(permits*(1+cold)) * per / 2
		take := payer(ctx, s.rdb, "rule")
		limit := throttle.WarmUp(n, time.Second, over, float64(cold))
		for left := permits; left > 0; {
			cost := rapid.IntRange(1, left).Draw(rt, "cost")
			if _, err := take(limit, cost); err != nil {
				rt.Fatal(err)
			}
			left -= cost
		}
		if _, err := take(limit, 1); err != nil {
			rt.Fatal(err)
		}
		if got := s.clock().Sub(start); got < over || got > over+us*time.Duration(permits) {
			rt.Fatalf("%v: warm after %v", limit, got)
		}
	})
}

// guava#2730: with a warm-up of zero everything is admitted.
func TestGuava2730WarmUpOfZero(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	for _, over := range []time.Duration{0, 1, us, -time.Second} {
		limit := throttle.WarmUp(2, time.Second, over, 3)
		if err := limit.Validate(); !errors.Is(err, throttle.ErrInvalidLimit) {
			t.Errorf("a warm-up of %v: %v, want %v", over, err, throttle.ErrInvalidLimit)
		}
		if _, err := throttle.New(rdb, "rule", limit, throttle.Config{}); !errors.Is(err, throttle.ErrInvalidLimit) {
			t.Errorf("New with a warm-up of %v: %v, want %v", over, err, throttle.ErrInvalidLimit)
		}
	}
}

// guava#5290: an interval of 12.5 µs counts as 12, so that 80,000 a second are
// 83,300.
func TestGuava5290RestOfAMicrosecond(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const n, permits = 80_000, 200
	for i, limit := range []throttle.Limit{
		throttle.Smooth(n, time.Second, 1), throttle.Bucket(n, time.Second, 2),
		throttle.Leaky(n, time.Second), throttle.GCRA(n, time.Second, 1), throttle.WarmUp(n, time.Second, ms, 1),
	} {
		s.at(0)
		take := payer(t.Context(), s.rdb, fmt.Sprint("rule", i))
		for range permits {
			if _, err := take(limit, 1); err != nil {
				t.Fatal(err)
			}
		}
		ideal := (permits - time.Duration(limit.Burst()) - 1) * time.Second / n
		slowest := (permits-1)*time.Second/n + 2*us
		if got := s.clock().Sub(start); got < ideal || got > slowest {
			t.Errorf("%v: %d permits in %v, want %v to %v", limit, permits, got, ideal, slowest)
		}
	}
	// What is promised in a line loses nothing either.
	l := s.limiter("line", throttle.Leaky(n, time.Second))
	s.at(0)
	for i := range 9 {
		s.want(s.job(l, fmt.Sprint("job", i), n+1), i == 0, time.Duration(i*1_000_012_500).Round(us))
	}
}

// guava#7130, by design: any cost goes at once, and the next pays for it.
func TestGuava7130TheNextPays(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.follow(s.limiter("rule", throttle.Smooth(5, time.Second, 5)),
		step{0, 5000, true, 0, false}, step{0, 1, false, 1000 * time.Second, false}, step{1000*time.Second - us, 1, false, us, false},
		step{1000 * time.Second, 5000, true, 0, false})
}

// Guava's tryAcquire with a time-out decides at once, by the instant alone, and
// takes nothing when it says no.
func TestGuavaTryAcquireSomeWaitAllowed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := newLimiter(t, s.rdb, "rule", throttle.Smooth(5, time.Second, 5), throttle.Config{InlineWait: time.Second})
	for i, c := range []struct {
		at, within time.Duration
		cost       int
		granted    bool
	}{{0, -1, 1, true}, {0, 200, 1, true}, {200, 100, 1000, false}, {300, 100, 1, true}} {
		s.at(c.at * ms)
		_, err := l.Redeem(t.Context(), throttle.Request{Key: key, Cost: c.cost, Job: fmt.Sprint("job", i), MaxWait: c.within * ms})
		if errors.Is(err, throttle.ErrTooLate) == c.granted || (c.granted && err != nil) {
			t.Errorf("at %v within %v: %v, want granted %v", c.at*ms, c.within*ms, err, c.granted)
		}
	}
}
