package throttle_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// tries plays steps under limits that change: each step is under its own.
type tries []struct {
	limit   string
	at      time.Duration // seconds
	cost    int
	granted bool
	wait    time.Duration
}

func (s *scene) change(rule string, steps tries) {
	s.Helper()
	for i, w := range steps {
		limit, err := throttle.ParseLimit(w.limit)
		if err != nil {
			s.Fatal(err)
		}
		s.at(w.at * time.Second)
		d := s.try(s.limiter(rule, limit), w.cost)
		if wait := d.At.Sub(s.now); d.Granted != w.granted || wait != w.wait {
			s.Errorf("step %d, %s, %d permits at %v: granted %v, wait %v, want %v, %v", i, w.limit, w.cost, w.at*time.Second, d.Granted, wait, w.granted, w.wait)
		}
	}
}

// One case for each pair that people change between, told in advance.
func TestChangedLimitWorkedCases(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const sec = time.Second
	for name, steps := range map[string]tries{
		"sliding-lower-higher": {
			{"sliding 5/1m", 0, 2, true, 0}, {"sliding 5/1m", 10, 3, true, 0},
			{"sliding 3/1m", 20, 1, false, 50 * sec}, // until the three at 10 s have left
			{"sliding 3/1m", 60, 1, false, 10 * sec},
			{"sliding 10/1m", 60, 8, false, 10 * sec}, {"sliding 10/1m", 60, 7, true, 0},
			{"sliding 3/1m", 70, 1, false, 50 * sec}, {"sliding 10/1m", 70, 3, true, 0}, {"sliding 10/1m", 70, 1, false, 50 * sec},
		},
		"bucket-sliding": {
			{"bucket 5/10s burst 10", 0, 10, true, 0}, {"bucket 5/10s burst 10", 6, 3, true, 0},
			{"sliding 10/10s", 7, 1, false, 9 * sec}, // what went since 0 counts as of 6
			{"sliding 10/10s", 16, 10, true, 0}, {"sliding 10/10s", 16, 1, false, 10 * sec},
		},
		"sliding-gcra": {
			{"sliding 5/10s", 0, 1, true, 0}, {"sliding 5/10s", 4, 2, true, 0},
			{"gcra 5/10s burst 3", 4, 2, false, sec + sec}, // full at 8, as if it had been gcra since 0
			{"gcra 5/10s burst 3", 4, 1, true, 0}, {"gcra 5/10s burst 3", 4, 1, false, 2 * sec},
		},
		"fixed-sliding": {
			{"fixed 3/10s", 0, 1, true, 0}, {"fixed 3/10s", 9, 2, true, 0}, {"fixed 3/10s", 10, 2, true, 0},
			{"sliding 3/10s", 11, 1, false, 8 * sec}, // three as of 9, two of 10
			{"sliding 3/10s", 19, 1, true, 0}, {"sliding 3/10s", 19, 1, false, sec}, {"sliding 3/10s", 20, 2, true, 0},
		},
		"gcra-faster": {
			{"gcra 1/1h", 0, 1, true, 0}, {"gcra 1/1h", 1, 1, false, 3599 * sec},
			{"gcra 1/1s", 0, 1, false, sec}, // a permit of an hour is owed as one of a second
			{"gcra 1/1s", 1, 1, true, 0}, {"gcra 1/1s", 1, 1, false, sec},
		},
		"step-bucket": {
			{"bucket 4/10s burst 4 step", 0, 3, true, 0},
			{"bucket 4/10s burst 4", 2, 2, false, sec / 2}, // 3 owed at 0, one each 2.5 s
			{"bucket 4/10s burst 4", 5, 3, true, 0}, {"bucket 4/10s burst 4", 5, 1, false, 5 * sec / 2},
		},
		"step-small-steps": { // the tick of ten at 10 s is not one of the small ones
			{"bucket 10/10s burst 10 step", 0, 1, true, 0}, {"bucket 10/10s burst 10 step", 9, 9, true, 0},
			{"bucket 1/1s burst 10 step", 10, 2, false, sec}, {"bucket 1/1s burst 10 step", 10, 1, true, 0}, {"bucket 1/1s burst 10 step", 10, 1, false, sec},
		},
		"leaky-lower": {
			{"leaky 2/1s", 0, 4, true, 0}, {"leaky 2/1s", 1, 1, false, sec},
			{"leaky 1/1s", 1, 1, false, sec}, // the old debt stays
			{"leaky 1/1s", 2, 1, true, 0}, {"leaky 1/1s", 2, 1, false, sec},
		},
		"smooth-stored": { // 4 of 8 are stored, and so 2 of 4
			{"smooth 1/1s burst 8", 0, 1, true, 0}, {"smooth 1/1s burst 8", 100, 4, true, 0},
			{"smooth 1/2s burst 4", 100, 3, true, 0}, {"smooth 1/2s burst 4", 100, 1, false, 2 * sec},
		},
		"leaky-higher": {
			{"leaky 1/1s", 0, 4, true, 0}, {"leaky 1/1s", 1, 1, false, 3 * sec},
			{"leaky 4/1s", 1, 1, false, 3 * sec}, // the old debt stays
			{"leaky 4/1s", 4, 4, true, 0}, {"leaky 4/1s", 4, 1, false, sec},
		},
		"fixed-lower": {
			{"fixed 9/10s", 0, 9, true, 0}, {"fixed 3/10s", 1, 1, false, 9 * sec}, // the next window owes nothing
			{"fixed 3/10s", 10, 3, true, 0}, {"fixed 3/10s", 10, 1, false, 10 * sec},
		},
		"minutes-hour": {
			{"calendar 5/minute UTC", 10, 3, true, 0}, {"calendar 5/minute UTC", 70, 3, true, 0},
			{"calendar 5/hour UTC", 75, 1, false, 3525 * sec}, {"calendar 7/hour UTC", 75, 1, true, 0},
		},
		"calendar-lower": {
			{"calendar 9/minute UTC", 0, 9, true, 0}, {"calendar 3/minute UTC", 1, 1, false, 59 * sec},
		},
		"sliding-calendar": {
			{"sliding 5/1m", 50, 2, true, 0}, {"sliding 5/1m", 61, 2, true, 0},
			{"calendar 3/minute UTC", 62, 2, false, 58 * sec}, {"calendar 3/minute UTC", 62, 1, true, 0},
			{"calendar 3/minute UTC", 62, 1, false, 58 * sec}, {"calendar 3/minute UTC", 120, 3, true, 0},
		},
	} {
		s.change(name, steps)
	}
}

