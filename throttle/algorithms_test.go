package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// us is a duration in microseconds, which is what the scripts count in.
const us = time.Microsecond

// step is one call, and what it answers: a try, or with back the refund of the
// last grant.
type step struct {
	at      time.Duration // since the start of the scene
	cost    int
	granted bool
	wait    time.Duration
	back    bool
}

// follow plays steps on one key.
func (s *scene) follow(l *throttle.Limiter, steps ...step) {
	s.Helper()
	var last throttle.Decision
	for i, w := range steps {
		s.at(w.at)
		if w.back {
			if _, err := l.Policy().Refund(s.Context(), last.Request); err != nil {
				s.Fatalf("%v, step %d: %v", l.Limit(), i, err)
			}
			continue
		}
		d := s.try(l, w.cost)
		if wait := d.At.Sub(s.now); d.Granted != w.granted || wait != w.wait {
			s.Errorf("%v, step %d, %d permits at %v: granted %v, wait %v, want %v, %v", l.Limit(), i, w.cost, w.at, d.Granted, wait, w.granted, w.wait)
		}
		if d.Granted {
			last = d
		}
	}
}

// kindsOf are three permits, or so, in a window, of every kind; in a minute of
// the calendar.
func kindsOf(window time.Duration) []throttle.Limit {
	return []throttle.Limit{
		throttle.Sliding(3, window),
		throttle.Fixed(3, window),
		throttle.Bucket(3, window, 4),
		throttle.SteppedBucket(3, window, 4),
		throttle.GCRA(3, window, 2),
		throttle.Leaky(3, window),
		throttle.Smooth(3, window, 2),
		throttle.WarmUp(3, window, 2*window, 3),
		throttle.Calendar(3, throttle.Minute, "Asia/Shanghai"),
	}
}

// perKind runs f for each kind, on a rule of its own.
func perKind(t *testing.T, window time.Duration, f func(s *scene, l *throttle.Limiter)) {
	t.Helper()
	s := newScene(t)
	for i, limit := range kindsOf(window) {
		s.at(0)
		f(s, s.limiter(fmt.Sprint("rule", i), limit))
	}
}

// drain takes single permits until one is refused, and answers that.
func (s *scene) drain(l *throttle.Limiter) throttle.Decision {
	s.Helper()
	for range 20 {
		if d := s.try(l, 1); !d.Granted {
			return d
		}
	}
	s.Fatalf("%v: 20 permits at one instant", l.Limit())
	return throttle.Decision{}
}

// pay takes n permits as Guava's acquire does, and answers how long it waited:
// the clock is moved to the instant that was told.
func pay(ctx context.Context, rdb redistest.Timed, l *throttle.Limiter, n int) (time.Duration, error) {
	d, err := l.TryAcquire(ctx, key, n)
	if err != nil || d.Granted {
		return 0, err
	}
	rdb.SetTime(d.At)
	again, err := l.TryAcquire(ctx, key, n)
	if err == nil && !again.Granted {
		err = fmt.Errorf("after the wait it was told another: %w", again.Err())
	}
	return d.At.Sub(d.Now), err
}

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
		redistest.Flush(t, s.raw)
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

// on sets the clock to an instant, and answers how far it is from the start.
func (s *scene) on(instant string) time.Duration {
	s.Helper()
	at, err := time.Parse(time.RFC3339, instant)
	if err != nil {
		s.Fatal(err)
	}
	s.at(at.Sub(start))
	return s.now.Sub(start)
}

// The worked number of [throttle.Calendar]. The clock of this process is
// months away from that of Redis, which alone decides.
func TestCalendarWorkedNumber(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("rule", throttle.Calendar(10, throttle.Day, "Asia/Shanghai"))
	midnight := s.on("2026-03-02T00:00:00+08:00")
	morning := s.on("2026-03-01T00:00:00+08:00")
	s.want(s.try(l, 4), true, morning)
	evening := s.on("2026-03-01T23:59:00+08:00")
	s.want(s.try(l, 6), true, evening)
	s.want(s.try(l, 1), false, midnight)
	if wait := midnight - evening; wait != time.Minute {
		t.Errorf("from 23:59 to midnight are %v", wait)
	}
	s.at(midnight - us)
	s.want(s.try(l, 1), false, midnight)
	s.at(midnight)
	s.want(s.try(l, 10), true, midnight) // sixteen within two minutes
	s.want(s.try(l, 1), false, midnight+24*time.Hour)
}

// Those in the line get the days after, one after another.
func TestCalendarLine(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("rule", throttle.Calendar(2, throttle.Day, "Europe/Berlin"))
	today := s.on("2026-03-28T12:00:00+01:00")
	for i, want := range []string{
		"", "", "2026-03-29T00:00:00+01:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", "2026-03-30T00:00:00+02:00", "2026-03-31T00:00:00+02:00",
	} {
		at := today
		if want != "" {
			at = s.on(want)
			s.at(today)
		}
		s.want(s.job(l, string(rune('a'+i)), 1), want == "", at)
	}
}

// The days on which clocks are set forward and back have 23 and 25 hours,
// and hold what a day holds.
func TestLongAndShortDay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		begin, noon, end, after string
		length                  time.Duration
	}{
		{"2026-03-29T00:00:00+01:00", "2026-03-29T12:00:00+02:00", "2026-03-30T00:00:00+02:00", "2026-03-31T00:00:00+02:00", 23 * time.Hour},
		{"2026-10-25T00:00:00+02:00", "2026-10-25T12:00:00+01:00", "2026-10-26T00:00:00+01:00", "2026-10-27T00:00:00+01:00", 25 * time.Hour},
	} {
		s := newScene(t)
		l := s.limiter("rule", throttle.Calendar(3, throttle.Day, "Europe/Berlin"))
		after, end, begin := s.on(c.after), s.on(c.end), s.on(c.begin)
		if end-begin != c.length {
			t.Errorf("the day has %v, want %v", end-begin, c.length)
		}
		s.at(begin - us)
		s.want(s.try(l, 3), true, begin-us)
		s.want(s.try(l, 1), false, begin)
		s.at(begin)
		s.want(s.try(l, 1), true, begin)
		noon := s.on(c.noon)
		s.want(s.try(l, 2), true, noon)
		for _, at := range []time.Duration{noon, begin + 22*time.Hour, end - us} {
			s.at(at)
			s.want(s.try(l, 1), false, end)
		}
		s.at(end)
		s.want(s.try(l, 3), true, end)
		s.want(s.try(l, 1), false, after)
	}
}

// The clock of the process is hours or years off; Redis says which day it is.
func TestCalendarByRedisClock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("rule", throttle.Calendar(1, throttle.Hour, "Asia/Kolkata"))
	for _, now := range []string{"2031-07-01T08:10:00+05:30", "2026-03-01T08:10:00+05:30", "2000-01-01T08:10:00+05:30"} {
		redistest.Flush(t, s.raw)
		at := s.on(now)
		s.want(s.try(l, 1), true, at)
		s.want(s.try(l, 1), false, at+50*time.Minute)
	}
}
