package throttletest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/throttle"
)

// crowd is how many ask at the same time.
const crowd = 64

// crowdCases: however many ask at the same time, never too many get it.
func crowdCases() []scenario {
	var all []scenario
	for _, e := range examples() {
		all = append(all, scenario{name: "crowd/never over/" + e.name, limit: e.limit, moves: e.limit.Kind() == "calendar", play: func(s *testbed) {
			if e.limit.Kind() == "calendar" {
				s.startAt(time.Hour)
			}
			if got := together(s, func(int) (throttle.Decision, error) { return s.l.TryAcquire(s.Context(), key, 1) }); got != e.first {
				s.Errorf("%d of %d at the same time were granted, want %d", got, crowd, e.first)
			}
		}})
	}
	return append(all,
		scenario{name: "crowd/several permits each", limit: throttle.Sliding(10, time.Hour), play: func(s *testbed) {
			if got := together(s, func(int) (throttle.Decision, error) { return s.l.TryAcquire(s.Context(), key, 3) }); got != 3 {
				s.Errorf("%d of %d with 3 permits each were granted, want 3 of 10 permits", got, crowd)
			}
			s.free(1)
		}},
		scenario{name: "crowd/one token", limit: throttle.Sliding(10, time.Hour), play: func(s *testbed) {
			r := request("a", 3)
			r.Token = throttle.NewToken()
			if got := together(s, func(int) (throttle.Decision, error) { return s.l.Redeem(s.Context(), r) }); got != crowd {
				s.Errorf("%d of %d copies of one attempt were granted, want all", got, crowd)
			}
			s.free(7)
		}},
		scenario{name: "crowd/refunds", limit: throttle.Sliding(crowd, time.Hour), play: func(s *testbed) {
			together(s, func(int) (throttle.Decision, error) {
				d, err := s.l.TryAcquire(s.Context(), key, 1)
				if err == nil {
					_, err = s.l.Refund(s.Context(), d.Request)
				}
				return d, err
			})
			s.free(crowd)
		}},
	)
}

// together calls from many goroutines, and counts the grants.
func together(s *testbed, ask func(i int) (throttle.Decision, error)) int {
	s.Helper()
	var granted atomic.Int64
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for i := range crowd {
		wg.Go(func() {
			<-gate
			d, err := ask(i)
			if err != nil {
				s.Errorf("one of many: %v", err)
			}
			if d.Granted {
				granted.Add(1)
			}
		})
	}
	close(gate)
	wg.Wait()
	return int(granted.Load())
}
