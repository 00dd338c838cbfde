package throttle_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// One round trip for many places, of which each can fail alone, whether the
// server knows the script or not.
func TestRefreshManyBookings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	var places []throttle.BookingRef
	for i := range 3 {
		s.job(l, fmt.Sprint("job", i), 1)
		places = append(places, throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: fmt.Sprint("job", i), Costs: []int{1}})
	}
	s.raw.LPush(t.Context(), "hw:{broken}:sms", "x")
	places = append(places, throttle.BookingRef{Policy: l.Policy(), IDs: []string{"broken"}, Job: "a", Costs: []int{1}})
	for range 2 { // cold, then known
		got := throttle.ForWorkers.Refresh(t.Context(), s.rdb, places)
		for i, want := range []struct {
			known bool
			at    time.Duration
		}{{false, 0}, {true, time.Minute}, {true, 2 * time.Minute}} { // job0 was granted
			if got[i].Err != nil || got[i].Known != want.known || want.known && got[i].At.Sub(start) != want.at {
				t.Errorf("Refresh of job%d = %+v, want %+v", i, got[i], want)
			}
		}
		if !errors.Is(got[3].Err, throttle.ErrUnavailable) || got[3].Known {
			t.Errorf("Refresh of a broken key = %+v, want %v", got[3], throttle.ErrUnavailable)
		}
	}
	if got := throttle.ForWorkers.Refresh(t.Context(), s.rdb, nil); len(got) != 0 {
		t.Errorf("Refresh of nothing = %v, want nothing", got)
	}
}

// Who is checked has a new promise when its instant is still to come, and is
// late when that has passed and nothing came. To be told a past instant is no
// promise.
func TestRefreshRenewsThePromise(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	for _, job := range []string{"a", "b", "c"} {
		s.job(l, job, 1)
	}
	if _, err := l.Policy().Cancel(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "b"}); err != nil {
		t.Fatal(err)
	}
	c := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "c", Costs: []int{1}}
	check := func(at, want time.Duration) {
		t.Helper()
		s.at(at)
		if got := throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{c})[0]; !got.Known || got.At.Sub(start) != want || got.Permits != 0 {
			t.Errorf("Refresh at %v = %+v, want %v", at, got, want)
		}
	}
	check(30*time.Second, time.Minute) // it was told 120 s
	check(time.Minute+100*ms, time.Minute+100*ms)
	s.want(s.try(l, 1), false, 2*time.Minute+100*ms) // c has not come, but is not late
	s.at(time.Minute + 101*ms)
	s.want(s.try(l, 1), true, time.Minute+101*ms)
	check(time.Minute+101*ms, 2*time.Minute+101*ms) // it is late, and stands in line again
	if d := s.job(l, "c", 1); d.Promised.Sub(start) != 2*time.Minute+101*ms {
		t.Errorf("Promised = %v, want 2m0.101s", d.Promised.Sub(start))
	}
}

func TestLeave(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	for _, job := range []string{"a", "b", "c"} {
		s.job(l, job, 1)
	}
	turns, err := throttle.ForWorkers.CancelBooking(t.Context(), throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "b", Costs: []int{1}})
	turn := soleTurn(t, turns)
	if err != nil || turn.Job != "c" || turn.At.Sub(start) != time.Minute || turn.Wait != time.Minute {
		t.Errorf("Leave = %+v, %v, want c to come at 1m", turn, err)
	}
}

// More than 20 dead jobs at the head: those who only try get past them, 20 a
// call, though a refusal books nothing.
func TestManyLateHeadsHoldUpNobody(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	s.try(l, 1)
	for i := range 50 {
		s.job(l, fmt.Sprint("dead", i), 1)
	}
	s.at(time.Hour)
	for i, want := range []bool{false, false, true} {
		if d := s.try(l, 1); d.Granted != want {
			t.Errorf("try %d = %v, want granted = %v", i, d, want)
		}
	}
	if d := s.job(l, "dead30", 1); d.Promised.IsZero() { // its turn stays
		t.Errorf("a late job = %v, want it known", d)
	}
	if got, err := l.Peek(t.Context(), key, 3); err != nil || got.Waiting != 1 || got.Booked[0].Job != "dead30" {
		t.Errorf("Peek = %+v, %v, want dead30 first and alone", got, err)
	}
}

func TestPeek(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(3, time.Minute))
	look := func(available, waiting int, next time.Duration) {
		t.Helper()
		got, err := l.Peek(t.Context(), key, 10)
		if err != nil || got.Available != available || got.Waiting != waiting || got.Next.Sub(start) != next || len(got.Booked) != waiting {
			t.Errorf("Peek = %+v, %v, want %d available, %d waiting, next at %v", got, err, available, waiting, next)
		}
	}
	look(3, 0, 0)
	s.job(l, "a", 2)
	look(1, 0, 0)
	s.job(l, "b", 1)
	look(0, 0, time.Minute)
	s.job(l, "c", 3)
	look(0, 1, 2*time.Minute)
	s.at(time.Minute - 10*ms)
	s.want(s.job(l, "c", 3), true, time.Minute) // ahead of its instant: nothing is free until it has gone
	look(0, 0, 2*time.Minute)
	if turns, err := l.Reset(t.Context(), key); err != nil || len(turns) != 0 {
		t.Errorf("Reset = %+v, %v, want nobody to come", turns, err)
	}
	look(3, 0, time.Minute-10*ms)
	if n := s.raw.Exists(t.Context(), "hw:{"+key+"}:sms").Val(); n != 0 {
		t.Errorf("%d ledgers after Reset, want none", n)
	}
}

// A reset keeps the line and says who may come now.
func TestResetKeepsTheLine(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	s.job(l, "a", 1)
	s.job(l, "b", 1)
	s.at(time.Second)
	turns, err := l.Reset(t.Context(), key)
	turn := soleTurn(t, turns)
	if err != nil || turn.Job != "b" || turn.Wait != 0 {
		t.Errorf("Reset = %+v, %v, want b to come now", turn, err)
	}
	s.want(s.try(l, 1), false, time.Second+time.Minute)
	s.want(s.job(l, "b", 1), true, time.Second)
}
