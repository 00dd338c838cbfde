package throttletest

import (
	"context"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle"
)

// lookCases: a look tells what is, and changes nothing.
func lookCases() []scenario {
	three := throttle.Sliding(3, time.Hour)
	return []scenario{
		{name: "looks/an unknown key", limit: three, play: func(s *testbed) {
			for range 2 {
				looksLike(s, 3, 0, 0)
				timeUntil(s, 3, 0)
			}
			s.try(3, 0)
		}},
		{name: "looks/they spend and book nothing", limit: three, play: func(s *testbed) {
			s.try(2, 0)
			for range 5 {
				looksLike(s, 1, 0, 0)
				timeUntil(s, 1, 0)
				timeUntil(s, 2, time.Hour)
			}
			s.try(1, 0)
			for range 2 {
				looksLike(s, 0, 0, time.Hour)
				timeUntil(s, 3, time.Hour)
			}
		}},
		{name: "looks/jobs that wait, in order", limit: three, play: func(s *testbed) {
			s.try(3, 0)
			for i := range 3 {
				s.book(fmt.Sprint("job", i), 3, time.Duration(i+1)*time.Hour)
			}
			for range 2 {
				listsJobs(s)
			}
		}},
		{name: "looks/TimeUntil is behind all who wait", limit: three, play: func(s *testbed) {
			s.try(3, 0)
			s.book("a", 2, time.Hour)
			timeUntil(s, 1, time.Hour)
			timeUntil(s, 2, 2*time.Hour)
			s.cancel("a", 2)
			timeUntil(s, 2, time.Hour)
		}},
		{name: "looks/permits come back one by one", limit: three, moves: true, play: func(s *testbed) {
			for i := range 3 {
				s.at(time.Duration(i) * time.Minute)
				s.try(1, 0)
			}
			for i := range 3 {
				at := time.Hour + time.Duration(i)*time.Minute
				s.at(at - us)
				s.free(i)
				s.at(at)
				s.free(i + 1)
			}
		}},
		{name: "looks/what can't be looked at", limit: three, play: func(s *testbed) {
			for _, most := range []int{-1, throttle.PeekMax + 1} {
				err := s.promptly("Peek", func(ctx context.Context) error { _, err := s.l.Peek(ctx, key, most); return err })
				if err == nil {
					s.Errorf("Peek(%d) = nil, want an error", most)
				}
			}
		}},
	}
}

// looksLike checks the three ways to look.
func looksLike(s *testbed, free, waiting int, next time.Duration) {
	s.Helper()
	state := s.peek(0)
	if state.Available != free || state.Waiting != waiting || !s.sameWait(max(0, state.Next.Sub(state.Now)), next) {
		s.Errorf("Peek at %v: %d available, %d waiting, next in %v, want %d, %d, %v",
			s.now, state.Available, state.Waiting, state.Next.Sub(state.Now), free, waiting, next)
	}
	s.free(free)
	timeUntil(s, 1, next)
}

func timeUntil(s *testbed, cost int, want time.Duration) {
	s.Helper()
	if got, err := s.l.TimeUntil(s.Context(), key, cost); err != nil || !s.sameWait(got, want) {
		s.Errorf("TimeUntil(%d) at %v = %v, %v, want %v", cost, s.now, got, err, want)
	}
}

// listsJobs checks a line of three jobs of three permits each.
func listsJobs(s *testbed) {
	s.Helper()
	for most := range 4 {
		state := s.peek(most)
		if state.Waiting != 3 || len(state.Booked) != most {
			s.Errorf("Peek(%d): %d of %d listed, want %d of 3", most, len(state.Booked), state.Waiting, most)
		}
		for i, w := range state.Booked {
			wait := w.At.Sub(state.Now)
			if w.Job != fmt.Sprint("job", i) || w.Cost != 3 || !s.sameWait(wait, time.Duration(i+1)*time.Hour) {
				s.Errorf("Peek(%d): place %d is %q with %d permits in %v, want job%d with 3 in %dh", most, i, w.Job, w.Cost, wait, i, i+1)
			}
		}
	}
}
