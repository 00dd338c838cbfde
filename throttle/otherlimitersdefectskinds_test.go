package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// Defects of other limiters that each algorithm can have in a way of its own: see
// otherlimitersdefects_test.go.

// A key that ends by its TTL is one that would not be missed: then all can
// be had, or what was taken is paid.
func TestLifeOfEachKind(t *testing.T) {
	t.Parallel()
	for _, window := range []time.Duration{time.Second, 1234567 * us, ms + us} {
		perKind(t, window, func(s *scene, l *throttle.Limiter) {
			most := min(7, l.Limit().MaxCost())
			before := time.Now()
			s.try(l, most)
			s.drain(l)
			life := s.life(l.Ledger(key))
			life += time.Since(before).Truncate(us) // what has passed by the server's own clock
			if life < l.Limit().Window() {
				s.Errorf("%v: the key lives %v, want at least a window", l.Limit(), life)
			}
			s.at(life)
			if most == 7 {
				most = 1 // it may take 7 whenever it may take 1
			}
			s.want(s.try(l, most), true, life)
		})
	}
}

// Whatever the clock does, nothing goes before the newest grant, and
// nothing is credited.
func TestTimeBackwardOfEachKind(t *testing.T) {
	t.Parallel()
	perKind(t, time.Second, func(s *scene, l *throttle.Limiter) {
		const at = 10 * time.Second
		s.at(at)
		s.want(s.try(l, 1), true, at)
		s.at(at - time.Second)
		if d := s.try(l, 1); d.Granted || d.At.Sub(start) < at {
			s.Errorf("%v: before the newest grant it answers %v", l.Limit(), d)
		}
		s.at(at)
		more := s.drain(l)
		for _, back := range []time.Duration{at - us, time.Second, -time.Hour} {
			if l.Limit().Kind() == "calendar" && back < 0 {
				continue // another day of the calendar
			}
			s.at(back)
			s.want(s.try(l, 1), false, more.At.Sub(start))
		}
		s.at(more.At.Sub(start))
		s.want(s.try(l, 1), true, more.At.Sub(start))
	})
}

// A caller that is refused pays nothing, however often it asks.
func TestRefusedPaysInNoKind(t *testing.T) {
	t.Parallel()
	perKind(t, time.Second, func(s *scene, l *throttle.Limiter) {
		next := s.drain(l).At.Sub(start)
		for i := range 20 {
			s.at(time.Duration(i) * next / 20)
			s.want(s.try(l, 1), false, next)
		}
		s.at(next)
		s.want(s.try(l, 1), true, next)
	})
}

// Known defect: a fraction is told as a permit. Here exactly the permits that Peek tells can be
// had. Only smooth gives one more, which is paid later.
func TestAvailableIsWhole(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		redistest.Flush(t, s.raw)
		limit := drawLimit(rt, "limit", time.Minute)
		if limit.Validate() != nil {
			rt.Skip("these numbers go together in no limit")
		}
		l := s.limiter("rule", limit)
		now := time.Duration(0)
		for range rapid.IntRange(1, 6).Draw(rt, "grants") {
			s.at(now)
			s.try(l, rapid.IntRange(1, min(limit.Permits(), limit.MaxCost())).Draw(rt, "cost"))
			now += time.Duration(rapid.Int64Range(0, limit.Window().Microseconds()).Draw(rt, "later")) * us
		}
		s.at(now)
		state, err := l.Peek(ctx, key, 0)
		if err != nil {
			rt.Fatal(err)
		}
		for i := range state.Available {
			if d := s.try(l, 1); !d.Granted {
				rt.Fatalf("%v: %d available, and number %d is refused", limit, state.Available, i+1)
			}
		}
		if f := family(limit); f == "smooth" && state.Available > 0 {
			s.try(l, 1)
		}
		if d := s.try(l, 1); d.Granted {
			rt.Fatalf("%v: %d available, and one more is granted", limit, state.Available)
		}
	})
}

