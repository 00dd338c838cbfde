package throttle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// fakeStore answers what a test says, and remembers what it was asked.
type fakeStore struct {
	acquired limitscripts.AcquireReply
	status   func() limitscripts.Status // of everything; nil for that of acquired
	now      time.Time
	cancels  []limitscripts.CancelArgs
	asked    int
}

func (s *fakeStore) answer() limitscripts.Status {
	s.asked++
	if s.status == nil {
		return s.acquired.Status
	}
	return s.status()
}

func (s *fakeStore) acquire(_ context.Context, c *limitscripts.Call, _ undoer) error {
	c.AcquireReply = s.acquired
	c.Status, c.Rule, c.Now = s.answer(), 1, s.now
	return nil
}

func (s *fakeStore) cancel(_ context.Context, a limitscripts.CancelArgs) (limitscripts.CancelReply, error) {
	s.cancels = append(s.cancels, a)
	return limitscripts.CancelReply{Status: s.answer(), Rule: 1, Now: s.now}, nil
}

func (s *fakeStore) refresh(_ context.Context, bookings []limitscripts.RefreshArgs) []limitscripts.RefreshReply {
	out := make([]limitscripts.RefreshReply, len(bookings))
	for i := range out {
		out[i] = limitscripts.RefreshReply{Status: s.answer(), Rule: 1, Now: s.now}
	}
	return out
}

func (s *fakeStore) close(context.Context, limitscripts.CloseArgs) (limitscripts.CloseReply, error) {
	return limitscripts.CloseReply{Status: s.answer(), Rule: 1, Now: s.now}, nil
}

func (s *fakeStore) renew(_ context.Context, leases []limitscripts.RenewArgs) []limitscripts.RenewReply {
	out := make([]limitscripts.RenewReply, len(leases))
	for i := range out {
		out[i] = limitscripts.RenewReply{Held: s.answer() == limitscripts.Granted, Now: s.now}
	}
	return out
}

func (s *fakeStore) release(context.Context, limitscripts.RuleCall, uint64) (limitscripts.ReleaseReply, error) {
	return limitscripts.ReleaseReply{Status: s.answer(), Now: s.now}, nil
}

func (s *fakeStore) adjust(context.Context, limitscripts.AdjustArgs) (limitscripts.CancelReply, error) {
	return limitscripts.CancelReply{}, nil
}

func (s *fakeStore) peek(context.Context, limitscripts.LimitKeys, limitscripts.PeekArgs) (limitscripts.PeekReply, error) {
	return limitscripts.PeekReply{Status: s.answer(), Now: s.now}, nil
}

func (s *fakeStore) reset(context.Context, limitscripts.LimitKeys, limitscripts.Numbers) (limitscripts.CancelReply, error) {
	return limitscripts.CancelReply{Status: s.answer(), Rule: 1, Now: s.now}, nil
}

func onFake(t *testing.T, s store) *Limiter {
	t.Helper()
	l, err := newRule(s, "sms", Sliding(5, time.Minute), Config{})
	if err != nil {
		t.Fatal(err)
	}
	l.policy = newPolicy([]*Limiter{l})
	return l
}

