package throttletest

import (
	"context"
	"errors"
	"time"

	"github.com/headwayq/headway/throttle"
)

// grantCases: the same attempt gets the same grant, and gives it back once.
func grantCases() []scenario {
	two := throttle.Sliding(2, time.Hour)
	return []scenario{
		{name: "grants/the same token gets the same grant", limit: two, moves: true, play: func(s *testbed) {
			r := request("a", 1)
			r.Token = throttle.NewToken()
			s.redeem(r, true, 0)
			for i := range 3 {
				s.at(time.Duration(i) * time.Second)
				s.redeem(r, true, 0)
			}
			s.free(1)
		}},
		{name: "grants/another token is charged", limit: two, play: func(s *testbed) {
			s.redeem(request("a", 1), true, 0)
			s.redeem(request("a", 1), true, 0)
			s.redeem(request("a", 1), false, time.Hour)
		}},
		{name: "grants/a refund counts once", limit: two, play: func(s *testbed) {
			first, second := s.redeem(request("a", 1), true, 0), s.redeem(request("b", 1), true, 0)
			for range 2 {
				s.refund(first.Request)
				s.free(1)
			}
			s.try(1, 0)
			s.refund(first.Request)
			s.free(0)
			s.refund(second.Request)
			s.free(1)
		}},
		{name: "grants/a try is refunded", limit: two, play: func(s *testbed) {
			d := s.try(2, 0)
			s.refund(d.Request)
			s.refund(d.Request)
			s.free(2)
		}},
		{name: "grants/nothing comes back for what was not granted", limit: two, play: func(s *testbed) {
			s.try(1, 0)
			r := request("a", 1)
			r.Token = throttle.NewToken()
			s.refund(r)
			s.free(1)
		}},
		{name: "grants/a copy of a call that was taken back is not charged", limit: two, play: func(s *testbed) {
			for _, late := range []throttle.Request{request("before", 1), request("after", 1)} {
				late.Token = throttle.NewToken()
				if late.Job == "after" {
					s.redeem(late, true, 0)
				}
				s.refund(late)
				if d, err := s.l.Redeem(s.Context(), late); d.Granted || !errors.Is(err, throttle.ErrWithdrawn) {
					s.Errorf("Redeem(%q) = granted %v, %v, want %v", late.Job, d.Granted, err, throttle.ErrWithdrawn)
				}
			}
			s.free(2)
		}},
		{name: "grants/a refund leaves the line", limit: throttle.Sliding(1, time.Hour), play: func(s *testbed) {
			s.try(1, 0)
			d := s.redeem(request("a", 1), false, time.Hour)
			s.refund(d.Request)
			s.waiting(0)
			s.free(0)
		}},
		{name: "grants/a return keeps the first place", limit: throttle.Sliding(1, time.Hour), play: givesBack},
		{name: "grants/reset forgets what was spent and keeps the line", limit: two, play: func(s *testbed) {
			s.try(2, 0)
			s.book("a", 1, time.Hour)
			if _, err := s.l.Reset(s.Context(), key); err != nil {
				s.Fatalf("Reset: %v", err)
			}
			s.waiting(1)
			s.redeem(request("a", 1), true, 0)
			s.try(1, 0)
			s.try(1, time.Hour)
		}},
	}
}

func givesBack(s *testbed) {
	l, ok := s.l.(interface {
		Return(context.Context, throttle.Request) ([]throttle.Promotion, error)
	})
	if !ok {
		s.Skip("it needs Return")
	}
	first := s.redeem(request("a", 1), true, 0)
	s.book("b", 1, time.Hour)
	if _, err := l.Return(s.Context(), first.Request); err != nil {
		s.Fatalf("Return: %v", err)
	}
	s.redeem(request("b", 1), false, time.Hour)
	s.redeem(request("a", 1), true, 0)
	s.waiting(1)
}
