package memory_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestTwinAnewWhereAnotherWasGrantedAhead: a lease whose end was granted to another job is not made anew, or both would have it.
func TestTwinAnewWhereAnotherWasGrantedAhead(t *testing.T) {
	t.Parallel()
	const ms, lease = time.Millisecond, 30 * time.Second
	for permits, want := range map[int]limitscripts.Status{1: limitscripts.Refused, 2: limitscripts.Granted} {
		rdb, store, at := onMini(t)
		rules := []limitscripts.RuleCall{{
			LimitKeys: limitscripts.NewLimitKeys("hw", "slots", "id"),
			Numbers:   limitscripts.Numbers{Kind: limitscripts.Leases, Permits: permits, Window: lease}, Cost: 1,
		}}
		ask := func(when time.Duration, token uint64, mode limitscripts.Mode, want limitscripts.Status) {
			t.Helper()
			at(when)
			a := limitscripts.AcquireArgs{Rules: rules, Token: token, Job: "a", Mode: mode, Inline: 50 * ms, MaxWait: -1}
			got, err := limitscripts.Acquire(t.Context(), rdb, a)
			if diff := cmp.Diff(store.Acquire(a), got); err != nil || diff != "" || got.Status != want {
				t.Fatalf("%d permits, at %v: token %d has status %d, %v, want %d; %s", permits, when, token, got.Status, err, want, diff)
			}
		}
		ask(0, 1, limitscripts.GrantOrBook, limitscripts.Granted)
		if permits == 2 {
			ask(20*ms, 9, limitscripts.GrantOrBook, limitscripts.Granted) // it ends after the one that comes back
		}
		ask(lease-30*ms, 2, limitscripts.GrantOrBook, limitscripts.Granted) // ahead
		token := uint64(1)
		if permits == 2 {
			token = 9
		}
		ask(lease-20*ms, token, limitscripts.Anew, want)
		renew := limitscripts.RenewArgs{RuleCall: rules[0], Token: 1} // it was granted to 2
		if got := limitscripts.Renew(t.Context(), rdb, []limitscripts.RenewArgs{renew})[0]; got.Err != nil || got.Held || store.Renew(rules[0], 1).Held {
			t.Errorf("%d permits: the lease that another got is renewed: %+v", permits, got)
		}
	}
}

// TestTwinAnewOfPoliciesOfTwoRules: the wide rule knows by its header whose grant was the newest, also after some were made anew.
func TestTwinAnewOfPoliciesOfTwoRules(t *testing.T) {
	t.Parallel()
	rdb, store, at := onMini(t)
	one := func(rule, id string, n int, window time.Duration) limitscripts.RuleCall {
		return limitscripts.RuleCall{
			LimitKeys: limitscripts.NewLimitKeys("hw", rule, id),
			Numbers:   limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: n, Window: window}, Cost: 1,
		}
	}
	wide := one("provider", "acme", 10, time.Hour)
	rules := func(phone string) []limitscripts.RuleCall {
		return []limitscripts.RuleCall{one("phone", phone, 1, time.Minute), wide}
	}
	for i, step := range []struct {
		phone string
		token uint64
		mode  limitscripts.Mode
	}{
		{"a", 1, limitscripts.GrantOrBook}, {"b", 2, limitscripts.GrantOrBook}, {"a", 1, limitscripts.Anew}, {"b", 2, limitscripts.Anew},
		{"c", 3, limitscripts.GrantOrBook}, {"b", 2, limitscripts.Anew},
	} {
		at(time.Duration(i) * time.Second)
		a := limitscripts.AcquireArgs{Rules: rules(step.phone), Policy: "p", Token: step.token, Mode: step.mode, MaxWait: -1, Job: step.phone}
		got, err := limitscripts.Acquire(t.Context(), rdb, a)
		if diff := cmp.Diff(store.Acquire(a), got); err != nil || diff != "" || got.Status != limitscripts.Granted {
			t.Fatalf("step %d: status %d, %v; %s", i, got.Status, err, diff)
		}
	}
	back := limitscripts.CancelArgs{Rules: rules("b"), Policy: "p", Token: 2}
	got, err := limitscripts.Cancel(t.Context(), rdb, back)
	if diff := cmp.Diff(store.Cancel(back), got); err != nil || diff != "" {
		t.Fatalf("cancel: %v; %s", err, diff)
	}
	looks := limitscripts.PeekArgs{Numbers: wide.Numbers, Cost: 1}
	seen, err := limitscripts.Peek(t.Context(), rdb, wide.LimitKeys, looks)
	if memo := store.Peek(wide.LimitKeys, looks); err != nil || seen.Free != 8 || memo.Free != 8 {
		t.Errorf("%d free in Redis, %v, %d in memory, want 8", seen.Free, err, memo.Free)
	}
}

// TestTwinAnewOfALeaseThatIsARateNow: the limit was changed from leases to a rate while a grant was on its way. The rate knows
// nothing of it, so it is charged when it is made anew.
func TestTwinAnewOfALeaseThatIsARateNow(t *testing.T) {
	t.Parallel()
	rdb, store, at := onMini(t)
	ask := func(n limitscripts.Numbers, token uint64, mode limitscripts.Mode, gate limitscripts.Gate, want limitscripts.Status) {
		t.Helper()
		rule := limitscripts.RuleCall{LimitKeys: limitscripts.NewLimitKeys("hw", "rule", "id"), Numbers: n, Cost: 1}
		a := limitscripts.AcquireArgs{Rules: []limitscripts.RuleCall{rule}, Token: token, Job: "a", Mode: mode, Gate: gate, MaxWait: -1}
		got, err := limitscripts.Acquire(t.Context(), rdb, a)
		if diff := cmp.Diff(store.Acquire(a), got); err != nil || diff != "" || got.Status != want {
			t.Fatalf("%+v: token %d has status %d, %v, want %d; %s", n, token, got.Status, err, want, diff)
		}
	}
	leases := limitscripts.Numbers{Kind: limitscripts.Leases, Permits: 2, Window: time.Minute}
	rate := limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Minute, Version: 1}
	always := limitscripts.Gate{}
	closed := limitscripts.Gate{From: start, Until: start.Add(time.Hour)}
	ask(leases, 1, limitscripts.GrantOrBook, always, limitscripts.Granted)
	at(time.Second)
	ask(rate, 1, limitscripts.Anew, closed, limitscripts.Refused)
	ask(rate, 1, limitscripts.Anew, always, limitscripts.Granted)
	ask(rate, 2, limitscripts.Try, always, limitscripts.Refused)
}
