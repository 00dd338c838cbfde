package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// placesOf makes bookings of one policy, each on keys of its own.
func placesOf(t *testing.T, limits ...throttle.Limit) func(ids ...string) throttle.BookingRef {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { _ = rdb.Close() })
	var rules []*throttle.Limiter
	for i, limit := range limits {
		l, err := throttle.New(rdb, fmt.Sprint("rule", i), limit, throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, l)
	}
	p, err := throttle.NewPolicy(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return func(ids ...string) throttle.BookingRef { return throttle.BookingRef{Policy: p, IDs: ids} }
}

// A policy is trusted after 64 bookings in a row that stayed. When one moves that begins
// anew, and the key by which it moved needs 64 of its own.
func TestTrust(t *testing.T) {
	t.Parallel()
	at := placesOf(t, throttle.Sliding(1, time.Minute), throttle.Sliding(100, time.Second))
	tr := newRecheckFilter()
	stay := func(n int, p throttle.BookingRef) {
		for range n {
			tr.confirm(p)
		}
	}
	a, b := at("a", "acme"), at("b", "acme")
	stay(confirmAfter-1, a)
	if tr.isConfirmed(a) {
		t.Error("trusted too early")
	}
	stay(1, a)
	if !tr.isConfirmed(a) || !tr.isConfirmed(b) {
		t.Error("not trusted after 64 that stayed")
	}
	tr.invalidate(a.Policy, a.IDs, "rule0")
	if tr.isConfirmed(a) || tr.isConfirmed(b) {
		t.Error("trusted although one moved")
	}
	stay(confirmAfter, b)
	if tr.isConfirmed(a) || !tr.isConfirmed(b) {
		t.Errorf("sure of the key that moved: %v, of another: %v, want of the other alone", tr.isConfirmed(a), tr.isConfirmed(b))
	}
	stay(confirmAfter, a)
	if !tr.isConfirmed(a) || len(tr.doubts) != 0 {
		t.Errorf("sure of the key that stayed: %v, with %d doubts, want sure and none", tr.isConfirmed(a), len(tr.doubts))
	}
	for i := range 2 * doubtsMax {
		tr.invalidate(a.Policy, at(fmt.Sprint(i), "acme").IDs, "rule0")
	}
	if len(tr.doubts) > doubtsMax {
		t.Errorf("%d doubts are kept, want %d at most", len(tr.doubts), doubtsMax)
	}
}

// What waits for a lease is always checked.
func TestTrustOfLeases(t *testing.T) {
	t.Parallel()
	at := placesOf(t, throttle.Sliding(1, time.Minute), throttle.Concurrent(2, time.Minute))
	tr := newRecheckFilter()
	for range 2 * confirmAfter {
		tr.confirm(at("a", "acme"))
	}
	if tr.isConfirmed(at("a", "acme")) {
		t.Error("a lease is trusted to end when it was told")
	}
}

// A booking of a handler's own that moves costs the trust in its policy, as those of the
// task's policy do.
func TestTrustLearnsOfHandlers(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	a, err := NewAdapter(rdb, Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := placesOf(t, throttle.Sliding(1, time.Minute))("").Policy
	d := throttle.Decision{Request: throttle.Request{Key: "+1", Job: "j"}, Rule: "rule0", At: time.Now().Add(time.Minute), Promised: time.Now()}
	place := throttle.BookingRef{Policy: p, IDs: p.IDs(d.Request)}
	for range confirmAfter {
		a.recheck.confirm(place)
	}
	if !a.recheck.isConfirmed(place) {
		t.Fatal("not trusted at first")
	}
	task := &attempt{a: a, queue: "default", taskID: "x", job: "j"}
	if err := task.Defer(t.Context(), p, d); err == nil {
		t.Error("it is not put away")
	}
	if a.recheck.isConfirmed(place) {
		t.Error("trusted although a booking moved")
	}
}
