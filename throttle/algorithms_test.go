package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/throttle"
)

// The worked numbers of the constructors' comments, and each refusal to the
// microsecond.
func TestWorkedNumbers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, c := range []struct {
		limit throttle.Limit
		steps []step
	}{
		{throttle.Sliding(1, time.Minute), []step{
			{0, 1, true, 0, false},
			{30 * time.Second, 1, false, 30 * time.Second, false},
			{time.Minute - us, 1, false, us, false},
			{time.Minute, 1, true, 0, false},
		}},
		{throttle.Fixed(10, time.Hour), []step{
			{0, 1, true, 0, false},
			{59 * time.Minute, 9, true, 0, false},
			{59 * time.Minute, 1, false, time.Minute, false},
			{time.Hour - us, 1, false, us, false},
			{time.Hour, 10, true, 0, false}, // nineteen within a minute
			{time.Hour, 1, false, time.Hour, false},
		}},
		{throttle.Bucket(10, time.Second, 3), []step{
			{0, 3, true, 0, false},
			{99 * ms, 1, false, ms, false},
			{50 * ms, 1, false, 50 * ms, false}, // the clock went backwards
			{100*ms - us, 1, false, us, false},
			{100 * ms, 1, true, 0, false},
			{0, 1, false, 200 * ms, false},
			{200 * ms, 2, false, 100 * ms, false},
			{200 * ms, 1, true, 0, false},
		}},
		{throttle.SteppedBucket(10, time.Second, 10), []step{
			{0, 10, true, 0, false},
			{999 * ms, 1, false, ms, false},
			{time.Second - us, 10, false, us, false},
			{time.Second, 10, true, 0, false},
			{0, 1, false, 2 * time.Second, false},
			{2500 * ms, 10, true, 0, false}, // it was full: the interval begins here
			{2600 * ms, 1, false, 900 * ms, false},
		}},
		{throttle.GCRA(10, time.Second, 1), []step{
			{0, 1, true, 0, false},
			{30 * ms, 1, false, 70 * ms, false},
			{100*ms - us, 1, false, us, false},
			{100 * ms, 1, true, 0, false},
			{0, 1, false, 200 * ms, false},
		}},
		{throttle.Leaky(10, time.Second), []step{
			{0, 1, true, 0, false},
			{30 * ms, 1, false, 70 * ms, false},
			{100 * ms, 5, true, 0, false},
			{600*ms - us, 1, false, us, false},
			{600 * ms, 1, true, 0, false},
		}},
		{throttle.Smooth(5, time.Second, 5), []step{
			{0, 1, true, 0, false}, // what is stored begins with the first use
			{1200 * ms, 1, true, 0, false},
			{1200 * ms, 1, true, 0, false},
			{1200 * ms, 3, true, 0, false},
			{1200 * ms, 1, true, 0, false},
			{1200 * ms, 1, false, 200 * ms, false},
			{1400*ms - us, 1, false, us, false},
			{1400 * ms, 1, true, 0, false},
		}},
		{throttle.WarmUp(2, time.Second, 4*time.Second, 3), []step{
			{0, 1, true, 0, false},
			{1375*ms - us, 1, false, us, false},
			{1375 * ms, 1, true, 0, false},
			{1375 * ms, 1, false, 1125 * ms, false},
		}},
	} {
		s.follow(s.limiter(fmt.Sprint("rule", i), c.limit), c.steps...)
	}
}

