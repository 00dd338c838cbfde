package throttle_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// The lease of a slot ends when the gate is closed: a caller that waits is told the next opening. When the slot is
// free before, the caller gets it at once.
func TestAcquireWaitsForASlotWhileAGateIsOpen(t *testing.T) {
	t.Parallel()
	hours, err := gate.Parse("00:00-00:10 UTC")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
		p := newLocal(t, throttle.Concurrent(1, 20*time.Minute)).Policy()
		holder, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 1})
		if err != nil || !holder.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", holder, err)
		}
		const freed = time.Minute
		time.AfterFunc(freed, func() { _, _ = p.Release(t.Context(), holder) })
		began := time.Now()
		d, err := p.Acquire(t.Context(), throttle.Request{Key: key, Cost: 1, Gates: []gate.InZone{{Rule: "hours", Gate: hours}}})
		if took := time.Since(began); err != nil || !d.Granted || took > freed+2*time.Second {
			t.Errorf("Acquire = %v, %v after %v, want a grant soon after %v", d, err, took, freed)
		}
	})
}

// A caller that is blocked at a closed gate is one job that waits for the opening, however long it waits.
func TestAcquireWaitsForAGate(t *testing.T) {
	t.Parallel()
	hours, err := gate.Parse("00:10-01:00 UTC")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
		p := newLocal(t, throttle.Sliding(1, time.Minute)).Policy()
		want := time.Now().Add(10 * time.Minute)
		d, err := p.Acquire(t.Context(), throttle.Request{
			Key: key, Cost: 1, Gates: []gate.InZone{{Rule: "hours", Gate: hours}}, MaxWait: 15 * time.Minute,
		})
		if err != nil || !d.Granted || !d.At.Equal(want) {
			t.Errorf("Acquire = %v, %v at %v, want a grant at the opening, %v", d, err, d.At, want)
		}
	})
}
