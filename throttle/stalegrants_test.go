package throttle_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// A caller whose grants come too late again and again pauses ever longer before it asks again.
func TestStaleGrantsAreAskedForEverLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		l, err := throttle.NewLocal("sms", throttle.Sliding(1000, time.Second), throttle.Config{Observer: event.Observer{
			Granted: func(context.Context, event.Granted) {
				asked++
				time.Sleep(101 * time.Millisecond)
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.Acquire(ctx, key, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire = %v, want that no grant came in time", err)
		}
		if asked > 65 {
			t.Errorf("it asked %d times in a minute, want about once a second", asked)
		}
		if s, err := l.Peek(t.Context(), key, 1); err != nil || s.Available != 1000 || s.Waiting != 0 {
			t.Errorf("Peek = %+v, %v, want nothing left behind", s, err)
		}
	})
}

// A task whose grants come too late again and again gives its worker back, for a moment that grows.
func TestTaskIsDeferredWhenGrantsComeTooLate(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(3, time.Minute))
	h := &host{late: 9}
	ctx := throttle.ForWorkers.WithHost(t.Context(), h)
	for i := range 3 {
		if err := l.Acquire(ctx, key, 1); !errors.Is(err, errDeferred) {
			t.Fatalf("Acquire = %v, want %v", err, errDeferred)
		}
		if len(h.asked) != 3*(i+1) || len(h.putOff) != i+1 {
			t.Fatalf("asked %d times, and put off %d times, want %d and %d", len(h.asked), len(h.putOff), 3*(i+1), i+1)
		}
		d := h.putOff[i]
		if got, want := d.At.Sub(d.Now), 50*ms<<i; got != want || !d.Granted || d.Wait() > want {
			t.Errorf("put off for %v, want %v and the grant that was given back", got, want)
		}
	}
	if err := l.Acquire(ctx, key, 1); err != nil {
		t.Fatal(err)
	}
	h.late = len(h.settled) + 3
	if err := l.Acquire(ctx, key, 1); !errors.Is(err, errDeferred) {
		t.Fatalf("Acquire = %v, want %v", err, errDeferred)
	}
	if d := h.putOff[3]; d.At.Sub(d.Now) != 50*ms {
		t.Errorf("put off for %v after a grant in time, want %v", d.At.Sub(d.Now), 50*ms)
	}
}

// A grant comes too late, and Redis goes away before it is given back. It comes back with Redis, although the caller has given up.
func TestLateGrantComesBackWithRedis(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb, away := miniClient(t, m), &unreachable{}
		limit := throttle.Sliding(1, 24*time.Hour)
		far, near := newLimiter(t, rdb, "phone", limit, throttle.Config{}), newLimiter(t, miniClient(t, m), "phone", limit, throttle.Config{})
		if err := far.Acquire(t.Context(), "other", 1); err != nil { // the server has the script
			t.Fatal(err)
		}
		rdb.AddHook(away)
		var once sync.Once
		rdb.AddHook(&calls{after: func() {
			once.Do(func() {
				away.on.Store(true)
				time.Sleep(1500 * ms)
			})
		}})
		if err := far.Acquire(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
			t.Fatalf("Acquire = %v, want %v", err, throttle.ErrUnavailable)
		}
		time.Sleep(10 * time.Minute) // Redis has forgotten the token
		if n, err := near.Available(t.Context(), key); err != nil || n != 0 {
			t.Fatalf("%d left, %v, want none while Redis is away for the caller", n, err)
		}
		away.on.Store(false)
		time.Sleep(time.Minute)
		if n, err := near.Available(t.Context(), key); err != nil || n != 1 {
			t.Errorf("%d left, %v, want 1", n, err)
		}
	})
}
