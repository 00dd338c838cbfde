package throttle_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

func TestConcurrent(t *testing.T) {
	t.Parallel()
	l := throttle.Concurrent(50, 30*time.Second)
	if !l.IsConcurrent() || throttle.Sliding(50, 30*time.Second).IsConcurrent() {
		t.Error("IsConcurrent is wrong")
	}
	if l.Kind() != "concurrent" || l.Permits() != 50 || l.Window() != 30*time.Second || l.MaxCost() != 1 || l.Burst() != 0 {
		t.Errorf("%v is %q of %d in %v, costs up to %d, burst %d", l, l.Kind(), l.Permits(), l.Window(), l.MaxCost(), l.Burst())
	}
	for _, tt := range []struct {
		limit throttle.Limit
		want  string // fields at fault
	}{
		{throttle.Concurrent(1, throttle.LeaseMin), ""}, {throttle.Concurrent(throttle.PermitsMax, throttle.LeaseMax), ""},
		{throttle.Concurrent(0, 0), "permits lease"}, {throttle.Concurrent(-1, -time.Second), "permits lease"},
		{throttle.Concurrent(throttle.PermitsMax+1, throttle.LeaseMax+time.Microsecond), "permits lease"},
		{throttle.Concurrent(1, throttle.LeaseMin-1), "lease"}, {throttle.Concurrent(1, time.Second+1), "lease"},
	} {
		if got := strings.Join(faultsOf(t, tt.limit.Validate()), " "); got != tt.want {
			t.Errorf("Validate of %v names %q, want %q", tt.limit, got, tt.want)
		}
	}
}

// What runs at once and what runs per window are kept apart: neither is changed
// into the other, nor read as the other when it is stored all the same.
func TestConcurrentIsNotChangedIntoAnother(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rate, lease := throttle.Sliding(1, time.Minute), throttle.Concurrent(1, time.Minute)
	for _, tt := range []struct{ code, other throttle.Limit }{{rate, lease}, {lease, rate}} {
		l := s.limiter("sms", tt.code)
		_, tryErr := l.TrySetLimit(t.Context(), tt.other)
		for op, err := range map[string]error{
			"SetLimit": l.SetLimit(t.Context(), tt.other), "SetLimitFor": l.SetLimitFor(t.Context(), tt.other, time.Minute), "TrySetLimit": tryErr,
		} {
			e, ok := errors.AsType[*throttle.LimitError](err)
			if !ok || e.Field != "kind" || !errors.Is(err, throttle.ErrInvalidLimit) {
				t.Errorf("%v: %s(%v) = %v, want a fault of the kind", tt.code, op, tt.other, err)
			}
		}
		if keys := allKeys(t, s.raw); len(keys) != 0 {
			t.Errorf("keys = %q, want none", keys)
		}
		if err := s.limiter("sms", tt.other).SetLimit(t.Context(), tt.other); err != nil {
			t.Fatal(err)
		}
		_, err := l.TryAcquire(t.Context(), key, 1)
		if e, ok := errors.AsType[*throttle.StoredLimitError](err); !ok || e.Rule != "sms" {
			t.Errorf("%v with %v stored: TryAcquire = %v, want %v", tt.code, tt.other, err, throttle.ErrStoredLimit)
		}
		s.raw.Del(t.Context(), storedKey)
	}
}
