package throttle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// openHours are a gate's hours; a synctest bubble begins at midnight, when these are open.
const openHours = "00:00-00:10 UTC"

// gated is a request for one permit while a gate is open.
func gated(t *testing.T, hours string) throttle.Request {
	t.Helper()
	h, err := gate.Parse(hours)
	if err != nil {
		t.Fatal(err)
	}
	return throttle.Request{Key: key, Cost: 1, Gates: []gate.InZone{{Rule: "hours", Gate: h}}}
}

// The lease of a slot ends when the gate is closed, and the slot may be free before. A caller waits for it while it has
// time and the gate is open. Then it leaves no place behind.
func TestAcquireWaitsForASlotWhileAGateIsOpen(t *testing.T) {
	t.Parallel()
	const lease, closes, never = 20 * time.Minute, 10 * time.Minute, time.Hour
	for name, c := range map[string]struct {
		timeout, maxWait time.Duration // of the context, and of the request
		freed            time.Duration // when the holder is done
		want             error
		after            time.Duration
	}{
		"a caller with any time":                          {timeout: 48 * time.Hour, freed: time.Minute, after: time.Minute},
		"a slot is free before the context ends":          {timeout: 5 * time.Minute, freed: time.Minute, after: time.Minute},
		"a slot is free within MaxWait":                   {timeout: never, maxWait: 5 * time.Minute, freed: time.Minute, after: time.Minute},
		"MaxWait is over before the gate closes":          {timeout: never, maxWait: time.Minute, freed: never, want: throttle.ErrTooLate, after: time.Minute},
		"the gate closes, and opens behind MaxWait":       {timeout: never, maxWait: 15 * time.Minute, freed: never, want: throttle.ErrTooLate, after: closes},
		"a slot is free when the gate is closed":          {timeout: never, freed: closes + time.Minute, want: throttle.ErrTooLate, after: closes},
		"no slot is free before the next opening begins":  {timeout: 48 * time.Hour, freed: never, after: 24 * time.Hour},
		"there is no time to wait, not even for a moment": {timeout: never, maxWait: -1, freed: never, want: throttle.ErrTooLate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
				l := newLocal(t, throttle.Concurrent(1, lease))
				p := l.Policy()
				holder, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 1})
				if err != nil || !holder.Granted {
					t.Fatalf("TryAcquire = %v, %v, want a grant", holder, err)
				}
				done := time.AfterFunc(c.freed, func() { _, _ = p.Release(t.Context(), holder) })
				defer done.Stop()
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				began := time.Now()
				r := gated(t, openHours)
				r.MaxWait = c.maxWait
				d, err := p.Acquire(ctx, r)
				took := time.Since(began)
				if !errors.Is(err, c.want) || d.Granted != (c.want == nil) || took < c.after || took > c.after+2*time.Second {
					t.Errorf("Acquire = %v, %v after %v, want %v after %v", d, err, took, c.want, c.after)
				}
				if s, err := l.Peek(t.Context(), key, 10); err != nil || s.Waiting != 0 {
					t.Errorf("Peek = %+v, %v, want that nobody waits", s, err)
				}
			})
		})
	}
}

// A caller has no time left, and the lease of a slot ends when the gate is closed: the slot is free at the next opening.
func TestTooLateForASlotTellsTheOpening(t *testing.T) {
	t.Parallel()
	hours, err := gate.Parse("00:00-00:10 UTC")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
		l := newLocal(t, throttle.Concurrent(1, 20*time.Minute))
		r := throttle.Request{Key: key, Cost: 1, Gates: []gate.InZone{{Rule: "hours", Gate: hours}}}
		if d, err := l.Policy().TryAcquire(t.Context(), r); err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
		began := time.Now()
		r.Job, r.MaxWait = "late", -1
		_, err := l.Policy().Redeem(t.Context(), r)
		late, ok := errors.AsType[*throttle.TooLateError](err)
		if !ok || late.Wait != 24*time.Hour || !late.At.Equal(began.Add(24*time.Hour)) {
			t.Errorf("Redeem = %#v, want the next opening, in a day", err)
		}
	})
}

// The lease of a slot ends within MaxWait, when the gate is closed. It opens later: a reservation can't wait and see whether
// the slot is free before.
func TestReserveAsksForASlotBehindAGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
		l := newLocal(t, throttle.Concurrent(1, 20*time.Minute))
		r := gated(t, openHours)
		if d, err := l.Policy().TryAcquire(t.Context(), r); err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
		r.MaxWait = time.Hour
		_, err := l.Policy().Reserve(t.Context(), r)
		if late, ok := errors.AsType[*throttle.TooLateError](err); !ok || late.Wait != 24*time.Hour {
			t.Errorf("Reserve = %v, want that the slot comes too late, at the next opening", err)
		}
		if s, err := l.Peek(t.Context(), key, 10); err != nil || s.Waiting != 0 {
			t.Errorf("Peek = %+v, %v, want that nobody waits", s, err)
		}
	})
}

