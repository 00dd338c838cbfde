package throttle_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// What something else has written over a ledger is told as corrupt by every call, nothing is
// granted on it, and a reset heals the key: the jobs that wait keep their places.
func TestCorruptLedgerIsToldAndHealed(t *testing.T) {
	t.Parallel()
	corruptions := map[string]func(s *scene, ledger string, value string){
		"cut off": func(s *scene, ledger, value string) {
			s.raw.Set(s.Context(), ledger, value[:len(value)-1], time.Hour)
		},
		"one letter": func(s *scene, ledger, value string) {
			s.raw.Set(s.Context(), ledger, value[:1], time.Hour)
		},
		"other text of the same length": func(s *scene, ledger, value string) {
			s.raw.Set(s.Context(), ledger, value[:16]+strings.Repeat("\xff", len(value)-16), time.Hour)
		},
	}
	for name, corrupt := range corruptions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			limits := append(kindsOf(time.Minute), throttle.Sliding(60, time.Minute), throttle.Concurrent(1, time.Minute))
			for i, limit := range limits {
				l := s.limiter(fmt.Sprint("rule", i), limit)
				s.want(s.try(l, 1), true, 0)
				for granted := true; granted; { // until it waits
					granted = s.job(l, "a", 1).Granted
				}
				ledger := "hw:{" + key + "}:" + l.Rule()
				corrupt(s, ledger, s.raw.Get(t.Context(), ledger).Val())

				isCorrupt(t, l, key)
				if _, err := l.Reset(t.Context(), key); err != nil {
					t.Errorf("%v: Reset = %v, want nil", limit, err)
				}
				if p, err := l.Peek(t.Context(), key, 10); err != nil || p.Waiting != 1 {
					t.Errorf("%v: Peek = %+v, %v, want the job that waits", limit, p, err)
				}
				s.want(s.job(l, "a", 1), true, 0)
			}
		})
	}
}

func isCorrupt(t *testing.T, l *throttle.Limiter, key string) {
	t.Helper()
	for op, err := range asks(t.Context(), l, key, 1) {
		if !errors.Is(err, throttle.ErrCorrupt) || errors.Is(err, throttle.ErrSchema) || errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("%v: %s = %v, want %v", l.Limit(), op, err, throttle.ErrCorrupt)
		}
		noKey(t, err)
	}
	if _, err := l.Peek(t.Context(), key, 1); !errors.Is(err, throttle.ErrCorrupt) {
		t.Errorf("%v: Peek = %v, want %v", l.Limit(), err, throttle.ErrCorrupt)
	}
}

// A key of another type than a ledger is healed by a reset, too.
func TestResetOfAnotherType(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.GCRA(1, time.Minute, 1))
	s.raw.HSet(t.Context(), "hw:{"+key+"}:sms", "other", "program")
	if _, err := l.TryAcquire(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("TryAcquire = %v, want %v with the words of Redis", err, throttle.ErrUnavailable)
	}
	if _, err := l.Reset(t.Context(), key); err != nil {
		t.Errorf("Reset = %v, want nil", err)
	}
	s.want(s.try(l, 1), true, 0)
}
