package throttletest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

const (
	key   = "+49 170 1234567" // it must not appear in an error
	other = "+49 170 7654321"

	ms = time.Millisecond
	us = time.Microsecond

	// inlineWaitMax is how far ahead of its instant a grant may lie, see [throttle.Config].
	inlineWaitMax = time.Second

	// patience is how long a call may take that must not wait.
	patience = 5 * time.Second
)

// testbed is where a scenario runs: a limiter, and verbs that check what every
// answer must be.
type testbed struct {
	*testing.T
	Subject
	l      Limiter
	limit  throttle.Limit
	settle func() // waits until everybody else waits; nil outside of a bubble

	began time.Time     // by the local clock
	start time.Time     // by the limiter's
	now   time.Duration // since start, where the clock can be moved
}

// at moves the clock to d after the start.
func (s *testbed) at(d time.Duration) {
	s.Helper()
	if by := d - s.now; by != 0 {
		s.Advance(by)
		s.now = d
	}
}

// startAt moves the clock to the next multiple of d, and counts from there.
func (s *testbed) startAt(d time.Duration) {
	s.Helper()
	next := s.start.Truncate(d).Add(d)
	s.at(next.Sub(s.start))
	s.start, s.now = next, 0
}

// sameWait compares waits: exactly, unless the clock goes on by itself.
func (s *testbed) sameWait(got, want time.Duration) bool {
	if s.Advance != nil || want == 0 {
		return got == want
	}
	return got <= want && got > want-time.Since(s.began)-ms
}

// wantAt checks whether an answer is a grant, and its instant after the start.
func (s *testbed) wantAt(what string, d throttle.Decision, granted bool, at time.Duration) {
	s.Helper()
	got := d.At.Sub(s.start)
	near := got == at
	if s.Advance == nil { // grants come later than the start, and others after them
		near = got >= at && got <= at+time.Since(s.began)+ms
	}
	if d.Granted != granted || !near {
		s.Errorf("%s: granted = %v at %v, want %v at %v", what, d.Granted, got, granted, at)
	}
	if d.Granted && d.At.Sub(d.Now) > inlineWaitMax {
		s.Errorf("%s: granted %v ahead, want at most %v", what, d.At.Sub(d.Now), inlineWaitMax)
	}
}

// try asks for permits, and checks that they are granted, or when.
func (s *testbed) try(cost int, wait time.Duration) throttle.Decision {
	s.Helper()
	d, err := s.l.TryAcquire(s.Context(), key, cost)
	if err != nil {
		s.Fatalf("TryAcquire(%d) at %v: %v", cost, s.now, err)
	}
	if got := d.At.Sub(d.Now); d.Granted != (wait == 0) || !s.sameWait(max(0, got), wait) {
		s.Fatalf("TryAcquire(%d) at %v: granted = %v, wait %v, want %v, wait %v", cost, s.now, d.Granted, got, wait == 0, wait)
	}
	return d
}

func request(job string, cost int) throttle.Request {
	return throttle.Request{Key: key, Cost: cost, Job: job}
}

// book takes a place for a job, or asks about the one it has.
func (s *testbed) book(job string, cost int, at time.Duration) {
	s.Helper()
	d, err := s.l.Book(s.Context(), request(job, cost))
	if err != nil {
		s.Fatalf("Book(%q, %d): %v", job, cost, err)
	}
	s.wantAt(fmt.Sprintf("Book(%q, %d) at %v", job, cost, s.now), d, false, at)
}

// redeem asks for a job's turn.
func (s *testbed) redeem(r throttle.Request, granted bool, at time.Duration) throttle.Decision {
	s.Helper()
	d, err := s.l.Redeem(s.Context(), r)
	if err != nil {
		s.Fatalf("Redeem(%q, %d): %v", r.Job, r.Cost, err)
	}
	s.wantAt(fmt.Sprintf("Redeem(%q, %d) at %v", r.Job, r.Cost, s.now), d, granted, at)
	return d
}

// notYet asks for a turn that has not come; its instant is not looked at.
func (s *testbed) notYet(r throttle.Request) {
	s.Helper()
	if d, err := s.l.Redeem(s.Context(), r); err != nil || d.Granted {
		s.Errorf("Redeem(%q, %d) at %v = granted %v, %v, want a booking", r.Job, r.Cost, s.now, d.Granted, err)
	}
}

// cancel tells who comes next, nobody for the zero Turn.
func (s *testbed) cancel(job string, cost int) throttle.Promotion {
	s.Helper()
	turns, err := s.l.Cancel(s.Context(), request(job, cost))
	switch {
	case err != nil:
		s.Fatalf("Cancel(%q): %v", job, err)
	case len(turns) > 1:
		s.Fatalf("Cancel(%q) told %d to come earlier, want the next at most", job, len(turns))
	case len(turns) == 1:
		return turns[0]
	}
	return throttle.Promotion{}
}

func (s *testbed) refund(r throttle.Request) {
	s.Helper()
	if _, err := s.l.Refund(s.Context(), r); err != nil {
		s.Fatalf("Refund of job %q: %v", r.Job, err)
	}
}

func (s *testbed) peek(most int) throttle.State {
	s.Helper()
	state, err := s.l.Peek(s.Context(), key, most)
	if err != nil {
		s.Fatalf("Peek(%d): %v", most, err)
	}
	return state
}

// free checks how many permits there are.
func (s *testbed) free(want int) {
	s.Helper()
	if got, err := s.l.Available(s.Context(), key); err != nil || got != want {
		s.Errorf("Available at %v = %d, %v, want %d", s.now, got, err, want)
	}
}

// waiting checks how long the line is.
func (s *testbed) waiting(want int) {
	s.Helper()
	if got := s.peek(0).Waiting; got != want {
		s.Errorf("Peek at %v: %d waiting, want %d", s.now, got, want)
	}
}

// promptly runs a call that must not wait.
func (s *testbed) promptly(what string, call func(ctx context.Context) error) error {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	return s.soon(what, done)
}

// soon receives what must not take long.
func (s *testbed) soon(what string, from <-chan error) error {
	s.Helper()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case err := <-from:
		return err
	case <-t.C:
		s.Fatalf("%s has not returned after %v", what, patience)
		return nil
	}
}

// lineUp waits until so many stand in the line.
func (s *testbed) lineUp(want int) {
	s.Helper()
	if s.settle != nil {
		s.settle()
		s.waiting(want)
		return
	}
	tick := time.NewTicker(2 * ms) // a limiter that is not ours rings no bell
	defer tick.Stop()
	for end := time.Now().Add(patience); s.peek(0).Waiting != want; <-tick.C {
		if time.Now().After(end) {
			s.Fatalf("%d in the line, want %d", s.peek(0).Waiting, want)
		}
	}
}