// A grant made before a change can be given back after it, if the log knows it.
// Elsewhere it stays spent: how much of it still counts is not known.
func TestRefundOfAGrantBeforeTheChange(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, c := range []struct {
		before, after throttle.Limit
		back          bool
	}{
		{throttle.Sliding(2, time.Minute), throttle.Sliding(1, time.Minute), true},
		{throttle.Fixed(2, time.Minute), throttle.Sliding(1, time.Minute), true},
		{throttle.Sliding(2, time.Minute), throttle.Fixed(1, time.Minute), false},
		{throttle.Bucket(2, time.Minute, 2), throttle.Fixed(1, time.Minute), false},
		{throttle.Fixed(2, time.Minute), throttle.Fixed(1, time.Minute), false},
		{throttle.Sliding(2, time.Minute), throttle.Leaky(1, time.Minute), false},
	} {
		before, after := s.limiter(fmt.Sprint("rule", i), c.before), s.limiter(fmt.Sprint("rule", i), c.after)
		s.at(0)
		d := s.try(before, 1)
		s.want(s.try(after, 1), false, time.Minute)
		if _, err := after.Policy().Refund(t.Context(), d.Request); err != nil {
			t.Fatal(err)
		}
		if c.back {
			s.want(s.try(after, 1), true, 0)
		}
		s.want(s.try(after, 1), false, time.Minute)
		s.at(time.Minute)
		s.want(s.try(after, 1), true, time.Minute)
	}
}

