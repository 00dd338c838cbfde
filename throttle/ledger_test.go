package throttle_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// The worked numbers of the package comment and of [throttle.Sliding].
func TestOneEachMinute(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	s.want(s.job(l, "a", 1), true, 0)
	s.at(30 * time.Second)
	d := s.try(l, 1)
	s.want(d, false, time.Minute)
	if got := d.At.Sub(d.Now); got != 30*time.Second {
		t.Errorf("wait at 8:00:30 = %v, want 30s", got)
	}
	s.at(time.Minute - time.Microsecond)
	s.want(s.try(l, 1), false, time.Minute)
	s.at(time.Minute)
	s.want(s.try(l, 1), true, time.Minute)
}

// Each in the line has an instant of its own, and the line follows the ledger.
func TestLineFollowsTheLedger(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(2, time.Minute))
	s.want(s.job(l, "a", 1), true, 0)
	s.at(10 * time.Second)
	s.want(s.job(l, "b", 1), true, 10*time.Second)
	for i, want := range []time.Duration{60, 70, 120, 130} {
		s.want(s.job(l, fmt.Sprint("w", i), 1), false, want*time.Second)
	}
	s.at(75 * time.Second) // w0 is 15 s late and holds up nobody; its turn is the next, though
	s.want(s.job(l, "w1", 1), true, 75*time.Second)
	s.want(s.job(l, "w2", 1), true, 75*time.Second)
	s.want(s.job(l, "w3", 1), false, 135*time.Second)
	s.want(s.job(l, "w0", 1), false, 135*time.Second)
	if got, err := l.Peek(s.Context(), key, 2); err != nil || got.Booked[0].Job != "w0" || got.Booked[1].Job != "w3" {
		t.Errorf("the line is %v, %v, want w0, w3", got.Booked, err)
	}
}

// A grant that was spent ahead of its instant wrote over the one before it.
// Given back, it must not let the next one in before that one has left the
// window.
func TestRefundOfAGrantAheadKeepsTheOneBefore(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l := s.limiter("sms", throttle.Sliding(n, time.Minute))
			s.want(s.job(l, "a", n), true, 0)
			s.want(s.job(l, "b", n), false, time.Minute)
			s.at(time.Minute - 15*ms)
			ahead := s.job(l, "b", n)
			s.want(ahead, true, time.Minute)
			if _, err := l.Policy().Refund(s.Context(), ahead.Request); err != nil {
				t.Fatal(err)
			}
			s.want(s.try(l, 1), false, time.Minute)
			s.want(s.job(l, "c", n), true, time.Minute)
			s.want(s.job(l, "d", n), false, 2*time.Minute)
		})
	}
}

// Two grants of one instant: giving one back must not forget the token of the
// other, which would then be charged again when its call is sent again.
func TestRefundKeepsTheTokenOfItsNeighbour(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(3, time.Minute))
	first, second := s.job(l, "a", 1), s.job(l, "b", 1)
	if _, err := l.Policy().Refund(s.Context(), first.Request); err != nil {
		t.Fatal(err)
	}
	again, err := l.Policy().Redeem(s.Context(), second.Request)
	if err != nil {
		t.Fatal(err)
	}
	s.want(again, true, 0)
	if got, err := l.Peek(s.Context(), key, 0); err != nil || got.Available != 2 {
		t.Errorf("Available = %d, %v, want 2", got.Available, err)
	}
	if _, err := l.Policy().Refund(s.Context(), second.Request); err != nil {
		t.Fatal(err)
	}
	s.want(s.try(l, 3), true, 0)
}

// A grant in the middle of the window frees its permits, once, and no others.
func TestRefundInTheMiddle(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(4, time.Minute))
	s.want(s.job(l, "a", 1), true, 0)
	s.at(10 * time.Second)
	middle := s.job(l, "b", 2)
	s.at(20 * time.Second)
	s.want(s.job(l, "c", 1), true, 20*time.Second)
	s.want(s.try(l, 1), false, time.Minute)
	for range 3 {
		if _, err := l.Policy().Refund(s.Context(), middle.Request); err != nil {
			t.Fatal(err)
		}
	}
	s.want(s.try(l, 3), false, time.Minute)
	s.want(s.try(l, 2), true, 20*time.Second)
	s.want(s.try(l, 1), false, time.Minute)
	s.at(time.Minute)
	s.want(s.try(l, 1), true, time.Minute)
	s.want(s.try(l, 1), false, 80*time.Second)
}

// After a refund the clock goes back: the hole must not admit what the grant
// had written over.
func TestRefundAndAClockThatGoesBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(2, time.Minute))
	s.want(s.try(l, 1), true, 0)
	s.at(30 * time.Second)
	s.want(s.try(l, 1), true, 30*time.Second)
	s.at(61 * time.Second)
	d := s.try(l, 1)
	s.want(d, true, 61*time.Second)
	if _, err := l.Policy().Refund(s.Context(), d.Request); err != nil {
		t.Fatal(err)
	}
	s.at(45 * time.Second) // the grants at 0 s and 30 s are in the window again
	s.want(s.try(l, 1), false, 61*time.Second)
}

