package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// TestMovedBookingsDoNotHoldUpTheRest: many bookings have moved when they come
// due, more than there is room to wake. They are re-timed a few at a time, and
// take no worker: what is due behind them must not wait for one to become free.
func TestMovedBookingsDoNotHoldUpTheRest(t *testing.T) {
	t.Parallel()
	const phones = 120
	s := newStage(t, "1/8s", workerSpec{Concurrency: 1})
	_, h := s.pool(s.rdb)
	s.enqueue(phones, phones)
	s.eventually(20*time.Second, "each phone had its first message", func() bool { return h.count() == phones })
	s.enqueue(phones, phones)
	s.eventually(20*time.Second, "each phone has a booking", func() bool {
		q, ok := s.queueInfo()
		return ok && q.Retry == phones
	})
	last := phone(phones - 1)
	state, err := s.limiter.Peek(t.Context(), last, 1)
	if err != nil || len(state.Booked) != 1 {
		t.Fatalf("Peek: %+v, %v", state, err)
	}
	due := state.Booked[0].At
	time.Sleep(time.Until(due.Add(-2 * time.Second))) // so that the others move by six

	// As if each phone but the last had just had a message from somewhere else.
	d, err := s.limiter.TryAcquire(t.Context(), "elsewhere", 1)
	if err != nil || !d.Granted {
		t.Fatalf("TryAcquire: %v, %v", d, err)
	}
	ledger := func(key string) string { return throttle.PrefixDefault + ":{" + key + "}:" + ruleSMS }
	for i := range phones - 1 {
		if err := s.rdb.Copy(t.Context(), ledger("elsewhere"), ledger(phone(i)), 0, true).Err(); err != nil {
			t.Fatal(err)
		}
	}
	id := fmt.Sprintf("m%05d", s.sent-1)
	s.eventually(20*time.Second, "the last message is let in", func() bool { return !h.granted(id).IsZero() })
	if late := h.granted(id).Sub(due); late > 3*time.Second {
		t.Errorf("the only booking that had not moved was redeemed %v late", late)
	}
}