// Known defect: after a change from an hour to a second somebody is blocked for the hour.
// Leaky, smooth and warmup alone keep, among themselves, the time that is owed:
// that is what they are, see Guava's setRate.
func TestRateChangeKeepsNoOldDebt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, before := range kindsOf(time.Hour) {
		for j, after := range kindsOf(time.Second) {
			rule := fmt.Sprint("rule", i, "-", j)
			s.at(0)
			s.drain(s.limiter(rule, before))
			owed := s.try(s.limiter(rule, before), 1).At
			s.at(time.Second)
			d := s.try(s.limiter(rule, after), 1)
			if f := family(after); f == family(before) && (f == "smooth" || f == "warmup") {
				s.want(d, false, owed.Sub(start))
			} else if wait := d.At.Sub(s.now); wait > 2*time.Second && after.Kind() != "calendar" {
				t.Errorf("%v, then %v: wait %v, want 2 s at most", before, after, wait)
			}
		}
	}
}

// No kind takes a limit of zero.
func TestZeroOfEachKind(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{
		{},
		throttle.Sliding(0, time.Second), throttle.Sliding(1, 0),
		throttle.Fixed(0, time.Second), throttle.Fixed(1, 0),
		throttle.Calendar(0, throttle.Day, "UTC"), throttle.Calendar(1, 0, "UTC"),
		throttle.Bucket(0, time.Second, 1), throttle.Bucket(1, 0, 1), throttle.Bucket(1, time.Second, 0),
		throttle.SteppedBucket(0, time.Second, 1), throttle.SteppedBucket(1, 0, 1), throttle.SteppedBucket(1, time.Second, 0),
		throttle.GCRA(0, time.Second, 1), throttle.GCRA(1, 0, 1), throttle.GCRA(1, time.Second, 0),
		throttle.Leaky(0, time.Second), throttle.Leaky(1, 0),
		throttle.Smooth(0, time.Second, 1), throttle.Smooth(1, 0, 1), throttle.Smooth(1, time.Second, -1),
		throttle.WarmUp(0, time.Second, time.Second, 3), throttle.WarmUp(1, 0, time.Second, 3),
		throttle.WarmUp(1, time.Second, 0, 3), throttle.WarmUp(1, time.Second, time.Second, 0),
	} {
		if err := limit.Validate(); !errors.Is(err, throttle.ErrInvalidLimit) {
			t.Errorf("%v: %v, want %v", limit, err, throttle.ErrInvalidLimit)
		}
	}
}

// A cost of less than one is an error in each kind, and gives no permits.
func TestNegativeCostOfEachKind(t *testing.T) {
	t.Parallel()
	perKind(t, time.Second, func(s *scene, l *throttle.Limiter) {
		next := s.drain(l).At.Sub(start)
		for _, cost := range []int{0, -1, -5, -1 << 62} {
			r := throttle.Request{Key: key, Cost: cost, Job: "a", Token: throttle.NewToken()}
			_, try := l.TryAcquire(s.Context(), key, cost)
			_, redeem := l.Policy().Redeem(s.Context(), r)
			_, book := l.Policy().Book(s.Context(), r)
			_, refund := l.Policy().Refund(s.Context(), r)
			for _, err := range []error{try, redeem, book, refund, l.Acquire(s.Context(), key, cost)} {
				if !errors.Is(err, throttle.ErrInvalidCost) {
					s.Errorf("%v, cost %d: %v, want %v", l.Limit(), cost, err, throttle.ErrInvalidCost)
				}
			}
		}
		s.want(s.try(l, 1), false, next)
	})
}

// Known defect: the rest of a division is lost or gained, and the instants drift. Here
// each instant in a line is that of exact arithmetic, rounded up once.
func TestRestOfADivision(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		redistest.Flush(t, s.raw)
		s.at(0)
		n := rapid.IntRange(1, 1000).Draw(rt, "n")
		window := rapid.Int64Range(1000, 100_000_000).Draw(rt, "window")
		cost := rapid.IntRange(1, n).Draw(rt, "cost")
		per := time.Duration(window) * us
		each := func(permits int) int64 { return (int64(max(0, permits))*window + int64(n) - 1) / int64(n) }
		whole := func(k int) int64 { return int64((k/cost-1)/(n/cost)) * window } // a rest that is too small for a job stays unused
		for i, c := range []struct {
			limit throttle.Limit
			at    func(k int) int64 // of the k-th permit, or of one behind k-cost others
		}{
			{throttle.GCRA(n, per, n), func(k int) int64 { return each(k - n) }},
			{throttle.Bucket(n, per, cost), func(k int) int64 { return each(k - cost) }},
			{throttle.Leaky(n, per), func(k int) int64 { return each(k - cost) }},
			{throttle.Smooth(n, per, 3), func(k int) int64 { return each(k - cost) }},
			{throttle.Sliding(n, per), whole}, {throttle.Fixed(n, per), whole}, {throttle.SteppedBucket(n, per, n), whole},
		} {
			l := s.limiter(fmt.Sprint("rule", i), c.limit)
			for k := range 6 {
				d, err := l.Policy().Book(context.Background(), throttle.Request{Key: key, Cost: cost, Job: fmt.Sprint("job", k)})
				if err != nil {
					rt.Fatal(err)
				}
				if got, want := d.At.Sub(start).Microseconds(), c.at((k+1)*cost); got != want {
					rt.Fatalf("%v: job %d, %d permits each, at %d µs, want %d", c.limit, k, cost, got, want)
				}
			}
		}
	})
}

