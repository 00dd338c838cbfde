package limitscripts

import (
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// What was promised to one lives as long as its place, whoever comes to the key after
// it: it would be taken for late, and lose its turn.
func TestPromisesLiveAsLongAsTurns(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	ctx := t.Context()
	phone := NewLimitKeys("hw", "phone", "1")
	loose, tight := Numbers{Kind: Sliding, Permits: 100, Window: time.Second}, Numbers{Kind: Sliding, Permits: 1, Window: 24 * time.Hour}
	token := uint64(0)
	ask := func(job, tenant string, n Numbers) AcquireReply {
		t.Helper()
		token++
		r, err := Acquire(ctx, rdb, AcquireArgs{
			Rules:  []RuleCall{{LimitKeys: phone, Numbers: loose, Cost: 1}, {LimitKeys: NewLimitKeys("hw", "tenant", tenant), Numbers: n, Cost: 1}},
			Policy: "p", Token: token, Job: job, Mode: GrantOrBook, MaxWait: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	short := tight
	short.Window = time.Minute
	ask("spends", "slow", tight)
	ask("spends", "fast", short)
	if r := ask("far", "slow", tight); r.Status != Booked || r.Rule != 2 {
		t.Fatalf("far = %+v, want it booked in the tenant's line", r)
	}
	turns := phone.turns("p")
	if r := ask("near", "fast", short); r.Status != Booked || r.Rule != 2 {
		t.Fatalf("near = %+v, want it booked in the tenant's line", r)
	}
	if p, l := raw.PTTL(ctx, phone.line).Val(), raw.PTTL(ctx, turns).Val(); p < l-time.Second || p < 24*time.Hour {
		t.Errorf("what was promised lives for %v, the turns for %v, want no less and above 24h", p, l)
	}
}

// What was told stands behind those who wait, in one set: where nobody waits, nobody
// is listed, and who comes is first.
func TestWhatWasToldDoesNotWait(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	ctx, n := t.Context(), Numbers{Kind: Sliding, Permits: 1, Window: time.Minute}
	phone, tenant := NewLimitKeys("hw", "phone", "1"), NewLimitKeys("hw", "tenant", "a")
	nobody := func(what string) {
		t.Helper()
		if raw.ZCard(ctx, phone.line).Val() == 0 {
			t.Errorf("%s: nothing is kept of it", what)
		}
		if s, err := Peek(ctx, rdb, phone, PeekArgs{Numbers: n, Cost: 1, Most: 250}); err != nil || s.Waiting != 0 || len(s.Listed) != 0 {
			t.Errorf("%s: Peek = %+v, %v, want nobody waiting", what, s, err)
		}
		for _, from := range []Ticket{{}, {Number: 0, Some: true}, {Number: 1 << 52, Some: true}} {
			if l, err := List(ctx, rdb, phone, ListArgs{Numbers: n, From: from, Most: 250}); err != nil || l.All != 0 || len(l.Listed) != 0 {
				t.Errorf("%s: List from %v = %+v, %v, want nobody", what, from, l, err)
			}
		}
	}
	if _, err := Close(ctx, rdb, CloseArgs{Rules: one(phone, n, 1), Rule: 1, For: time.Minute}); err != nil {
		t.Fatal(err)
	}
	nobody("a closed key")
	if _, err := Close(ctx, rdb, CloseArgs{Rules: one(phone, n, 1), Rule: 1}); err != nil {
		t.Fatal(err)
	}
	two := []RuleCall{{LimitKeys: phone, Numbers: n, Cost: 1}, {LimitKeys: tenant, Numbers: n, Cost: 1}}
	ask := func(rules []RuleCall, policy string, token uint64, job string) AcquireReply {
		t.Helper()
		r, err := Acquire(ctx, rdb, AcquireArgs{Rules: rules, Policy: policy, Token: token, Job: job, Mode: GrantOrBook, MaxWait: -1})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	ask(two[1:], "", 1, "")
	if r := ask(two, "p", 2, "turns"); r.Status != Booked || r.Rule != 2 {
		t.Fatalf("%+v, want it booked by the tenant", r)
	}
	nobody("a turn")
	if r := ask(two[:1], "", 3, "alone"); r.Status != Granted {
		t.Errorf("%+v, want it granted: a turn does not exist for others", r)
	}
	if r := ask(two[:1], "", 4, "next"); r.Status != Booked {
		t.Errorf("%+v, want it booked", r)
	}
	if l, err := List(ctx, rdb, phone, ListArgs{Numbers: n, Most: 250}); err != nil || l.All != 1 || len(l.Listed) != 1 || l.Listed[0].Job != "next" || l.Listed[0].Ticket != 4096 {
		t.Errorf("List = %+v, %v, want the one who waits, with the ticket behind the turn", l, err)
	}
}
