package throttle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// 38: a wake-up that is lost leaves who waits hanging: it is a hint, and the end of
// the nearest lease is looked at without it.
func TestPitfall38LostWakeUp(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Concurrent(1, 10*time.Second), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
		holder, waiter := limiter(), limiter() // another process: its bells can't be rung by a release
		d, err := holder.TryAcquire(t.Context(), key, 1)
		if err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
		time.AfterFunc(3*time.Second, func() { _, _ = holder.Policy().Release(context.Background(), d) })
		began := time.Now()
		if err := waiter.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < 3*time.Second || waited > 4*time.Second+100*ms {
			t.Errorf("it waited %v, want little more than 3s", waited)
		}
	})
}

// 39: permits are made out of nothing by the release of what has ended, or never was.
func TestPitfall39ReleaseInflates(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("slots", throttle.Concurrent(2, time.Second))
	p := l.Policy()
	a, b := s.try(l, 1), s.try(l, 1)
	s.release(p, a)
	s.release(p, a)
	unknown := b
	unknown.Token = throttle.NewToken()
	s.release(p, unknown)
	s.want(s.try(l, 1), true, 0)
	s.want(s.try(l, 1), false, time.Second)
	s.at(time.Minute) // all have ended
	s.release(p, b)
	s.want(s.try(l, 1), true, time.Minute)
	s.want(s.try(l, 1), true, time.Minute)
	s.want(s.try(l, 1), false, time.Minute+time.Second)
}

// 40: who waits polls, and a place stays empty until it does: a release names the next.
func TestPitfall40NoWakeUpOnRelease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("slots", throttle.Concurrent(1, time.Hour))
	d := s.try(l, 1)
	s.want(s.job(l, "a", 1), false, time.Hour)
	s.at(time.Second)
	s.release(l.Policy(), d, "a")
	s.want(s.job(l, "a", 1), true, time.Second)
}

// 41: a lease ends while its holder still runs: the holder's context ends with a
// typed cause before anybody else gets the place, and the fence tells them apart.
func TestPitfall41LeaseEndsWhileHolderRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := miniClient(t, m)
		l := newLimiter(t, rdb, "slots", throttle.Concurrent(1, 3*time.Second), throttle.Config{})
		p := l.Policy()
		d, err := l.TryAcquire(t.Context(), key, 1)
		if err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
		held, release := p.Hold(t.Context(), d)
		time.Sleep(20 * time.Second) // virtual: it is renewed
		if held.Err() != nil {
			t.Fatalf("the context of a lease that is renewed ended: %v", context.Cause(held))
		}
		m.SetError("LOADING nobody can renew")
		<-held.Done()
		if !errors.Is(context.Cause(held), throttle.ErrLeaseLost) {
			t.Errorf("cause = %v, want %v", context.Cause(held), throttle.ErrLeaseLost)
		}
		m.SetError("")
		other, err := l.TryAcquire(t.Context(), key, 1)
		if err != nil || other.Granted {
			t.Fatalf("TryAcquire = %v, %v: the holder heard of it too late", other, err)
		}
		time.Sleep(other.Wait())
		other, err = l.TryAcquire(t.Context(), key, 1)
		if err != nil || !other.Granted || other.Fence <= d.Fence {
			t.Errorf("TryAcquire = %v with fence %d, %v, want one above %d", other, other.Fence, err, d.Fence)
		}
		_, _ = release(t.Context())
	})
}

// 42: of several rules the first are charged, though a later one refuses.
func TestPitfall42PartialCharge(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(5, time.Hour)), s.limiter("provider", throttle.Sliding(1, time.Hour)))
	r := throttle.Request{Key: key, Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}}
	for i := range 10 {
		d, err := p.TryAcquire(t.Context(), r)
		if err != nil || d.Granted != (i == 0) {
			t.Fatalf("TryAcquire %d = %v, %v", i, d, err)
		}
	}
	s.available(p, r, 4, 0)
}