// Known defect: a job that waits as long as it was told is refused again, or could have come
// earlier. Here the instant is exact to the microsecond in each kind.
func TestWaitOfEachKind(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		redistest.Flush(t, s.raw)
		limit := drawLimit(rt, "limit", time.Minute)
		if limit.Validate() != nil {
			rt.Skip("these numbers go together in no limit")
		}
		l := s.limiter("rule", limit)
		now := time.Duration(0)
		for range 6 {
			s.at(now)
			cost := rapid.IntRange(1, min(2*limit.Permits(), limit.MaxCost())).Draw(rt, "cost")
			if d := s.try(l, cost); !d.Granted {
				now = d.At.Sub(start)
				s.at(now - us)
				if early := s.try(l, cost); early.Granted || !early.At.Equal(d.At) {
					rt.Fatalf("%v: told %v, and 1 µs before it %v", limit, d, early)
				}
				s.at(now)
				if d := s.try(l, cost); !d.Granted {
					rt.Fatalf("%v: told %v, and then %v", limit, now, d)
				}
			}
			now += time.Duration(rapid.Int64Range(0, limit.Window().Microseconds()/2).Draw(rt, "later")) * us
		}
	})
}

// Known defect: a refund frees permits of another window than that of its grant.
func TestRefundOfAnotherWindow(t *testing.T) {
	t.Parallel()
	perKind(t, time.Second, func(s *scene, l *throttle.Limiter) {
		old := s.try(l, min(7, l.Limit().MaxCost()))
		s.at(70 * time.Second)
		next := s.drain(l).At.Sub(start)
		for range 2 {
			if _, err := l.Policy().Refund(s.Context(), old.Request); err != nil {
				s.Fatal(err)
			}
			s.want(s.try(l, 1), false, next)
		}
		s.at(next)
		s.want(s.try(l, 1), true, next)
	})
}

// The same at the first instant of a new window.
func TestRefundAtTheEdge(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, limit := range []throttle.Limit{
		throttle.Sliding(3, time.Second), throttle.Fixed(3, time.Second), throttle.SteppedBucket(3, time.Second, 3), throttle.Bucket(3, time.Second, 3),
	} {
		l := s.limiter(fmt.Sprint("rule", i), limit)
		s.at(0)
		old := s.try(l, 3)
		s.at(time.Second)
		next := s.drain(l).At.Sub(start)
		if _, err := l.Policy().Refund(t.Context(), old.Request); err != nil {
			t.Fatal(err)
		}
		s.want(s.try(l, 1), false, next)
	}
}

// Known defect: a lost wake-up leaves a job waiting for ever. Here a waiter also looks at the end of
// the nearest lease by itself.
func TestLostWakeUp(t *testing.T) {
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

// Known defect: permits are made out of nothing by the release of what has ended, or never was.
func TestReleaseInflates(t *testing.T) {
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

// Known defect: a job that waits polls, and a place stays empty until it does. Here a release names the next job.
func TestNoWakeUpOnRelease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("slots", throttle.Concurrent(1, time.Hour))
	d := s.try(l, 1)
	s.want(s.job(l, "a", 1), false, time.Hour)
	s.at(time.Second)
	s.release(l.Policy(), d, "a")
	s.want(s.job(l, "a", 1), true, time.Second)
}

// Known defect: a lease ends while its holder still runs. Here the holder's context ends with a
// typed cause before anybody else gets the place, and the fence tells them apart.
func TestLeaseEndsWhileHolderRuns(t *testing.T) {
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

// Known defect: of several rules the first ones are charged, though a later one refuses.
func TestPartialCharge(t *testing.T) {
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
