package memory_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestTwinRepeatedLease: a copy of the call that got a lease is told when the lease began, was renewed
// last, or will begin, and never an instant from which the holder would trust it beyond its end.
func TestTwinRepeatedLease(t *testing.T) {
	t.Parallel()
	const ms, lease = time.Millisecond, 30 * time.Second
	rdb, store, at := onMini(t)
	rule := limitscripts.RuleCall{
		LimitKeys: limitscripts.NewLimitKeys("hw", "slots", "id"),
		Numbers:   limitscripts.Numbers{Kind: limitscripts.Leases, Permits: 1, Window: lease}, Cost: 1,
	}
	ask := func(when time.Duration, token uint64, window, want time.Duration) {
		t.Helper()
		at(when)
		rule := rule
		rule.Window = window
		a := limitscripts.AcquireArgs{Rules: []limitscripts.RuleCall{rule}, Token: token, Job: "a", Mode: limitscripts.GrantOrBook, Inline: 50 * ms, MaxWait: -1}
		got, err := limitscripts.Acquire(t.Context(), rdb, a)
		if diff := cmp.Diff(store.Acquire(a), got); err != nil || diff != "" {
			t.Fatalf("at %v: %v; the script (+) and the store (-) differ:\n%s", when, err, diff)
		}
		if got.Status != limitscripts.Granted || got.At.Sub(start) != want {
			t.Errorf("at %v token %d is answered %v at %v, want a grant at %v", when, token, got.Status, got.At.Sub(start), want)
		}
	}
	renew := func(when time.Duration, token uint64) {
		t.Helper()
		at(when)
		got := limitscripts.Renew(t.Context(), rdb, []limitscripts.RenewArgs{{RuleCall: rule, Token: token}})[0]
		if diff := cmp.Diff(store.Renew(rule, token), got); diff != "" || !got.Held {
			t.Fatalf("renewal at %v = %+v; the script (+) and the store (-) differ:\n%s", when, got, diff)
		}
	}
	ask(0, 1, lease, 0)
	ask(9*time.Second, 1, lease, 0)
	ask(10*time.Second, 1, 2*lease, -lease)          // a longer one in force: it ends at 30 s all the same
	ask(11*time.Second, 1, lease/10, 11*time.Second) // a shorter one: it began not later than now
	renew(12*time.Second, 1)
	ask(15*time.Second, 1, lease, 12*time.Second)
	end := 42 * time.Second // the next one is granted ahead, and begins when this one ends
	ask(end-30*ms, 2, lease, end)
	ask(end-20*ms, 2, lease, end)
	ask(end+20*ms, 2, lease, end)
}