// A Return that the client library sends twice leaves the job its first place.
func TestReturnTwiceKeepsTheFirstPlace(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	d := s.job(l, "a", 1)
	s.want(s.job(l, "b", 1), false, time.Minute)
	for range 2 {
		if _, err := throttle.ForWorkers.Return(s.Context(), l.Policy(), d.Request); err != nil {
			t.Fatal(err)
		}
		got, err := l.Peek(s.Context(), key, 2)
		if err != nil || len(got.Booked) != 2 || got.Booked[0].Job != "a" || got.Booked[1].Job != "b" {
			t.Errorf("after Return the line is %v, %v, want a, b", got.Booked, err)
		}
	}
	s.want(s.job(l, "a", 1), true, 0)
}

// A limiter with another window on the same rule must not shorten the ledger's
// life: the longer window still counts what is in it.
func TestShorterWindowKeepsTheLedger(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2} {
		s := newScene(t)
		s.want(s.try(s.limiter("sms", throttle.Sliding(n, time.Minute)), n), true, 0)
		s.at(2 * time.Second)
		s.want(s.try(s.limiter("sms", throttle.Sliding(n, time.Second)), n), true, 2*time.Second)
		if ttl := s.life("hw:{" + key + "}:sms"); ttl < 50*time.Second {
			t.Errorf("n = %d: the ledger lives %v, want what the longer window needs", n, ttl)
		}
		s.want(s.try(s.limiter("sms", throttle.Sliding(n, time.Minute)), 1), false, 62*time.Second)
	}
}

// The same in one worked case: the ring of 2 has turned at 60 s.
func TestRaisedLimitKeepsTheRing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	limit := func(n int) *throttle.Limiter { return s.limiter("sms", throttle.Sliding(n, time.Minute)) }
	for _, at := range []time.Duration{0, 10 * time.Second, time.Minute} {
		s.at(at)
		s.want(s.try(limit(2), 1), true, at)
	}
	s.at(61 * time.Second)
	s.want(s.try(limit(2), 1), false, 70*time.Second)
	s.want(s.try(limit(3), 1), true, 61*time.Second) // 10, 60, 61
	s.want(s.try(limit(3), 1), false, 70*time.Second)
	s.want(s.try(limit(1), 1), false, 121*time.Second)
	s.want(s.try(limit(5), 2), true, 61*time.Second)
	s.want(s.try(limit(5), 1), false, 70*time.Second)
	s.at(70 * time.Second)
	s.want(s.try(limit(5), 1), true, 70*time.Second)
	s.want(s.try(limit(2), 1), false, 121*time.Second)
	s.at(121 * time.Second)
	s.want(s.try(limit(2), 1), true, 121*time.Second) // 70, 121
	s.want(s.try(limit(8), 6), true, 121*time.Second)
	s.want(s.try(limit(8), 1), false, 130*time.Second)
}

// The limit is raised after the ring has turned, lowered, raised again: a grant
// never makes more than the limit in force allows, counting what was spent
// before under any limit.
func TestChangedLimitCountsWhatWasSpent(t *testing.T) {
	t.Parallel()
	raw := redistest.Client(t)
	rdb := redistest.NewTimedForLong(raw, start)
	const window = time.Second
	limiters := map[int]*throttle.Limiter{}
	for _, n := range []int{1, 2, 3, 5, 8} {
		limiters[n] = newLimiter(t, rdb, "rule", throttle.Sliding(n, window), throttle.Config{})
	}
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		redistest.Flush(t, raw)
		now := start
		var spent []throttle.Decision
		for i := range rapid.IntRange(5, 50).Draw(rt, "length") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, 1, 50 * ms, 300 * ms, window, -100 * ms}).Draw(rt, "time"))
			rdb.SetTime(now)
			n := rapid.SampledFrom([]int{1, 2, 3, 5, 8}).Draw(rt, "n")
			if len(spent) > 0 && rapid.IntRange(0, 5).Draw(rt, "refund") == 0 {
				k := rapid.IntRange(0, len(spent)-1).Draw(rt, "which")
				if _, err := limiters[8].Policy().Refund(ctx, spent[k].Request); err != nil {
					rt.Fatal(err)
				}
				spent = append(spent[:k:k], spent[k+1:]...)
			}
			d, err := limiters[n].Policy().Redeem(ctx, throttle.Request{
				Key: key, Cost: rapid.IntRange(1, n).Draw(rt, "cost"), Job: fmt.Sprint("job", i),
			})
			if err != nil {
				rt.Fatal(err)
			}
			if !d.Granted {
				if _, err := limiters[n].Policy().Cancel(ctx, d.Request); err != nil {
					rt.Fatal(err)
				}
				continue
			}
			spent = append(spent, d)
			used := 0
			for _, g := range spent {
				if g.At.After(d.At.Add(-window)) {
					used += g.Cost
				}
			}
			if used > n {
				rt.Fatalf("%d permits in the window until %v, want at most %d", used, d, n)
			}
		}
	})
}
