package throttle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/throttle"
)

// The instant of a caller that waits for a slot is the end of a lease, and the slot may be free before. So
// a caller with time left waits until that is used up. Then it leaves no place behind.
func TestAcquireWaitsForASlot(t *testing.T) {
	t.Parallel()
	const lease, never = 30 * time.Second, time.Hour
	for name, c := range map[string]struct {
		timeout, maxWait time.Duration // of the context, and of the request
		freed            time.Duration // when the holder is done
		want             error
		after            time.Duration
	}{
		"a slot is free before the context ends": {timeout: 5 * time.Second, freed: 100 * ms, after: 100 * ms},
		"a slot is free within MaxWait":          {timeout: never, maxWait: 5 * time.Second, freed: 100 * ms, after: 100 * ms},
		"the context ends":                       {timeout: 300 * ms, freed: never, want: context.DeadlineExceeded, after: 300 * ms},
		"MaxWait is over":                        {timeout: never, maxWait: 300 * ms, freed: never, want: throttle.ErrTooLate, after: 300 * ms},
		"there is no time":                       {timeout: never, maxWait: -1, freed: never, want: throttle.ErrTooLate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLocal(t, throttle.Concurrent(1, lease))
				p := l.Policy()
				holder, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 1})
				if err != nil || !holder.Granted {
					t.Fatalf("TryAcquire = %v, %v, want a grant", holder, err)
				}
				done := time.AfterFunc(c.freed, func() {
					if _, err := p.Release(t.Context(), holder); err != nil {
						t.Error(err)
					}
				})
				defer done.Stop()
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				began := time.Now()
				d, err := p.Acquire(ctx, throttle.Request{Key: key, Cost: 1, MaxWait: c.maxWait})
				if took := time.Since(began); !errors.Is(err, c.want) || d.Granted != (c.want == nil) || took < c.after || took > c.after+50*ms {
					t.Errorf("Acquire = %v, %v after %v, want %v after %v", d, err, took, c.want, c.after)
				}
				if s, err := l.Peek(t.Context(), key, 10); err != nil || s.Waiting != 0 {
					t.Errorf("Peek = %+v, %v, want that nobody waits", s, err)
				}
			})
		})
	}
}
