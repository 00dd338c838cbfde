package throttle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// A release that Redis did not answer leaves the lease standing. The next call of the same release ends
// it, and one after that ends nobody else's.
func TestHeldLeaseIsReleasedAgainAfterAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		l := newLimiter(t, miniClient(t, m), "slots", throttle.Concurrent(1, time.Hour), throttle.Config{})
		p := l.Policy()
		grant := func(want bool) throttle.Decision {
			t.Helper()
			d, err := l.TryAcquire(t.Context(), key, 1)
			if err != nil || d.Granted != want {
				t.Fatalf("TryAcquire = %v, %v, want granted: %v", d, err, want)
			}
			return d
		}
		d := grant(true)
		held, release := p.Hold(t.Context(), d)
		m.SetError("ERR an outage")
		if _, err := release(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("release = %v, want %v", err, throttle.ErrUnavailable)
		}
		if cause := context.Cause(held); !errors.Is(cause, context.Canceled) {
			t.Errorf("the context ends with %v, want %v", cause, context.Canceled)
		}
		m.SetError("")
		grant(false) // the lease stands
		if _, err := release(t.Context()); err != nil {
			t.Fatalf("release again = %v", err)
		}
		other := grant(true)
		if promoted, err := release(t.Context()); err != nil || promoted != nil {
			t.Errorf("release after its success = %v, %v, want nothing", promoted, err)
		}
		if _, err := p.Release(t.Context(), d); err != nil { // as a pool repeats a release whose answer was lost
			t.Error(err)
		}
		grant(false)
		if err := p.Renew(t.Context(), []throttle.Decision{other})[0]; err != nil {
			t.Errorf("another's lease can't be renewed any more: %v", err)
		}
	})
}
