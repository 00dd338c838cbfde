package throttle_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// The answer that tells of a lease comes when the lease has ended and is somebody
// else's: the holder hears so at once, and not when it first renews.
func TestHoldOfALeaseThatEndedOnItsWay(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const lease = time.Second
	limit := throttle.Concurrent(1, lease)
	slow := redis.NewClient(srv.ClientOptions())
	t.Cleanup(func() { _ = slow.Close() })
	var armed atomic.Bool
	other := newLimiter(t, srv.Client(t), "slots", limit, throttle.Config{}).Policy()
	late := newLimiter(t, slow, "slots", limit, throttle.Config{}).Policy()
	warm := throttle.Request{Key: "warm", Cost: 1}
	if _, err := late.TryAcquire(t.Context(), warm); err != nil {
		t.Fatal(err)
	}
	slow.AddHook(&calls{after: func() {
		if armed.CompareAndSwap(true, false) {
			if d, err := other.Acquire(context.Background(), throttle.Request{Key: key, Cost: 1}); err != nil || !d.Granted {
				t.Errorf("Acquire = %v, %v, want a grant", d, err)
			}
		}
	}})
	armed.Store(true)
	d, err := late.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 1})
	if err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	held, release := late.Hold(t.Context(), d)
	defer func() { _, _ = release(context.Background()) }()
	select {
	case <-held.Done():
		if !errors.Is(context.Cause(held), throttle.ErrLeaseLost) {
			t.Errorf("the context ends with %v, want %v", context.Cause(held), throttle.ErrLeaseLost)
		}
	case <-time.After(lease / 5):
		t.Error("two hold the only lease, and none of them knows")
	}
}
