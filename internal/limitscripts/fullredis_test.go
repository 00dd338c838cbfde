package limitscripts

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// A Redis without memory refuses whole what takes permits, and does what gives
// something back: otherwise tasks and permits would be lost then.
func TestFullRedis(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t, redistest.Arg("maxmemory-policy", "noeviction"))
	ctx, n := t.Context(), Numbers{Kind: Sliding, Permits: 3, Window: time.Minute}
	limit := func(id string) LimitKeys { return NewLimitKeys("hw", "rule", id) }
	ask := func(id, job string, token uint64, cost int, mode Mode) (AcquireReply, error) {
		return Acquire(ctx, rdb, AcquireArgs{Rules: one(limit(id), n, cost), Token: token, Job: job, Mode: mode, Inline: 50 * time.Millisecond, MaxWait: -1})
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(ask("used", "a", 1, 2, GrantOrBook))
	must(ask("used", "b", 2, 1, GrantOrBook))
	must(ask("used", "c", 3, 1, GrantOrBook))
	must(ask("used", "d", 4, 1, GrantOrBook))
	must(ask("half", "a", 5, 1, GrantOrBook))
	// The texts are known before memory runs out.
	must(Cancel(ctx, rdb, CancelArgs{Rules: one(limit("other"), n, 1), Token: 9}))
	must(Peek(ctx, rdb, limit("used"), PeekArgs{Numbers: n, Cost: 1, Most: 10}))
	must(Reset(ctx, rdb, limit("other"), n))
	redistest.FillMemory(t, raw)

	before := redistest.Dump(t, raw)
	for name, call := range map[string]func() (AcquireReply, error){
		"a grant on a new key":         func() (AcquireReply, error) { return ask("new", "x", 11, 1, GrantOrBook) },
		"a try on a new key":           func() (AcquireReply, error) { return ask("new", "", 12, 1, Try) },
		"a grant in a ring that grows": func() (AcquireReply, error) { return ask("half", "x", 13, 2, GrantOrBook) },
		"a booking on a full key":      func() (AcquireReply, error) { return ask("used", "x", 14, 1, GrantOrBook) },
		"a booking on a new key":       func() (AcquireReply, error) { return ask("new", "x", 15, 1, Book) },
	} {
		if r, err := call(); !strings.Contains(fmt.Sprint(err), "OOM") {
			t.Errorf("%s = %+v, %v, want OOM", name, r, err)
		}
		if after := redistest.Dump(t, raw); !maps.Equal(before, after) {
			t.Fatalf("%s changed %q to %q, want nothing changed", name, before, after)
		}
	}

	if r, err := Peek(ctx, rdb, limit("used"), PeekArgs{Numbers: n, Cost: 1, Most: 10}); err != nil || r.Waiting != 2 {
		t.Errorf("Peek = %+v, %v, want two waiting", r, err)
	}
	if r, err := Cancel(ctx, rdb, CancelArgs{Rules: one(limit("used"), n, 1), Job: "c"}); err != nil {
		t.Errorf("Cancel of a booking = %+v, %v, want nil", r, err)
	}
	if r, err := Cancel(ctx, rdb, CancelArgs{Rules: one(limit("used"), n, 2), Token: 1, Job: "a"}); err != nil || r.Status != Granted || len(r.Promoted) != 1 || r.Promoted[0].Job != "d" {
		t.Errorf("Cancel of a grant = %+v, %v, want it given back, and d next", r, err)
	}
	if r, err := Cancel(ctx, rdb, CancelArgs{Rules: one(limit("used"), n, 1), Token: 2, Job: "b", Back: true}); err != nil || r.Status != Granted {
		t.Errorf("Cancel of a grant that comes back = %+v, %v, want it given back", r, err)
	}
	if r, err := Cancel(ctx, rdb, CancelArgs{Rules: one(limit("new"), n, 1), Token: 77}); err != nil {
		t.Errorf("Cancel of an unknown token = %+v, %v, want nil", r, err)
	}
	if r, err := Reset(ctx, rdb, limit("used"), n); err != nil {
		t.Errorf("Reset = %+v, %v, want nil", r, err)
	}
	redistest.KeysHaveALife(t, raw)
}

// A job that was postponed behind others of its closing may leave, too: its script takes away before it
// writes what it notes.
func TestFullRedisAndAPostponedJob(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t, redistest.Arg("maxmemory-policy", "noeviction"))
	rules := one(NewLimitKeys("hw", "rule", "id"), Numbers{Kind: Sliding, Permits: 3, Window: time.Minute}, 1)
	for _, job := range []string{"a", "b", "c"} {
		if r, err := Close(t.Context(), rdb, CloseArgs{Rules: rules, Rule: 1, Job: job, For: time.Minute}); err != nil || r.Status != Granted {
			t.Fatalf("Close for %s = %+v, %v", job, r, err)
		}
	}
	if _, err := Cancel(t.Context(), rdb, CancelArgs{Rules: rules, Job: "nobody"}); err != nil { // the text is known before memory runs out
		t.Fatal(err)
	}
	line := rules[0].line
	squeezed := func() float64 { return raw.ZScore(t.Context(), line, "squeezed").Val() }
	before := squeezed()
	redistest.FillMemory(t, raw)
	if r, err := Cancel(t.Context(), rdb, CancelArgs{Rules: rules, Job: "b"}); err != nil {
		t.Errorf("Cancel = %+v, %v, want nil", r, err)
	}
	if after := squeezed(); after != before-1 {
		t.Errorf("what is noted of those that were postponed went from %.0f to %.0f, want one less", before, after)
	}
}