// Callers one after another, each as soon as it may.
func TestWorkedWaits(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, c := range []struct {
		limit throttle.Limit
		costs []int
		waits []time.Duration
	}{
		{throttle.Smooth(1, time.Second, 1), []int{1, 2, 3, 4, 5}, []time.Duration{0, 1000, 2000, 3000, 4000}},
		{throttle.WarmUp(2, time.Second, 4*time.Second, 3), []int{1, 1, 1, 1, 1, 1, 1}, []time.Duration{0, 1375, 1125, 875, 625, 500, 500}},
		{throttle.GCRA(10, time.Second, 1), []int{1, 1, 1}, []time.Duration{0, 100, 100}},
		{throttle.Bucket(10, time.Second, 3), []int{3, 3, 1, 2}, []time.Duration{0, 300, 100, 200}},
		{throttle.Fixed(3, time.Second), []int{2, 2, 1, 1}, []time.Duration{0, 1000, 0, 1000}},
		{throttle.Sliding(3, time.Second), []int{2, 2, 1, 1}, []time.Duration{0, 1000, 0, 1000}},
	} {
		s.at(0)
		l := s.limiter(fmt.Sprint("rule", i), c.limit)
		for j, cost := range c.costs {
			got, err := pay(t.Context(), s.rdb, l, cost)
			if err != nil {
				t.Fatal(err)
			}
			if want := c.waits[j] * ms; got != want {
				t.Errorf("%v: caller %d waited %v, want %v", c.limit, j, got, want)
			}
		}
	}
}

// What a refund gives back at once, by kind.
func TestRefundOfEachKind(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	windowed := []step{
		{0, 1, true, 0, false}, {10 * time.Second, 1, true, 0, false}, {10 * time.Second, 1, false, 50 * time.Second, false},
		{at: 10 * time.Second, back: true},
		{10 * time.Second, 2, false, 50 * time.Second, false}, {10 * time.Second, 1, true, 0, false}, {10 * time.Second, 1, false, 50 * time.Second, false},
	}
	paying := []step{ // who took 5 and used them for 1 s owes that second
		{0, 5, true, 0, false}, {time.Second, 1, false, 4 * time.Second, false},
		{at: time.Second, back: true},
		{time.Second, 1, true, 0, false}, {time.Second, 1, false, time.Second, false},
	}
	full := func(wait time.Duration) []step {
		return []step{{0, 2, true, 0, false}, {0, 1, false, wait, false}, {at: 0, back: true}, {0, 2, true, 0, false}, {0, 1, false, wait, false}}
	}
	for i, c := range []struct {
		limit throttle.Limit
		steps []step
	}{
		{throttle.Sliding(2, time.Minute), windowed},
		{throttle.Fixed(2, time.Minute), windowed},
		{throttle.Bucket(2, time.Minute, 2), full(30 * time.Second)},
		{throttle.GCRA(2, time.Minute, 2), full(30 * time.Second)},
		{throttle.SteppedBucket(2, time.Minute, 2), full(time.Minute)},
		{throttle.Calendar(2, throttle.Minute, "UTC"), windowed},
		{throttle.Leaky(1, time.Second), paying},
		{throttle.Smooth(1, time.Second, 1), []step{ // what it kept from being stored is stored
			{0, 5, true, 0, false}, {time.Second, 1, false, 4 * time.Second, false},
			{at: time.Second, back: true},
			{time.Second, 1, true, 0, false}, {time.Second, 1, true, 0, false}, {time.Second, 1, false, time.Second, false},
		}},
		{throttle.WarmUp(2, time.Second, 4*time.Second, 3), []step{ // as much as a warm permit takes: it was warmed by
			{0, 1, true, 0, false}, {0, 1, false, 1375 * ms, false}, {at: 0, back: true}, {0, 1, false, 875 * ms, false},
		}},
	} {
		s.at(0)
		s.follow(s.limiter(fmt.Sprint("rule", i), c.limit), c.steps...)
	}
}

