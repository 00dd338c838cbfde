package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// What this process counted while Redis was away is settled here too.
func TestBillOfALocalGrant(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	opts := srv.ClientOptions()
	opts.MaxRetries, opts.DialerRetries = -1, 1
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	p := newLimiter(t, rdb, "r", throttle.Sliding(6, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}).Policy()
	srv.Kill()
	d, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 5})
	if err != nil || !d.Granted || d.Fallback != throttle.FailLocal {
		t.Fatalf("TryAcquire = %v, %v, want a local grant", d, err)
	}
	// it does not settle by a limit that was heard a moment ago
	if _, err := p.Rules()[0].LimitInForce(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
		t.Fatalf("LimitInForce = %v, want %v", err, throttle.ErrUnavailable)
	}
	if _, err := p.Charge(d).Adjust(t.Context(), map[string]int{"r": 2}); err != nil {
		t.Fatalf("Settle: %v", err)
	}
	for _, want := range []bool{true, false} {
		d, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 4})
		if err != nil || d.Granted != want {
			t.Errorf("TryAcquire = %v, %v, want granted %v: 2 of 6 are paid", d, err, want)
		}
	}
}
