package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// bookingsOf makes bookings of one policy, each on keys of its own.
func bookingsOf(t *testing.T, limits ...throttle.Limit) func(ids ...string) throttle.BookingRef {
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
func TestRefreshFilter(t *testing.T) {
	t.Parallel()
	at := bookingsOf(t, throttle.Sliding(1, time.Minute), throttle.Sliding(100, time.Second))
	filter := newRefreshFilter()
	stay := func(n int, p throttle.BookingRef) {
		for range n {
			filter.confirm(p)
		}
	}
	a, b := at("a", "acme"), at("b", "acme")
	stay(confirmAfter-1, a)
	if filter.isConfirmed(a) {
		t.Error("confirmed too early")
	}
	stay(1, a)
	if !filter.isConfirmed(a) || !filter.isConfirmed(b) {
		t.Error("not confirmed after 64 that stayed")
	}
	filter.invalidate(a.Policy, a.IDs, "rule0")
	if filter.isConfirmed(a) || filter.isConfirmed(b) {
		t.Error("confirmed although one moved")
	}
	stay(confirmAfter, b)
	if filter.isConfirmed(a) || !filter.isConfirmed(b) {
		t.Errorf("sure of the key that moved: %v, of another: %v, want of the other alone", filter.isConfirmed(a), filter.isConfirmed(b))
	}
	stay(confirmAfter, a)
	if !filter.isConfirmed(a) || len(filter.doubts) != 0 {
		t.Errorf("sure of the key that stayed: %v, with %d doubts, want sure and none", filter.isConfirmed(a), len(filter.doubts))
	}
	for i := range 2 * doubtsMax {
		filter.invalidate(a.Policy, at(fmt.Sprint(i), "acme").IDs, "rule0")
	}
	if len(filter.doubts) > doubtsMax {
		t.Errorf("%d doubts are kept, want %d at most", len(filter.doubts), doubtsMax)
	}
}

// A booking that waits for a lease is always checked.
func TestRefreshFilterOfLeases(t *testing.T) {
	t.Parallel()
	at := bookingsOf(t, throttle.Sliding(1, time.Minute), throttle.Concurrent(2, time.Minute))
	filter := newRefreshFilter()
	for range 2 * confirmAfter {
		filter.confirm(at("a", "acme"))
	}
	if filter.isConfirmed(at("a", "acme")) {
		t.Error("a lease is taken to end at its first instant")
	}
}

// A booking that a handler made and that moves invalidates its policy, as a booking of the
// task's own policy does.
func TestRefreshFilterIsInvalidatedByHandlers(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	a, err := NewAdapter(rdb, Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := bookingsOf(t, throttle.Sliding(1, time.Minute))("").Policy
	d := throttle.Decision{Request: throttle.Request{Key: "+1", Job: "j"}, Rule: "rule0", At: time.Now().Add(time.Minute), Promised: time.Now()}
	booking := throttle.ForWorkers.Ref(p, d.Request)
	for range confirmAfter {
		a.refreshes.confirm(booking)
	}
	if !a.refreshes.isConfirmed(booking) {
		t.Fatal("not confirmed at first")
	}
	task := &attempt{a: a, queue: "default", taskID: "x", job: "j"}
	if err := task.Defer(t.Context(), p, d); err == nil {
		t.Error("it is not deferred")
	}
	if a.refreshes.isConfirmed(booking) {
		t.Error("confirmed although a booking moved")
	}
}
