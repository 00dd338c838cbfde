package throttle

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// What a call was decided by stays what it was, in memory that calls share while
// nothing changes.
func TestLimitsInForceAreSharedAndKept(t *testing.T) {
	t.Parallel()
	l, err := NewLocal("sms", Sliding(2, time.Minute), Config{})
	if err != nil {
		t.Fatal(err)
	}
	limits := func() []limitInForce {
		in, err := l.policy.limitsInForce(t.Context(), byID("k"))
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	first := limits()
	if second := limits(); &first[0] != &second[0] {
		t.Error("nothing changed, and the next call has limits of its own")
	}
	caught, err := l.policy.rules.catchUp(t.Context(), first, byID("k"), 0, 7)
	if err != nil || caught[0].version != 7 || first[0].version != 0 {
		t.Errorf("caught up with version %d, %v, the call before has %d; want 7 and 0", caught[0].version, err, first[0].version)
	}
	if _, err := l.SetLimit(t.Context(), Sliding(5, time.Minute), SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	if last := limits(); last[0].Limit != Sliding(5, time.Minute) || first[0].Limit != Sliding(2, time.Minute) {
		t.Errorf("the limit in force is %v, that of the first call %v", last[0].Limit, first[0].Limit)
	}
}

// hangingLimits does not answer for an hour.
type hangingLimits struct {
	limitStore
	read atomic.Int32
}

func (s *hangingLimits) stored(context.Context, string) storedLimit {
	s.read.Add(1)
	time.Sleep(time.Hour)
	return storedLimit{}
}

// Callers whose contexts end soon begin one reading after the other. One that has time waits for these for a bounded time all the same,
// and each of the others until its own context ends.
func TestVirtualReadingsOfTheLimitAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := NewLocal("sms", Sliding(2, time.Minute), Config{})
		if err != nil {
			t.Fatal(err)
		}
		hanging := &hangingLimits{limitStore: l.limits}
		l.limits, l.remembered.always, l.remembered.bounded = hanging, false, true
		var wg sync.WaitGroup
		began := time.Now()
		for range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				asked := time.Now()
				_, err := l.inForce(ctx)
				if took := time.Since(asked); took > 300*time.Millisecond || !errors.Is(err, ErrUnavailable) {
					t.Errorf("%v after %v, want %v when the context ends, or before", err, took, ErrUnavailable)
				}
			})
			if time.Since(began) == 0 {
				synctest.Wait()
				wg.Go(func() {
					_, err := l.inForce(t.Context())
					if took := time.Since(began); took > 2*limitPatience || !errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v after %v, want %v after %v at most", err, took, ErrUnavailable, 2*limitPatience)
					}
				})
			}
			time.Sleep(250 * time.Millisecond)
		}
		wg.Wait()
		if n := hanging.read.Load(); n < 2 {
			t.Errorf("the limit was read %d times, want several: one reading that hangs must not keep others from asking", n)
		}
		time.Sleep(2 * time.Hour) // for the readings to end
	})
}
