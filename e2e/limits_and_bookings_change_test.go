package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// TestLimitLoweredAtRunTime: two worker processes work off a backlog of one
// phone; the limit is lowered from this process. From a second later on both
// obey, by the instants of the grants, and nothing is lost.
func TestLimitLoweredAtRunTime(t *testing.T) {
	t.Parallel()
	const window = 200 * time.Millisecond
	s := newTestbed(t, "5/200ms", workerSpec{})
	s.crew.start(2)
	s.enqueue(80, 1)
	s.eventually(30*time.Second, "the old limit is used", func() bool { return s.gateway.Answered() >= 15 })
	if _, err := s.limiter.SetLimit(t.Context(), throttle.Sliding(1, window), throttle.SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	changed := s.rdb.Time(t.Context()).Val()
	s.allSent(60 * time.Second)

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	if f := append(breaches(grants, s.limit.Permits(), window), early(all)...); len(f) > 0 {
		t.Errorf("breaches of the old limit, or early starts: %s", few(f))
	}
	since := changed.Add(time.Second).UnixMicro()
	first := slices.IndexFunc(grants, func(g grant) bool { return g.at >= since })
	if first < 1 {
		t.Fatalf("of %d grants the first from a second after the change on is number %d", len(grants), first)
	}
	if f := breaches(grants[first-1:], 1, window); len(f) > 0 {
		t.Errorf("breaches of the new limit: %s", few(f))
	}
	if per := float64(sum(all).Admissions) / float64(s.sent); per > 3 {
		t.Errorf("%.2f admissions per message, want 3 at most", per)
	}
	t.Logf("%d of %d granted from a second after the change on", len(grants)-first, len(grants))
}

// TestLimitRaisedAtRunTime: what two worker processes have deferred for hours
// goes within seconds when the limit rises, also when one of them is killed
// just then.
func TestLimitRaisedAtRunTime(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, "1/1h", workerSpec{})
	lives := s.crew.start(2)
	const backlog = 60
	s.enqueue(backlog+1, 1)
	s.eventually(30*time.Second, "all but one wait", func() bool {
		st, err := s.limiter.Peek(t.Context(), phone(0), 0)
		q, ok := s.queueInfo()
		return err == nil && st.Waiting == backlog && ok && q.Retry == backlog
	})
	raised := throttle.Sliding(30, time.Second)
	if _, err := s.limiter.SetLimit(t.Context(), raised, throttle.SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	changed := s.rdb.Time(t.Context()).Val()
	lives[0].kill()
	s.allSent(60 * time.Second)
	grants := grantsOf(s.crew.records(), s.phones)
	if f := breaches(grants, raised.Permits(), raised.Window()); len(f) > 0 {
		t.Errorf("breaches of the new limit: %s", few(f))
	}
	last := time.UnixMicro(grants[len(grants)-1].at)
	if took := last.Sub(changed); took > 15*time.Second { // the claim of the one that was killed may have to expire
		t.Errorf("the last was granted %v after the change, want some seconds", took)
	}
	t.Logf("the last was granted %v after the change", last.Sub(changed))
}

// TestMovedBookingsDoNotHoldUpTheRest: many bookings have moved when they come
// due, more than there is room to wake. They are re-timed a few at a time, and
// take no worker: what is due behind them must not wait for one to become free.
func TestMovedBookingsDoNotHoldUpTheRest(t *testing.T) {
	t.Parallel()
	const phones = 120
	// so long that each phone has a booking before the first of these comes due
	s := newTestbed(t, "1/16s", workerSpec{Concurrency: 1})
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
	time.Sleep(time.Until(due.Add(-2 * time.Second))) // so that the others move by fourteen

	// As if each phone but the last had just had a message from somewhere else.
	d, err := s.limiter.TryAcquire(t.Context(), "elsewhere", 1)
	if err != nil || !d.Granted {
		t.Fatalf("TryAcquire: %v, %v", d, err)
	}
	ledger := func(key string) string { return throttleDefaults.Prefix + ":{" + key + "}:" + ruleSMS }
	for i := range phones - 1 {
		if err := s.rdb.Copy(t.Context(), ledger("elsewhere"), ledger(phone(i)), 0, true).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// On a busy machine the first of them were granted before. A grant that was decided
	// before lies at most InlineWait ahead, one that was decided since fourteen seconds.
	moved := s.rdb.Time(t.Context()).Val().Add(throttleDefaults.InlineWait)
	id := fmt.Sprintf("m%05d", s.sent-1)
	s.eventually(20*time.Second, "the last message is let in", func() bool { return !h.granted(id).IsZero() })
	// Held up by the others it would go behind them, and these go fourteen seconds later.
	at := h.granted(id)
	t.Logf("the only booking that had not moved was redeemed %v late", at.Sub(due))
	for i := range phones - 1 {
		other := fmt.Sprintf("m%05d", s.sent-phones+i)
		if before := h.granted(other); before.After(moved) && before.Before(at) {
			t.Errorf("%s, which had moved, was granted %v before the one that had not", other, at.Sub(before))
		}
	}
}
