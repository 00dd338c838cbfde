package throttletest

import (
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle"
)

// lineCases: jobs that wait are served in order of arrival, and none is passed.
func lineCases() []scenario {
	const hour = time.Hour
	one := throttle.Sliding(1, hour)
	all := []scenario{
		{name: "line/order", limit: one, moves: true, play: keepsOrder},
		{name: "line/a place stays", limit: one, play: func(s *testbed) {
			s.try(1, 0)
			for range 2 {
				s.book("a", 1, hour)
				s.book("b", 1, 2*hour)
			}
			s.redeem(request("b", 1), false, 2*hour)
			s.redeem(request("a", 1), false, hour)
			s.waiting(2)
		}},
		{name: "line/a booking is no grant", limit: one, play: func(s *testbed) {
			s.book("a", 1, 0)
			s.waiting(1)
			s.redeem(request("a", 1), true, 0)
			s.waiting(0)
		}},
		{name: "line/small jobs do not pass a large one", limit: throttle.Sliding(3, hour), moves: true, play: func(s *testbed) {
			s.try(2, 0)
			s.book("large", 3, hour)
			s.notYet(request("small", 1)) // although there is one permit left
			s.at(hour)
			s.redeem(request("small", 1), false, 2*hour)
			s.redeem(request("large", 3), true, hour)
			s.redeem(request("small", 1), false, 2*hour)
		}},
		{name: "line/a try does not pass jobs that wait", limit: throttle.Sliding(3, hour), play: func(s *testbed) {
			s.try(1, 0)
			s.book("large", 3, hour)
			s.free(0)
			if d, err := s.l.TryAcquire(s.Context(), key, 2); err != nil || d.Granted {
				s.Errorf("TryAcquire(2) = granted %v, %v while somebody waits, want it refused", d.Granted, err)
			}
			s.waiting(1)
			s.cancel("large", 3)
			s.free(2)
			s.try(2, 0)
		}},
		{name: "line/keys are apart", limit: one, play: func(s *testbed) {
			s.try(1, 0)
			s.book("a", 1, hour)
			r := request("a", 1)
			r.Key = other
			s.redeem(r, true, 0)
		}},
	}
	for gone := range 4 {
		all = append(all, scenario{name: fmt.Sprintf("line/cancel place %d of 4", gone+1), limit: one, play: func(s *testbed) { cancelOne(s, gone) }})
	}
	return all
}

func keepsOrder(s *testbed) {
	s.try(1, 0)
	jobs := []string{"a", "b", "c"}
	for i, job := range jobs {
		s.book(job, 1, time.Duration(i+1)*time.Hour)
	}
	s.try(1, 4*time.Hour)
	for i, job := range jobs {
		at := time.Duration(i+1) * time.Hour
		s.at(at - time.Second) // farther than a grant may lie ahead
		s.redeem(request(job, 1), false, at)
		s.at(at)
		for j, behind := range jobs[i+1:] {
			s.redeem(request(behind, 1), false, at+time.Duration(j+1)*time.Hour)
		}
		s.redeem(request(job, 1), true, at)
		s.waiting(len(jobs) - i - 1)
	}
	s.try(1, time.Hour)
}

// cancelOne gives one of four places up: those behind it move up, those before
// it do not, and it does no more when it is repeated.
func cancelOne(s *testbed, gone int) {
	s.try(1, 0)
	jobs := []string{"a", "b", "c", "d"}
	for i, job := range jobs {
		s.book(job, 1, time.Duration(i+1)*time.Hour)
	}
	turn := s.cancel(jobs[gone], 1)
	if gone == 0 && turn.Job != "b" || gone > 0 && turn.Job != "" {
		s.Errorf("Cancel of place %d: %q may come earlier, want that of who is first now, if it changed", gone+1, turn.Job)
	}
	s.cancel(jobs[gone], 1)
	s.waiting(3)
	place := 0
	for i, job := range jobs {
		if i != gone {
			place++
			s.book(job, 1, time.Duration(place)*time.Hour)
		}
	}
	s.cancel("nobody", 1)
	s.waiting(3)
}
