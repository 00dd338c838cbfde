package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// A grant of more permits than the limit has by now can still be given back,
// and nobody gets a place that can never be served.
func TestGrantOutlivesALargerLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	large, small := s.limiter("sms", throttle.Sliding(5, time.Minute)), s.limiter("sms", throttle.Sliding(2, time.Minute))
	first := s.job(large, "a", 3)
	s.want(first, true, 0)
	if _, err := small.Return(t.Context(), first.Request); err != nil {
		t.Errorf("Return = %v, want nil", err)
	}
	second := s.job(large, "b", 4)
	s.want(second, true, 0)
	if _, err := small.Refund(t.Context(), second.Request); err != nil {
		t.Errorf("Refund = %v, want nil", err)
	}
	if got, err := small.Peek(t.Context(), key, 10); err != nil || got.Available != 2 || got.Waiting != 0 {
		t.Errorf("Peek = %+v, %v, want all available and nobody waiting", got, err)
	}
}

// A job that was booked under a larger limit is refused, and its place is free.
func TestBookingOutlivesALargerLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	large, small := s.limiter("sms", throttle.Sliding(5, time.Minute)), s.limiter("sms", throttle.Sliding(2, time.Minute))
	s.want(s.try(large, 2), true, 0)
	for _, ask := range []func(throttle.Request) (throttle.Decision, error){
		func(r throttle.Request) (throttle.Decision, error) { return small.Redeem(t.Context(), r) },
		func(r throttle.Request) (throttle.Decision, error) { return small.Book(t.Context(), r) },
		func(r throttle.Request) (throttle.Decision, error) {
			_, err := small.Cancel(t.Context(), r)
			return throttle.Decision{}, errors.Join(err, throttle.ErrExceedsLimit)
		},
	} {
		s.want(s.job(large, "a", 4), false, time.Minute)
		place := throttle.BookingRef{Policy: small.Policy(), IDs: []string{small.ID(key)}, Job: "a", Costs: []int{4}}
		if got := throttle.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place})[0]; !errors.Is(got.Err, throttle.ErrExceedsLimit) {
			t.Errorf("Check = %+v, want %v", got, throttle.ErrExceedsLimit)
		}
		if _, err := ask(throttle.Request{Key: key, Cost: 4, Job: "a"}); !errors.Is(err, throttle.ErrExceedsLimit) || errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("a cost of 4 of 2 = %v, want %v", err, throttle.ErrExceedsLimit)
		}
		if got, err := small.Peek(t.Context(), key, 10); err != nil || got.Waiting != 0 {
			t.Errorf("Peek = %+v, %v, want nobody waiting", got, err)
		}
	}
}
