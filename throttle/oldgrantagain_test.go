package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// A refund that knows less of the grant than the one before does not shorten how long
// its token refuses.
func TestRefundByTheTokenAloneForgetsNothing(t *testing.T) {
	t.Parallel()
	underEach(t, hourly[:3], func(s *scene, l *throttle.Limiter) {
		d := s.try(l, 2)
		s.try(l, 2)
		s.try(l, 2)
		for i, r := range []throttle.Request{d.Request, {Key: key, Cost: 2, Token: d.Token}, d.Request} {
			s.later(l, time.Duration(i+1)*2*time.Minute)
			if _, err := l.Refund(s.Context(), r); err != nil {
				s.Fatal(err)
			}
			s.wantAvailable(l, 2)
		}
	})
}

// A settling whose answer was lost is done once as long as any of the grants counts, not
// only that of the narrowest rule.
func TestSettleAgainAfterTheNarrowestWindow(t *testing.T) {
	t.Parallel()
	for _, to := range []int{1, 6} {
		s := newScene(t)
		narrow, wide := s.limiter("narrow", throttle.Sliding(6, time.Second)), s.limiter("wide", throttle.Sliding(20, time.Hour))
		p := newPolicy(s, narrow, wide)
		more := []throttle.KeyCost{{Key: key, Cost: 3}}
		c := &cable{}
		s.raw.AddHook(c)
		d := s.redeem(p, throttle.Request{Key: key, Job: "a", Cost: 3, More: more})
		other := s.redeem(p, throttle.Request{Key: key, Job: "b", Cost: 3, More: more}) // of the same instant
		if !d.Granted || !other.Granted {
			t.Fatalf("%v, %v, want both granted", d, other)
		}
		bill := p.Charge(d)
		c.deaf.Store(true)
		_, err := bill.Adjust(t.Context(), map[string]int{"wide": to})
		c.deaf.Store(false)
		if !errors.Is(err, throttle.ErrUnavailable) {
			t.Fatalf("Settle = %v, want %v", err, throttle.ErrUnavailable)
		}
		s.later(narrow, 5*time.Minute)
		if _, err := narrow.TryAcquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		_, err = p.Charge(s.redeem(p, throttle.Request{Key: key, Job: "c", Cost: 1, More: more})).Adjust(t.Context(), map[string]int{"wide": 0}) // which clears away
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bill.Adjust(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		s.wantAvailable(wide, 20-3-to)
	}
}

// Who holds a lease since before a deployment made its rule a rate gives back no permit
// of others.
func TestRefundOfALeaseUnderARate(t *testing.T) {
	t.Parallel()
	for _, limit := range hourly {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			d := s.try(s.limiter("rule", throttle.Concurrent(2, time.Hour)), 1)
			l := s.limiter("rule", limit)
			s.at(time.Second)
			if got := s.job(l, "b", 2); !got.Granted {
				t.Fatalf("%v, want a grant", got)
			}
			want, wantNext := s.permits(l)
			s.refund(l, d)
			if got, next := s.permits(l); got != want || next != wantNext {
				t.Errorf("%d permits are available, the next at %v, want %d and %v as before", got, next, want, wantNext)
			}
		})
	}
}
