package throttletest

import (
	"context"
	"errors"
	"time"

	"github.com/headwayq/headway/throttle"
)

// changer is a limiter whose limit can be changed.
type changer interface {
	SetLimit(ctx context.Context, limit throttle.Limit) error
}

// changeCases: a limit that is changed counts what was spent under the old one.
func changeCases() []scenario {
	of := func(n int) throttle.Limit { return throttle.Sliding(n, time.Hour) }
	change := func(name string, limit throttle.Limit, play func(s *testbed, set func(throttle.Limit))) scenario {
		return scenario{name: "change/" + name, limit: limit, moves: true, play: func(s *testbed) {
			l, ok := s.l.(changer)
			if !ok {
				s.Skip("it needs SetLimit")
			}
			play(s, func(limit throttle.Limit) {
				if err := l.SetLimit(s.Context(), limit); err != nil {
					s.Fatalf("SetLimit(%v): %v", limit, err)
				}
			})
		}}
	}
	return []scenario{
		change("it rises, and counts what was spent", of(1), func(s *testbed, set func(throttle.Limit)) {
			s.try(1, 0)
			s.try(1, time.Hour)
			set(of(3))
			s.try(2, 0)
			s.try(1, time.Hour)
		}),
		change("it falls, and nobody gets more", of(3), func(s *testbed, set func(throttle.Limit)) {
			s.try(2, 0)
			s.at(time.Minute)
			s.try(1, 0)
			set(of(2))
			s.at(time.Hour)
			s.try(1, 0)
			s.try(1, time.Minute)
		}),
		change("jobs that wait move up, and back", of(1), func(s *testbed, set func(throttle.Limit)) {
			s.try(1, 0)
			s.book("a", 1, time.Hour)
			s.book("b", 1, 2*time.Hour)
			set(of(2))
			s.book("b", 1, time.Hour)
			s.redeem(request("a", 1), true, 0)
			set(of(1))
			s.redeem(request("b", 1), false, time.Hour)
		}),
		change("who can't be served any more hears of it", of(3), func(s *testbed, set func(throttle.Limit)) {
			s.try(3, 0)
			done := make(chan error, 1)
			go func() { done <- s.l.Acquire(s.Context(), key, 3) }()
			s.lineUp(1)
			set(of(2))
			if err := s.soon("Acquire", done); !errors.Is(err, throttle.ErrExceedsLimit) {
				s.Errorf("Acquire = %v, want %v", err, throttle.ErrExceedsLimit)
			}
			s.waiting(0)
		}),
		change("to another kind", of(3), func(s *testbed, set func(throttle.Limit)) {
			s.try(3, 0)
			set(throttle.Fixed(3, time.Hour))
			s.try(1, time.Hour)
			s.at(time.Hour)
			s.try(3, 0)
		}),
		change("a limit that makes no sense is refused", of(1), func(s *testbed, _ func(throttle.Limit)) {
			if err := s.l.(changer).SetLimit(s.Context(), throttle.Sliding(0, time.Hour)); !errors.Is(err, throttle.ErrInvalidLimit) {
				s.Errorf("SetLimit = %v, want %v", err, throttle.ErrInvalidLimit)
			}
			s.try(1, 0)
			s.try(1, time.Hour)
		}),
	}
}