// A job waits for the slot of a customer whose lease ends when the gate is closed. It keeps no turn at the provider until then:
// a job of another customer would be told the next opening, although the provider has permits.
func TestJobThatWaitsForASlotUntilClosingHoldsUpNoOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
		rdb, _ := redistest.Mini(t)
		p := newPolicy(t, newLimiter(t, rdb, "provider", throttle.Sliding(1, time.Second), throttle.Config{}),
			newLimiter(t, rdb, "slots", throttle.Concurrent(1, 20*time.Minute), throttle.Config{}))
		redeem := func(job, customer string) throttle.Decision {
			r := gated(t, openHours)
			r.Job, r.Key, r.More = job, "all", []throttle.KeyCost{{Key: customer, Cost: 1}}
			d, err := p.Redeem(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		first := redeem("a1", "a")
		time.Sleep(2 * time.Second)
		second := redeem("a2", "a")
		// a pool asks where its booking stands before it wakes a job
		if is := throttle.ForWorkers.Refresh(t.Context(), rdb, []throttle.BookingRef{throttle.ForWorkers.Ref(p, second.Request)})[0]; is.Err != nil || !is.Known {
			t.Errorf("Refresh = %+v, want the booking", is)
		}
		other := redeem("b1", "b")
		if !first.Granted || second.Granted || second.Rule != "slots" || second.Gated || !other.Granted {
			t.Errorf("the decisions are %v, %v and %v, want that only the second waits, for a slot", first, second, other)
		}
	})
}

// Where the customer has a rate, too, a job that waits for a slot of its customer has no turn at the provider: the jobs of others
// would be told to come when the slot's lease ends, although the provider is idle.
func TestJobThatWaitsForASlotHoldsUpNoOtherCustomers(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	p := newPolicy(t, newLimiter(t, rdb, "customer", throttle.Sliding(1000, time.Second), throttle.Config{}),
		newLimiter(t, rdb, "provider", throttle.Sliding(1, 100*time.Millisecond), throttle.Config{}),
		newLimiter(t, rdb, "slots", throttle.Concurrent(1, 20*time.Minute), throttle.Config{}))
	redeem := func(job, customer string) throttle.Decision {
		d, err := p.Redeem(t.Context(), throttle.Request{Job: job, Key: customer, Cost: 1, More: []throttle.KeyCost{{Key: "all", Cost: 1}, {Key: customer, Cost: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	redeem("a1", "a")
	a2 := redeem("a2", "a")
	for a2.Rule != "slots" { // the provider may hold it up first
		a2 = redeem("a2", "a")
	}
	redeem("b1", "b")
	if c1 := redeem("c1", "c"); c1.At.Sub(c1.Now) > time.Second {
		t.Errorf("another customer's job is told %v, want at most some tenths of a second: a job of customer a waits for a slot, %v", c1, a2)
	}
}

// A slot that is busy at closing time is told by the next opening to who only tries: it may be asked for again then.
func TestTryForASlotIsToldTheOpening(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
		p := newLocal(t, throttle.Concurrent(1, 20*time.Minute)).Policy()
		r := gated(t, openHours)
		for i, want := range []time.Duration{0, 24 * time.Hour} {
			d, err := p.TryAcquire(t.Context(), r)
			if err != nil || d.Granted != (i == 0) || d.At.Sub(d.Now) != want {
				t.Errorf("TryAcquire = %v, %v in %v, want %v", d, err, d.At.Sub(d.Now), want)
			}
		}
	})
}

// Who asks for a slot some milliseconds before the opening, as tasks that are woken do, waits for it while the gate is open.
func TestSlotIsAskedForShortlyBeforeTheOpening(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
		p := newLocal(t, throttle.Concurrent(1, 20*time.Minute)).Policy()
		time.Sleep(24*time.Hour - 10*time.Millisecond)
		for i, job := range []string{"a", "b"} {
			r := gated(t, openHours)
			r.Job = job
			d, err := p.Redeem(t.Context(), r)
			if err != nil || d.Granted != (i == 0) || d.Gated {
				t.Errorf("Redeem for job %s = %v, %v, want that the first has the slot at the opening, and the second waits for it", job, d, err)
			}
		}
	})
}

// A caller that is blocked at a closed gate is one job that waits for the opening, however long it waits.
func TestAcquireWaitsForAGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
		p := newLocal(t, throttle.Sliding(1, time.Minute)).Policy()
		want := time.Now().Add(10 * time.Minute)
		r := gated(t, "00:10-01:00 UTC")
		r.MaxWait = 15 * time.Minute
		d, err := p.Acquire(t.Context(), r)
		if err != nil || !d.Granted || !d.At.Equal(want) {
			t.Errorf("Acquire = %v, %v at %v, want a grant at the opening, %v", d, err, d.At, want)
		}
	})
}
