package throttletest

import (
	"context"
	"errors"
	"time"

	"github.com/headwayq/headway/throttle"
)

// reserveCases: a place in line may be given up at any position.
func reserveCases() []scenario {
	return []scenario{{name: "reserve/a place moves up", limit: throttle.Sliding(1, time.Hour), moves: true, play: func(s *testbed) {
		l, ok := s.l.(interface {
			Reserve(context.Context, string, int) (*throttle.Reservation, error)
		})
		if !ok {
			s.Skip("it needs Reserve")
		}
		var v []*throttle.Reservation
		for i := range 3 {
			r, err := l.Reserve(s.Context(), key, 1)
			if err != nil {
				s.Fatalf("Reserve: %v", err)
			}
			if at := r.At().Sub(s.start); r.Granted() != (i == 0) || at != time.Duration(i)*time.Hour {
				s.Errorf("Reserve %d: granted = %v at %v, want it at %dh", i, r.Granted(), at, i)
			}
			v = append(v, r)
		}
		if err := v[1].Cancel(s.Context()); err != nil {
			s.Fatalf("Cancel: %v", err)
		}
		s.waiting(1)
		s.at(time.Hour - us)
		for _, granted := range []bool{false, true} {
			if d, err := v[2].Take(s.Context()); err != nil || d.Granted != granted {
				s.Errorf("Take at %v = %v, %v, want granted = %v", s.now, d.Granted, err, granted)
			}
			s.at(time.Hour)
		}
		if _, err := v[1].Take(s.Context()); !errors.Is(err, throttle.ErrWithdrawn) {
			s.Errorf("Take after Cancel = %v, want %v", err, throttle.ErrWithdrawn)
		}
	}}}
}
