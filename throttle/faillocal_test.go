package throttle_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/throttle"
)

// The limit holds in this process; places and grants made here are redeemed and
// given back here, and Redis knows nothing of them.
func TestFailLocal(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		first := mustTry(t, l, true, throttle.FailLocal)
		d := mustTry(t, l, false, throttle.FailLocal)
		if d.Wait() != time.Minute {
			t.Errorf("Wait = %v, want a minute", d.Wait())
		}
		for range 2 { // as often as one likes
			if _, err := l.Refund(t.Context(), first.Request); err != nil {
				t.Errorf("Refund = %v, want nil", err)
			}
		}
		second := mustTry(t, l, true, throttle.FailLocal)
		begin := time.Now()
		if err := l.Acquire(t.Context(), key, 1); err != nil || time.Since(begin) < time.Minute || time.Since(begin) > time.Minute+ms {
			t.Errorf("Acquire = %v after %v, want nil after a minute", err, time.Since(begin))
		}
		r := throttle.Request{Key: key, Cost: 1, Job: "a"}
		if d, err := l.Redeem(t.Context(), r); err != nil || d.Granted || d.Fallback != throttle.FailLocal {
			t.Errorf("Redeem = %v, %v, want a place here", d, err)
		}
		r.Cost = 2
		if _, err := l.Redeem(t.Context(), r); !errors.Is(err, throttle.ErrExceedsLimit) {
			t.Errorf("Redeem(2) = %v, want %v", err, throttle.ErrExceedsLimit)
		}
		c.pulled.Store(false)
		time.Sleep(time.Second)
		if got, err := l.Peek(t.Context(), key, 10); err != nil || got.Available != 1 || got.Waiting != 0 {
			t.Errorf("Peek = %+v, %v, want a Redis that knows nothing", got, err)
		}
		mustTry(t, l, true, throttle.FailClosed)
		if _, err := l.Refund(t.Context(), second.Request); err != nil {
			t.Errorf("Refund = %v, want nil", err)
		}
		mustTry(t, l, false, throttle.FailClosed) // it was given back where it was made
	})
}

// Who waits when Redis goes away goes on here, and when it is back goes on there.
func TestWaitersCrossOver(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, 10*time.Second), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		mustTry(t, l, true, throttle.FailLocal)
		done := make(chan error)
		go func() { done <- l.Acquire(t.Context(), key, 1) }()
		v, err := l.Reserve(t.Context(), key, 1)
		if err != nil || v.Granted() {
			t.Fatalf("Reserve = %v, %v, want a place", v, err)
		}
		c.pulled.Store(false)
		begin := time.Now()
		if err := <-done; err != nil || time.Since(begin) > 2*time.Second {
			t.Errorf("Acquire = %v after %v, want what Redis has at once", err, time.Since(begin))
		}
		c.pulled.Store(true)
		if d, err := v.Take(t.Context()); err != nil || d.Fallback != throttle.FailLocal || d.Granted {
			t.Errorf("Take = %v, %v, want the place here", d, err)
		}
		c.pulled.Store(false)
		if err := v.Wait(t.Context()); err != nil || time.Since(begin) < 9*time.Second || time.Since(begin) > 12*time.Second {
			t.Errorf("Wait = %v after %v, want one window after the first", err, time.Since(begin))
		}
	})
}

// A job that Redis answered has no place here any more, should Redis go again.
func TestPlacesHereEndWhenRedisIsBack(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		redeem := func(job string, granted bool, by throttle.FailureMode) {
			t.Helper()
			d, err := l.Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: job})
			if err != nil || d.Granted != granted || d.Fallback != by {
				t.Errorf("Redeem(%s) = %v, %v, want granted = %v by %v", job, d, err, granted, by)
			}
		}
		redeem("a", true, throttle.FailLocal)
		redeem("b", false, throttle.FailLocal)
		redeem("c", false, throttle.FailLocal)
		c.pulled.Store(false)
		time.Sleep(time.Minute - time.Second)
		redeem("b", true, throttle.FailClosed)
		c.pulled.Store(true)
		redeem("c", false, throttle.FailLocal)
		time.Sleep(time.Second)
		redeem("c", true, throttle.FailLocal) // nobody is before it
	})
}