// What was granted before the limit became longer counts as long as the new one says, also
// when the next call of the key is no acquire.
func TestGivingBackUnderALongerLimit(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	for name, correct := range map[string]func(*throttle.Limiter, throttle.Decision) error{
		"refund": func(l *throttle.Limiter, d throttle.Decision) error {
			_, err := l.Policy().Refund(t.Context(), d.Request)
			return err
		},
		"charge": func(l *throttle.Limiter, d throttle.Decision) error {
			_, err := l.Policy().Charge(d).Adjust(t.Context(), map[string]int{l.Rule(): 1})
			return err
		},
	} {
		l := newLimiter(t, rdb, name, throttle.Sliding(4, time.Second), throttle.Config{})
		var d throttle.Decision // the second, for the first is what has to count on
		for range 2 {
			var err error
			if d, err = l.TryAcquire(t.Context(), "+1", 2); err != nil || !d.Granted {
				t.Fatal(d, err)
			}
		}
		if err := setLimit(t.Context(), l, throttle.Sliding(4, time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := correct(l, d); err != nil {
			t.Fatal(err)
		}
		if life := rdb.PTTL(t.Context(), "hw:{+1}:"+name).Val(); life < 59*time.Minute {
			t.Errorf("%s: the ledger lives for %v, want an hour", name, life)
		}
	}
}

// Who waits keeps its turn; the instants follow the limit, both ways.
func TestChangedLimitKeepsTheLine(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	jobs := []string{"a", "b", "c"}
	for i, c := range []struct {
		limit   throttle.Limit
		instant [3]time.Duration // of the jobs, in seconds
	}{
		{throttle.Sliding(2, time.Minute), [3]time.Duration{60, 60, 120}},
		{throttle.GCRA(2, time.Minute, 1), [3]time.Duration{30, 60, 90}},
		{throttle.Leaky(1, time.Minute), [3]time.Duration{120, 180, 240}},
		{throttle.Sliding(4, time.Minute), [3]time.Duration{0, 0, 60}},
	} {
		rule := fmt.Sprint("rule", i)
		old := s.limiter(rule, throttle.Sliding(2, 50*time.Second))
		s.at(0)
		s.want(s.job(old, "spent", 2), true, 0)
		for j, job := range jobs {
			s.want(s.job(old, job, 1), false, []time.Duration{50, 50, 100}[j]*time.Second)
		}
		changed := s.limiter(rule, c.limit)
		var places []throttle.BookingRef
		for _, job := range jobs {
			places = append(places, throttle.BookingRef{Policy: changed.Policy(), IDs: []string{changed.ID(key)}, Job: job, Costs: []int{1}})
		}
		for j, in := range throttle.ForWorkers.Refresh(t.Context(), s.rdb, places) {
			if at := in.At.Sub(start); in.Err != nil || !in.Known || at != c.instant[j]*time.Second {
				t.Errorf("%v: %s may go at %v (%v), want %v s", c.limit, jobs[j], at, in.Err, c.instant[j])
			}
		}
		for j, job := range jobs { // each at its instant, and in this order
			s.at(c.instant[j] * time.Second)
			for k, other := range jobs[j+1:] {
				if c.instant[j+1+k] > c.instant[j] {
					s.want(s.job(changed, other, 1), false, c.instant[j+1+k]*time.Second)
				}
			}
			s.want(s.job(changed, job, 1), true, c.instant[j]*time.Second)
		}
	}
}

// A raised limit tells the first in the line that it may come earlier.
func TestRaisedLimitTellsTheFirst(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, limit := range []throttle.Limit{throttle.Sliding(3, time.Minute), throttle.Bucket(4, time.Minute, 4), throttle.Fixed(3, time.Minute)} {
		rule := fmt.Sprint("rule", i)
		old := s.limiter(rule, throttle.Sliding(2, time.Minute))
		s.at(0)
		s.want(s.job(old, "spent", 2), true, 0)
		for _, job := range []string{"a", "b", "c"} {
			s.job(old, job, 1)
		}
		turns, err := s.limiter(rule, limit).Policy().Cancel(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "c"})
		turn := soleTurn(t, turns)
		if err != nil || turn.Job != "a" || turn.Wait != 0 {
			t.Errorf("%v: the next is %+v, %v, want a, now", limit, turn, err)
		}
		// lowered again it is later, and nobody is told: whoever comes is
		lower := s.limiter(rule, throttle.Sliding(1, time.Minute))
		turns, err = lower.Policy().Cancel(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "b"})
		if err != nil || len(turns) != 0 {
			t.Errorf("lowered: the next is %+v, %v, want nobody", turns, err)
		}
		s.want(s.job(lower, "a", 1), false, time.Minute)
	}
}

