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

// What the limit would refuse runs, and says when it would have: only what the
// limit admits is spent.
func TestShadowLetsRun(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	limit := throttle.Sliding(2, time.Minute)
	l := newLimiter(t, s.rdb, "sms", limit, throttle.Config{Shadow: true})
	want := func(op string, d throttle.Decision, err error, shadowed bool, at time.Duration) {
		t.Helper()
		if err != nil || !d.Granted || d.Shadowed != shadowed || d.At.Sub(start) != at || d.Err() != nil || d.Wait() > 0 || shadowed && throttle.ForWorkers.Stale(d) {
			t.Errorf("%s = %v, %v (shadowed %v, at %v), want a grant, shadowed %v, at %v", op, d, err, d.Shadowed, d.At.Sub(start), shadowed, at)
		}
	}
	r := throttle.Request{Key: key, Cost: 1, Job: "a"}
	d, err := l.TryAcquire(t.Context(), key, 1)
	want("TryAcquire", d, err, false, 0)
	d, err = l.Policy().Redeem(t.Context(), r)
	want("Redeem", d, err, false, 0)
	for i, at := range []time.Duration{10 * time.Second, 20 * time.Second} {
		s.at(at)
		d, err = l.TryAcquire(t.Context(), key, 1)
		want("TryAcquire", d, err, true, time.Minute)
		d, err = l.Policy().Redeem(t.Context(), r)
		want("Redeem", d, err, true, time.Minute)
		if _, err := l.Policy().Refund(t.Context(), d.Request); err != nil {
			t.Errorf("Refund = %v, want nil", err)
		}
		r.MaxWait = time.Second // too late
		d, err = l.Policy().Redeem(t.Context(), r)
		want("Redeem", d, err, true, time.Minute)
		r.MaxWait = 0
		v, err := l.Policy().Reserve(t.Context(), throttle.Request{Key: key, Cost: 1, MaxWait: time.Second})
		if err != nil || !v.Granted() || v.Delay() != 0 || v.At().Sub(start) != time.Minute {
			t.Errorf("Reserve = %v, %v, want one that may go", v, err)
		}
		if b, err := l.Policy().Book(t.Context(), r); err != nil || b.Wait() > 0 {
			t.Errorf("Book = %v, %v, want no wait", b, err)
		}
		if err := errors.Join(l.Acquire(t.Context(), key, 1), acquireWithin(t.Context(), l, key, 1, 0)); err != nil {
			t.Errorf("Acquire = %v, want nil", err)
		}
		d, err = l.TryAcquire(t.Context(), key, 3)
		if err != nil || !d.Shadowed || !d.At.IsZero() {
			t.Errorf("TryAcquire(3) = %v, %v, want a grant that never was", d, err)
		}
		s.waiting(l, 0)
		n := uint64(i + 1)
		// TooLate: Redeem, Reserve, Acquire.
		if got, want := l.Policy().Counts(), (throttle.Counts{Granted: 2, Shadowed: 7 * n, TooLate: 3 * n, Exceeded: n}); got != want {
			t.Errorf("Counts = %+v, want %+v", got, want)
		}
	}
	if _, err := l.TryAcquire(t.Context(), key, 0); !errors.Is(err, throttle.ErrInvalidCost) {
		t.Errorf("TryAcquire(0) = %v, want %v", err, throttle.ErrInvalidCost)
	}
	s.at(time.Minute)
	d, err = l.TryAcquire(t.Context(), key, 2)
	want("TryAcquire", d, err, false, time.Minute)
}

// A job that stood in the line before runs, and its place goes.
func TestShadowLeavesTheLine(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	limit := throttle.Sliding(1, time.Minute)
	before, l := s.limiter("sms", limit), newLimiter(t, s.rdb, "sms", limit, throttle.Config{Shadow: true})
	s.try(before, 1)
	for _, maxWait := range []time.Duration{0, time.Second} {
		s.want(s.job(before, "a", 1), false, time.Minute)
		d, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a", MaxWait: maxWait})
		if err != nil || !d.Shadowed {
			t.Errorf("Redeem = %v, %v, want a grant", d, err)
		}
		s.waiting(l, 0)
	}
}

// Neither a Redis that is away nor a state that can't be read fails anything.
func TestShadowNeverFails(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{Shadow: true}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		for range 3 {
			if d := mustTry(t, l, true, throttle.FailOpen); d.Shadowed {
				t.Errorf("%v is shadowed, want it unknown what the limit would have said", d)
			}
		}
		if err := l.Acquire(t.Context(), key, 1); err != nil {
			t.Errorf("Acquire = %v, want nil", err)
		}
		if d, err := l.TryAcquire(t.Context(), key, 2); err != nil || !d.Shadowed {
			t.Errorf("TryAcquire(2) = %v, %v, want a grant", d, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Acquire(ended, key, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire = %v, want the caller's own %v", err, context.Canceled)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{Shadow: true})
		if err := rdb.Set(t.Context(), "hw:{"+key+"}:sms", "\xffnewer", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Shadowed || l.Policy().Counts().Failed != 1 {
			t.Errorf("TryAcquire = %v, %v, want a grant and a failure counted", d, err)
		}
	})
}

// In shadow and with a stand-in both: the stand-in is only watched.
func TestShadowOfALocalLimit(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{Shadow: true, OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		mustTry(t, l, true, throttle.FailLocal)
		if d := mustTry(t, l, true, throttle.FailLocal); !d.Shadowed {
			t.Errorf("%v, want it shadowed", d)
		}
	})
}

// A worker sees grants and never defers.
func TestShadowInsideAWorker(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := newLimiter(t, s.rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{Shadow: true})
	h := &host{maxWait: time.Second}
	for range 3 {
		if err := l.Acquire(throttle.ForWorkers.WithHost(t.Context(), h), key, 1); err != nil {
			t.Errorf("Acquire = %v, want nil", err)
		}
	}
	if len(h.settled) != 3 || h.settled[0].Shadowed || !h.settled[2].Shadowed {
		t.Errorf("settled %v, want three grants, the first by the limit", h.settled)
	}
}