// What a grant is worth, and its instant, travel with its Request into every way of
// giving it back where it was made, and not into the next attempt, nor to another key
// or rule.
func TestWorthOfAGrantTravels(t *testing.T) {
	t.Parallel()
	at := time.Now()
	s := &fakeStore{acquired: limitscripts.AcquireReply{Status: limitscripts.Granted, At: at, Worth: []int64{42}}, now: at}
	l := onFake(t, s)
	d, err := l.Policy().Redeem(t.Context(), Request{Key: "k", Cost: 1, Job: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for name, back := range map[string]func() ([]Promotion, error){
		"Refund": func() ([]Promotion, error) { return l.Policy().Refund(t.Context(), d.Request) },
		"Return": func() ([]Promotion, error) { return ForWorkers.Return(t.Context(), l.Policy(), d.Request) },
	} {
		s.cancels = nil
		if _, err := back(); err != nil || len(s.cancels) != 1 || s.cancels[0].Rules[0].Worth != 42 ||
			!s.cancels[0].Rules[0].At.Equal(at) || !s.cancels[0].Rules[0].Until.Equal(at.Add(time.Minute)) {
			t.Errorf("%s sent %+v, %v, want a worth of 42, at %v for a minute", name, s.cancels, err, at)
		}
	}
	other, elsewhere := d.Request, onFake(t, &fakeStore{now: at})
	other.Key = "other"
	for name, back := range map[string]func() ([]Promotion, error){
		"another key":   func() ([]Promotion, error) { return l.Policy().Refund(t.Context(), other) },
		"another store": func() ([]Promotion, error) { return elsewhere.Policy().Refund(t.Context(), d.Request) },
	} {
		s.cancels, elsewhere.store.store.(*fakeStore).cancels = nil, nil
		_, err := back()
		sent := append(s.cancels, elsewhere.store.store.(*fakeStore).cancels...)
		if err != nil || len(sent) != 1 || !sent[0].Rules[0].At.IsZero() {
			t.Errorf("of %s Refund sent %+v, %v, want no instant", name, sent, err)
		}
	}
	s.acquired = limitscripts.AcquireReply{Status: limitscripts.Booked}
	booked, err := l.Policy().Redeem(t.Context(), d.Request)
	if err != nil || booked.grant.worth != nil {
		t.Errorf("a booking asked for with an old Request has a worth of %d, %v, want none", booked.grant.worth, err)
	}
}

// A store whose clock lies outside of the windows it was told is asked again
// around that clock, at most twice, and its clock is known from then on.
func TestWindowsAroundTheStoresClock(t *testing.T) {
	t.Parallel()
	left := 0
	s := &fakeStore{now: time.Now().Add(48 * time.Hour), status: func() limitscripts.Status {
		if left--; left >= 0 {
			return limitscripts.NotCovered
		}
		return limitscripts.Granted
	}}
	l := onFake(t, s)
	r := Request{Key: "k", Cost: 1, Job: "a"}
	for name, call := range map[string]func() error{
		"Redeem": func() error { _, err := l.Policy().Redeem(t.Context(), r); return err },
		"Refund": func() error { _, err := l.Policy().Refund(t.Context(), r); return err },
		"Peek":   func() error { _, err := l.Peek(t.Context(), "k", 1); return err },
		"Reset":  func() error { _, err := l.Reset(t.Context(), "k"); return err },
		"Refresh": func() error {
			return ForWorkers.Refresh(t.Context(), nil, []BookingRef{{Policy: l.policy, IDs: []string{"k"}, Job: "a", Costs: []int{1}}})[0].Err
		},
	} {
		for misses, want := range []error{nil, nil, nil, ErrUnavailable} {
			left, s.asked = misses, 0
			err := call()
			if !errors.Is(err, want) || want == nil && err != nil || s.asked != min(misses+1, 3) {
				t.Errorf("%s with %d misses = %v after %d calls, want %v", name, misses, err, s.asked, want)
			}
			if want != nil && !ForWorkers.Answered(err) {
				t.Errorf("%s: Answered(%v) = false, want true", name, err)
			}
		}
		if off := l.store.now().Sub(s.now); off < -time.Second || off > time.Minute {
			t.Errorf("%s: the clock is taken to be %v off the store's", name, off)
		}
	}
}

// A ledger that knows a newer limit at each call decides nothing: that is an
// error, and not an answer without an instant.
func TestLimitThatChangesAllTheTime(t *testing.T) {
	t.Parallel()
	s := &fakeStore{now: time.Now(), status: func() limitscripts.Status { return limitscripts.Outdated }}
	l := onFake(t, s)
	_, try := l.TryAcquire(t.Context(), "key", 1)
	_, redeem := l.Policy().Redeem(t.Context(), Request{Key: "key", Cost: 1, Job: "a"})
	_, peek := l.Peek(t.Context(), "key", 0)
	_, reset := l.Reset(t.Context(), "key")
	_, refund := l.Policy().Refund(t.Context(), Request{Key: "key", Cost: 1, Token: 7})
	check := ForWorkers.Refresh(t.Context(), nil, []BookingRef{{Policy: l.policy, IDs: []string{"key"}, Job: "a", Costs: []int{1}}})[0].Err
	held := lease{l, limitInForce{Limit: l.Limit()}, l.policy.store, "key", 7}
	_, release := held.release(t.Context())
	for op, err := range map[string]error{"TryAcquire": try, "Redeem": redeem, "Peek": peek, "Reset": reset, "Refund": refund, "Refresh": check, "release": release} {
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s = %v, want %v", op, err, ErrUnavailable)
		}
	}
}