// A grant of more permits than the limit has by now can still be given back,
// and nobody gets a place that can never be served.
func TestGrantOutlivesALargerLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	large, small := s.limiter("sms", throttle.Sliding(5, time.Minute)), s.limiter("sms", throttle.Sliding(2, time.Minute))
	first := s.job(large, "a", 3)
	s.want(first, true, 0)
	if _, err := throttle.ForWorkers.Return(t.Context(), small.Policy(), first.Request); err != nil {
		t.Errorf("Return = %v, want nil", err)
	}
	second := s.job(large, "b", 4)
	s.want(second, true, 0)
	if _, err := small.Policy().Refund(t.Context(), second.Request); err != nil {
		t.Errorf("Refund = %v, want nil", err)
	}
	if got, err := small.Peek(t.Context(), key, 10); err != nil || got.Available != 2 || got.Waiting != 0 {
		t.Errorf("Peek = %+v, %v, want all available and nobody waiting", got, err)
	}
}

// A job that was booked under a larger limit is refused, and its place is free.
func TestBookingOutlivesALargerLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	large, small := s.limiter("sms", throttle.Sliding(5, time.Minute)), s.limiter("sms", throttle.Sliding(2, time.Minute))
	s.want(s.try(large, 2), true, 0)
	for _, ask := range []func(throttle.Request) (throttle.Decision, error){
		func(r throttle.Request) (throttle.Decision, error) { return small.Policy().Redeem(t.Context(), r) },
		func(r throttle.Request) (throttle.Decision, error) { return small.Policy().Book(t.Context(), r) },
		func(r throttle.Request) (throttle.Decision, error) {
			_, err := small.Policy().Cancel(t.Context(), r)
			return throttle.Decision{}, errors.Join(err, throttle.ErrExceedsLimit)
		},
	} {
		s.want(s.job(large, "a", 4), false, time.Minute)
		place := throttle.BookingRef{Policy: small.Policy(), IDs: []string{small.ID(key)}, Job: "a", Costs: []int{4}}
		if got := throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place})[0]; !errors.Is(got.Err, throttle.ErrExceedsLimit) {
			t.Errorf("Refresh = %+v, want %v", got, throttle.ErrExceedsLimit)
		}
		if _, err := ask(throttle.Request{Key: key, Cost: 4, Job: "a"}); !errors.Is(err, throttle.ErrExceedsLimit) || errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("a cost of 4 of 2 = %v, want %v", err, throttle.ErrExceedsLimit)
		}
		if got, err := small.Peek(t.Context(), key, 10); err != nil || got.Waiting != 0 {
			t.Errorf("Peek = %+v, %v, want nobody waiting", got, err)
		}
	}
}

// A limit that paces is lowered a little while its pace is kept: the next permit waits for
// the old debt and no longer, as with Guava's setRate, and what was stored stays stored.
func TestLoweredPaceOwesOnlyTheOldDebt(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		before, after string
		wait          time.Duration // for the first permit after the change
	}{
		{"leaky 1000/1h", "leaky 999/1h", 3600 * ms},
		{"leaky 1000/1h", "leaky 1/1h", 3600 * ms},
		{"smooth 600/1m burst 10", "smooth 600/1m burst 9", 100 * ms},
		{"smooth 600/1m burst 10", "smooth 599/1m burst 10", 100 * ms},
		{"warmup 600/1m over 1s cold 3", "warmup 599/1m over 1s cold 3", 100 * ms},
		{"warmup 600/1m over 1s cold 3", "warmup 600/1m over 1s cold 4", 100 * ms},
	} {
		t.Run(tc.before+" then "+tc.after, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			old := s.limiter("rule", parsed(t, tc.before))
			for range 200 { // one behind the other
				d := s.try(old, 1)
				if !d.Granted {
					s.at(d.At.Sub(start))
					d = s.try(old, 1)
				}
				if !d.Granted {
					t.Fatalf("%v, want a grant", d)
				}
			}
			d := s.try(s.limiter("rule", parsed(t, tc.after)), 1)
			if wait := d.At.Sub(s.now); wait > tc.wait+us || wait < tc.wait-us {
				t.Errorf("the next permit waits %v, want %v", wait, tc.wait)
			}
		})
	}
}

func parsed(t *testing.T, text string) throttle.Limit {
	t.Helper()
	limit, err := throttle.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return limit
}