// Whoever leaves while Redis hangs does not wait for it.
func TestLeavingDoesNotWaitForRedis(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		mustTry(t, l, true, throttle.FailLocal)
		c.hang.Store(int64(500 * ms))
		ctx, leave := context.WithCancel(t.Context())
		result := make(chan error)
		go func() { result <- l.Acquire(ctx, key, 1) }()
		synctest.Wait()
		if err := l.AcquireWithin(t.Context(), key, 1, time.Minute); !errors.Is(err, throttle.ErrTooLate) {
			t.Errorf("AcquireWithin = %v, want %v: somebody waits", err, throttle.ErrTooLate)
		}
		begin := time.Now()
		leave()
		if err := <-result; !errors.Is(err, context.Canceled) || time.Since(begin) > 0 {
			t.Errorf("Acquire = %v after %v, want %v at once", err, time.Since(begin), context.Canceled)
		}
		synctest.Wait()
		if err := l.AcquireWithin(t.Context(), key, 1, time.Minute); err != nil {
			t.Errorf("AcquireWithin = %v, want nil: the place is free", err)
		}
	})
}

// Who waits here while Redis hangs comes at its instant: only the one who tries
// Redis again waits for it.
func TestWaitersHereDoNotWaitForRedis(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(5, 600*ms), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		c.looks.Store(true)
		c.hang.Store(int64(3 * time.Second))
		if err := l.Acquire(t.Context(), key, 5); err != nil { // finds out
			t.Fatal(err)
		}
		begin := time.Now()
		var wg sync.WaitGroup
		var late atomic.Int64
		for range 5 {
			wg.Go(func() {
				if err := l.Acquire(t.Context(), key, 1); err != nil {
					t.Errorf("Acquire = %v, want nil", err)
				}
				if time.Since(begin) > 600*ms {
					late.Add(1)
				}
			})
		}
		wg.Wait()
		if n := late.Load(); n > 1 {
			t.Errorf("%d of 5 came after their instant, want the one who tried", n)
		}
		time.Sleep(10 * time.Second) // what is taken back
	})
}

// The token of a call that is taken back in Redis is refused there: the answer
// of what stood in for it names another.
func TestFallbackNamesATokenThatIsGood(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		c.pulled.Store(false)
		if _, err := l.Cancel(t.Context(), throttle.Request{Key: "other", Cost: 1, Job: "a"}); err != nil { // that script is known too
			t.Fatal(err)
		}
		c.pulled.Store(true)
		mustTry(t, l, true, throttle.FailLocal)
		time.Sleep(time.Second) // so that the next one asks Redis
		c.deaf.Store(true)
		r := throttle.Request{Key: key, Cost: 1, Job: "a", Token: throttle.NewToken()}
		d, err := l.Redeem(t.Context(), r)
		if err != nil || d.Granted || d.Fallback != throttle.FailLocal {
			t.Fatalf("Redeem = %v, %v, want a place here", d, err)
		}
		synctest.Wait() // it was taken back
		c.deaf.Store(false)
		c.pulled.Store(false)
		time.Sleep(time.Second)
		if d, err := l.Redeem(t.Context(), r); !errors.Is(err, throttle.ErrWithdrawn) {
			t.Errorf("Redeem by the old token = %v, %v, want %v", d, err, throttle.ErrWithdrawn)
		}
		if d, err := l.Redeem(t.Context(), d.Request); err != nil || !d.Granted || d.Fallback != throttle.FailClosed {
			t.Errorf("Redeem = %v, %v, want a grant", d, err)
		}
	})
}
