package throttle_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// 25, 26: everything that expired is listed or removed at once: too many for
// Lua, and too long for Redis.
func TestPitfall25MassExpiry(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const n = 100_000
	l := s.limiter("sms", throttle.Sliding(n, time.Minute))
	for range 2 {
		s.want(s.try(l, n), true, s.now.Sub(start))
		s.at(s.now.Sub(start) + time.Minute)
		if got := commands(t, s.raw, func() { s.try(l, 1) }); got > 25 {
			t.Errorf("%d commands with %d permits expired, want 25 at most", got, n)
		}
		s.at(s.now.Sub(start) + time.Minute)
	}
}

// 26: what expires at once is not cleared away at once.
func TestPitfall26MassExpiryBlocks(t *testing.T) { TestPitfall25MassExpiry(t) }

// 32: under contention nobody gets through, or too many.
func TestPitfall32Contention(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		l := newLimiter(t, server.Client(t), "sms", throttle.Sliding(100, time.Hour), throttle.Config{})
		for range 16 {
			wg.Go(func() {
				for range 10 {
					d, err := l.TryAcquire(context.Background(), key, 1)
					if err != nil {
						t.Error(err)
					} else if d.Granted {
						granted.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := granted.Load(); n != 100 {
		t.Errorf("%d of 640 granted, want 100", n)
	}
}

// 33: keys of one script in several slots.
func TestPitfall33CrossSlot(t *testing.T) { TestKeysOfAnyKind(t) }

// 34: the server forgets its scripts.
func TestPitfall34ForgottenScripts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(10, time.Minute), throttle.Config{})
	for i := range 3 {
		for range 2 {
			if d, err := l.Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"}); err != nil || !d.Granted {
				t.Errorf("Redeem = %v, %v, want granted", d, err)
			}
		}
		if got := throttle.Refresh(t.Context(), rdb, []throttle.BookingRef{{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "a", Costs: []int{1}}})[0]; got.Err != nil {
			t.Error(got.Err)
		}
		s, err := l.Peek(t.Context(), key, 0)
		if err != nil || s.Available != 10-2*(i+1) {
			t.Errorf("Available = %d, %v, want %d: each charged once", s.Available, err, 10-2*(i+1))
		}
		rdb.ScriptFlush(t.Context())
	}
}
