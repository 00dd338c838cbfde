package throttletest

import (
	"time"

	"github.com/headwayq/headway/throttle"
)

// example is a limit of every kind, and what it gives at once at the start.
type example struct {
	name  string
	limit throttle.Limit
	first int
}

func examples() []example {
	const hour = time.Hour
	return []example{
		{"sliding", throttle.Sliding(5, hour), 5},
		{"fixed", throttle.Fixed(5, hour), 5},
		{"calendar", throttle.Calendar(5, throttle.Hour, "UTC"), 5},
		{"bucket", throttle.Bucket(10, hour, 7), 7},
		{"stepped bucket", throttle.SteppedBucket(3, hour, 7), 7},
		{"gcra", throttle.GCRA(7, hour, 3), 3},
		{"leaky", throttle.Leaky(7, hour), 1},
		{"smooth", throttle.Smooth(5, hour, 5), 1},
		{"warmup", throttle.WarmUp(7, hour, 4*hour, 3), 1},
	}
}

// tightCases: an instant is the first possible one, neither earlier nor later.
func tightCases() []scenario {
	var all []scenario
	for _, e := range examples() {
		all = append(all, scenario{name: "tight/" + e.name, limit: e.limit, moves: true, play: func(s *testbed) {
			s.startAt(time.Hour)
			for range e.first {
				s.try(1, 0)
			}
			for range 3 * e.first { // over several windows
				isTight(s)
			}
		}})
	}
	return all
}

// isTight spends one permit at the instant that is told, after a try one
// microsecond before it; or at once when there is one.
func isTight(s *testbed) {
	s.Helper()
	d, err := s.l.TryAcquire(s.Context(), key, 1)
	if err != nil {
		s.Fatalf("TryAcquire(1) at %v: %v", s.now, err)
	}
	if d.Granted {
		return
	}
	wait := d.At.Sub(d.Now)
	if wait <= 0 {
		s.Fatalf("TryAcquire(1) at %v is refused and told to wait %v", s.now, wait)
	}
	if wait > us {
		s.at(s.now + wait - us)
		s.try(1, us)
	}
	s.at(s.now + us)
	s.try(1, 0)
}