// Each in a line has the instant of the formula, and goes at it.
func TestLineOfEachKind(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, c := range []struct {
		limit throttle.Limit
		cost  int
		want  []time.Duration // ms
	}{
		{throttle.Sliding(2, time.Second), 1, []time.Duration{0, 0, 1000, 1000, 2000, 2000}},
		{throttle.Sliding(4, time.Second), 2, []time.Duration{0, 0, 1000, 1000, 2000}},
		{throttle.Fixed(2, time.Second), 1, []time.Duration{0, 0, 1000, 1000, 2000, 2000}},
		{throttle.Fixed(4, time.Second), 2, []time.Duration{0, 0, 1000, 1000, 2000}},
		{throttle.Bucket(2, time.Second, 2), 1, []time.Duration{0, 0, 500, 1000, 1500}},
		{throttle.Bucket(4, time.Second, 4), 2, []time.Duration{0, 0, 500, 1000, 1500}},
		{throttle.SteppedBucket(2, time.Second, 2), 1, []time.Duration{0, 0, 1000, 1000, 2000}},
		{throttle.SteppedBucket(4, time.Second, 8), 2, []time.Duration{0, 0, 0, 0, 1000, 1000, 2000}},
		{throttle.GCRA(2, time.Second, 1), 1, []time.Duration{0, 500, 1000, 1500}},
		{throttle.GCRA(4, time.Second, 2), 2, []time.Duration{0, 500, 1000, 1500}},
		{throttle.Leaky(2, time.Second), 1, []time.Duration{0, 500, 1000, 1500}},
		{throttle.Leaky(2, time.Second), 5, []time.Duration{0, 2500, 5000, 7500}},
		{throttle.Smooth(2, time.Second, 2), 1, []time.Duration{0, 500, 1000, 1500}},
		{throttle.Smooth(2, time.Second, 2), 5, []time.Duration{0, 2500, 5000, 7500}},
		{throttle.WarmUp(2, time.Second, 4*time.Second, 3), 1, []time.Duration{0, 1375, 2500, 3375, 4000, 4500, 5000}},
		{throttle.WarmUp(2, time.Second, 4*time.Second, 3), 2, []time.Duration{0, 2500, 4000, 5000, 6000}},
	} {
		l := s.limiter(fmt.Sprint("rule", i), c.limit)
		s.at(0)
		for j, want := range c.want {
			s.want(s.job(l, fmt.Sprint("job", j), c.cost), want == 0, want*ms)
		}
		for j, want := range c.want {
			if want == 0 {
				continue
			}
			s.at(want*ms - 50*ms - us) // a grant may lie 50 ms ahead
			s.want(s.job(l, fmt.Sprint("job", j), c.cost), false, want*ms)
			s.at(want * ms)
			s.want(s.job(l, fmt.Sprint("job", j), c.cost), true, want*ms)
		}
	}
}

// The most that a limit can ever grant goes at once on a fresh key, and one
// more never does.
func TestMostOfEachKind(t *testing.T) {
	t.Parallel()
	perKind(t, time.Second, func(s *scene, l *throttle.Limiter) {
		most := l.Limit().MaxCost()
		_, err := l.TryAcquire(s.Context(), key, most+1)
		if e, ok := errors.AsType[*throttle.ExceedsLimitError](err); !ok || e.Cost != most+1 || e.Limit != l.Limit() {
			s.Errorf("%v: TryAcquire(%d) = %v, want an ExceedsLimitError", l.Limit(), most+1, err)
		}
		if s.raw.Exists(s.Context(), l.Ledger(key)).Val() != 0 {
			s.Errorf("%v: a cost that can never be granted wrote something", l.Limit())
		}
		s.want(s.try(l, most), true, 0)
	})
}

// Two names of one algorithm.
func TestBucketAndGCRAAdmitTheSame(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		s.raw.FlushDB(ctx)
		n := rapid.IntRange(1, 20).Draw(rt, "n")
		burst := rapid.IntRange(1, 30).Draw(rt, "burst")
		window := time.Duration(rapid.Int64Range(1000, 3_000_000).Draw(rt, "window")) * us
		var limiters []*throttle.Limiter
		for _, limit := range []throttle.Limit{throttle.Bucket(n, window, burst), throttle.GCRA(n, window, burst)} {
			l, err := throttle.New(s.rdb, limit.Kind(), limit, throttle.Config{})
			if err != nil {
				rt.Fatal(err)
			}
			limiters = append(limiters, l)
		}
		now := time.Duration(0)
		for range 15 {
			now += time.Duration(rapid.Int64Range(-int64(window)/4, int64(window)).Draw(rt, "later")).Truncate(us)
			s.at(now)
			cost := rapid.IntRange(1, burst).Draw(rt, "cost")
			bucket, gcra := s.try(limiters[0], cost), s.try(limiters[1], cost)
			if bucket.Granted != gcra.Granted || !bucket.At.Equal(gcra.At) || !bucket.From.Equal(gcra.From) {
				rt.Fatalf("%d permits at %v: %v and %v", cost, now, bucket, gcra)
			}
		}
	})
}
