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

// The answer that tells of a lease is lost, and comes with a copy of the call when most of the lease is
// over. Nobody can renew it then: the holder hears that it may be lost before it ends.
func TestHolderOfARepeatedGrantTrustsItsLeaseNoLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease = 30 * time.Second
		_, m := redistest.Mini(t)
		p := newLimiter(t, miniClient(t, m), "slots", throttle.Concurrent(1, lease), throttle.Config{}).Policy()
		r := throttle.Request{Key: key, Cost: 1, Job: "a", Token: throttle.NewToken()}
		began := time.Now()
		first, err := p.Redeem(t.Context(), r)
		if err != nil || !first.Granted {
			t.Fatalf("Redeem = %v, %v, want a grant", first, err)
		}
		time.Sleep(20 * time.Second) // of the bubble
		d, err := p.Redeem(t.Context(), r)
		if err != nil || !d.Granted || !d.At.Equal(first.At) {
			t.Fatalf("Redeem again = %v, %v, want the grant of before, at %v", d, err, first.At)
		}
		held, release := p.Hold(t.Context(), d)
		m.SetError("ERR an outage")
		<-held.Done()
		if took := time.Since(began); !errors.Is(context.Cause(held), throttle.ErrLeaseLost) || took > lease {
			t.Errorf("the holder hears %v %v after the grant, want %v within %v", context.Cause(held), took, throttle.ErrLeaseLost, lease)
		}
		m.SetError("")
		_, _ = release(t.Context())
	})
}
