package limitscripts

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// A ledger that a newer version wrote is refused by every script and stays as
// it is, and so does all the rest of its key.
func TestNewerSchemaIsRefusedAndKept(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	ctx, n, k := t.Context(), Numbers{Kind: Sliding, Permits: 2, Window: time.Minute}, NewLimitKeys("hw", "rule", "id")
	acquire := func(token uint64, job string, mode Mode) (AcquireReply, error) {
		return Acquire(ctx, rdb, AcquireArgs{Rules: one(k, n, 1), Token: token, Job: job, Mode: mode, MaxWait: -1})
	}
	for i, job := range []string{"a", "b", "c"} {
		if _, err := acquire(uint64(i+1), job, GrantOrBook); err != nil {
			t.Fatal(err)
		}
	}
	raw.SetRange(ctx, k.ledger, 0, "2")
	before := redistest.Dump(t, raw)
	status := map[string]Status{}
	note := func(name string, s Status, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		status[name] = s
	}
	for name, mode := range map[string]Mode{"try": Try, "grant": GrantOrBook, "book": Book} {
		r, err := acquire(9, "x", mode)
		note(name, r.Status, err)
	}
	r, err := acquire(1, "a", GrantOrBook)
	note("the same token", r.Status, err)
	c, err := Cancel(ctx, rdb, CancelArgs{Rules: one(k, n, 1), Token: 1, Job: "c", Back: true})
	note("cancel", c.Status, err)
	p, err := Peek(ctx, rdb, k, PeekArgs{Numbers: n, Cost: 1, Most: 10})
	note("peek", p.Status, err)
	d, err := Reset(ctx, rdb, k, n)
	note("reset", d.Status, err)
	check := Refresh(ctx, rdb, []RefreshArgs{{Rules: one(k, n, 1), Job: "c"}})[0]
	note("check", check.Status, check.Err)
	for name, s := range status {
		if s != NewerSchema {
			t.Errorf("%s answers status %d, want %d", name, s, NewerSchema)
		}
	}
	if after := redistest.Dump(t, raw); !maps.Equal(before, after) {
		t.Errorf("content = %q, want %q", after, before)
	}
}

// After any call every key that is there has a life.
func TestEveryKeyHasALife(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	ctx, n, k := t.Context(), Numbers{Kind: Sliding, Permits: 2, Window: time.Minute}, NewLimitKeys("hw", "rule", "id")
	ask := func(token uint64, job string, cost int, mode Mode, at time.Duration) {
		t.Helper()
		rdb.SetTime(start.Add(at))
		a := AcquireArgs{Rules: one(k, n, cost), Token: token, Job: job, Mode: mode, Inline: 50 * time.Millisecond, MaxWait: -1}
		if _, err := Acquire(ctx, rdb, a); err != nil {
			t.Fatal(err)
		}
		redistest.KeysHaveALife(t, raw)
	}
	cancel := func(token uint64, job string, cost int, back bool) {
		t.Helper()
		if _, err := Cancel(ctx, rdb, CancelArgs{Rules: one(k, n, cost), Token: token, Job: job, Back: back}); err != nil {
			t.Fatal(err)
		}
		redistest.KeysHaveALife(t, raw)
	}
	ask(1, "a", 1, Book, 0)
	ask(2, "a", 1, GrantOrBook, 0)
	ask(3, "b", 2, GrantOrBook, time.Second)
	ask(4, "c", 1, GrantOrBook, time.Second)
	cancel(2, "a", 1, true)
	cancel(5, "", 1, false)
	cancel(0, "c", 1, false)
	ask(6, "a", 1, GrantOrBook, 5*time.Second)
	ask(7, "c", 1, GrantOrBook, 2*time.Minute)
	ask(8, "b", 2, GrantOrBook, 2*time.Minute)
	Refresh(ctx, rdb, []RefreshArgs{{Rules: one(k, n, 2), Job: "b"}})
	redistest.KeysHaveALife(t, raw)
	ask(9, "b", 2, GrantOrBook, 4*time.Minute)
	cancel(9, "b", 2, true)
	ask(10, "", 1, Try, 4*time.Minute)
	if _, err := Reset(ctx, rdb, k, n); err != nil {
		t.Fatal(err)
	}
	redistest.KeysHaveALife(t, raw)
}

// A withdrawn token is refused for a minute and forgotten later; the set that
// holds it stays small under any number of refunds.
func TestTokensAreForgotten(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	ctx, n, k := t.Context(), Numbers{Kind: Sliding, Permits: 1, Window: time.Second}, NewLimitKeys("hw", "rule", "id")
	for i := range 300 {
		rdb.SetTime(start.Add(time.Duration(i) * time.Second))
		a := AcquireArgs{Rules: one(k, n, 1), Token: uint64(2*i + 1), Mode: Try, MaxWait: -1}
		if r, err := Acquire(ctx, rdb, a); err != nil || r.Status != Granted {
			t.Fatalf("Acquire %d = %+v, %v, want a grant", i, r, err)
		}
		if _, err := Cancel(ctx, rdb, CancelArgs{Rules: one(k, n, 1), Token: uint64(2*i + 2)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := raw.ZCard(ctx, k.tokens).Val(); got < 110 || got > 130 {
		t.Errorf("%d tokens are kept, want those of the last minute: about 120", got)
	}
}

func TestKeyID(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef")
	for _, key := range []string{"a", "+49170", strings.Repeat("a", 64), "a#", "a:b", "a b", "日本"} {
		if got := KeyID(nil, key); got != key {
			t.Errorf("KeyID(%q) = %q, want it as it is", key, got)
		}
		if got := KeyID(secret, key); !strings.HasPrefix(got, "#") || len(got) != 25 || strings.ContainsAny(got, "{}:") {
			t.Errorf("KeyID(%q) with a secret = %q, want a hash", key, got)
		}
	}
	for _, key := range []string{"#a", "{", "a}", strings.Repeat("a", 65)} {
		if got := KeyID(nil, key); !strings.HasPrefix(got, "#") || len(got) != 25 {
			t.Errorf("KeyID(%q) = %q, want a hash", key, got)
		}
	}
	if KeyID(nil, "{a}") == KeyID(secret, "{a}") || KeyID(nil, "{a}") == KeyID(nil, "{b}") {
		t.Error("KeyID gives one hash for two keys")
	}
}

// All keys that one script gets share a hash tag: Redis Cluster's own rule.
func TestKeysShareATag(t *testing.T) {
	t.Parallel()
	const tag = "{id}"
	seen := map[string]bool{}
	for _, k := range NewLimitKeys("hw", "rule", "id").all() {
		if strings.Count(k, tag) != 1 || seen[k] {
			t.Errorf("key %q, want %s in it and no other key like it", k, tag)
		}
		seen[k] = true
	}
}
