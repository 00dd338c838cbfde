package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Who would come too late leaves all lines, wherever it waits.
func TestPolicyTooLateLeavesAllLines(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	s.want(s.redeem(p, wish(2, key, "a")), true, 0)
	for phone, rule := range map[string]string{key: "phone", "B": "provider"} {
		r := wish(2, phone, "b")
		s.by(s.redeem(p, r), rule, time.Minute)
		r.MaxWait = 59 * time.Second
		_, err := p.Redeem(t.Context(), r)
		e, ok := errors.AsType[*throttle.TooLateError](err)
		if !ok || e.Rule != rule || e.Wait != time.Minute {
			t.Errorf("Redeem = %v, want too late by rule %q for a minute", err, rule)
		}
		s.nobodyWaits()
	}
	s.available(p, wish(2, "B", ""), 1, 0)
}

func TestPolicyGivesBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	r := wish(2, key, "a")
	d := s.redeem(p, r)
	s.want(d, true, 0)
	s.by(s.redeem(p, wish(2, "B", "b")), "provider", time.Minute)
	turns, err := p.Refund(t.Context(), d.Request)
	if turn := soleTurn(t, turns); err != nil || turn.Job != "b" || turn.Wait != 0 {
		t.Errorf("Refund = %+v, %v, want b to come now", turns, err)
	}
	if turns, err := p.Refund(t.Context(), d.Request); err != nil || len(turns) > 1 {
		t.Errorf("Refund again = %+v, %v, want nothing new", turns, err)
	}
	if _, err := p.Redeem(t.Context(), d.Request); !errors.Is(err, throttle.ErrWithdrawn) {
		t.Errorf("Redeem with the old token = %v, want %v", err, throttle.ErrWithdrawn)
	}
	s.want(s.redeem(p, wish(2, "B", "b")), true, 0)
	s.available(p, r, 1, 0)

	// Cancel: who waits behind comes for it
	s.by(s.redeem(p, wish(2, "B", "c")), "phone", time.Minute)
	s.by(s.redeem(p, wish(2, "B", "d")), "phone", 2*time.Minute)
	turns, err = p.Cancel(t.Context(), wish(2, "B", "c"))
	if turn := soleTurn(t, turns); err != nil || turn.Job != "d" || turn.Wait != time.Minute {
		t.Errorf("Cancel = %+v, %v, want d to come in a minute", turns, err)
	}
	if _, err := p.Cancel(t.Context(), wish(2, "B", "d")); err != nil {
		t.Error(err)
	}
	s.nobodyWaits()
}

// A grant that is returned gives the job the first place at its phone, and
// nothing at the provider is held up by it.
func TestPolicyReturn(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	d := s.redeem(p, wish(2, key, "a"))
	s.by(s.redeem(p, wish(2, key, "b")), "phone", time.Minute)
	if _, err := p.Return(t.Context(), d.Request); err != nil {
		t.Fatal(err)
	}
	if got := s.ledgers(p, d.Request); got[0].Waiting != 2 || got[0].Booked[0].Job != "a" || got[1].Waiting != 0 || got[1].Available != 1 {
		t.Errorf("after Return: %+v, want a first of 2 at the phone, the provider free", got)
	}
	if _, err := p.Return(t.Context(), d.Request); err != nil {
		t.Fatal(err)
	}
	s.by(s.redeem(p, wish(2, key, "b")), "phone", time.Minute)
	s.want(s.redeem(p, wish(2, key, "a")), true, 0)
	s.at(time.Minute)
	s.want(s.redeem(p, wish(2, key, "b")), true, time.Minute)
	s.nobodyWaits()
}

// The same token gets the same grant, and is charged once by each rule.
func TestPolicyChargesATokenOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(3, time.Minute)), s.limiter("provider", throttle.Sliding(9, time.Minute)))
	r := wish(2, key, "a")
	r.Token = throttle.NewToken()
	s.want(s.redeem(p, r), true, 0)
	s.want(s.redeem(p, wish(2, key, "b")), true, 0)
	s.at(time.Second)
	again := s.redeem(p, r)
	s.want(again, true, 0)
	s.available(p, r, 1, 7)
	if _, err := p.Refund(t.Context(), again.Request); err != nil {
		t.Fatal(err)
	}
	s.available(p, r, 2, 8)
}
