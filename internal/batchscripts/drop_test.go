package batchscripts

import (
	"fmt"
	"testing"
)

// Behind many tasks of others a cancel does not look for its own: they are left to the
// pools, and are deleted as they come near.
func TestBatchDropBehindManyOthers(t *testing.T) {
	t.Parallel()
	const others = 100_000 // a call that looked at all of them would take 150 ms, and find its tasks
	b := newBatch(t, 1000)
	ctx := t.Context()
	for from := 0; from < others; from += 1000 {
		var some []any
		for i := range 1000 {
			some = append(some, fmt.Sprintf("0000aaaa-%028d", from+i))
		}
		b.raw.LPush(ctx, b.q.Pending, some...)
	}
	b.feed(100, b.tasks(0, 100)...)
	b.set(Cancel, SetDone)
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprint("e", i))
	}
	drop := func() DropReply {
		t.Helper()
		r, err := Drop(ctx, b.rdb, b.q, "b", all)
		if err != nil || !r.Cancelled {
			t.Fatalf("Drop = %+v, %v", r, err)
		}
		return r
	}
	if r := drop(); r.Unfinished != 100 {
		t.Errorf("%d are left, want all 100", r.Unfinished)
	}
	b.raw.LTrim(ctx, b.q.Pending, 0, 1599) // the others ran, but for 1500
	for rounds, unfinished := 0, 100; unfinished > 0; rounds++ {
		r := drop()
		if r.Unfinished >= unfinished || rounds > 20 {
			t.Fatalf("%d are left of %d after %d calls, want fewer with each", r.Unfinished, unfinished, rounds)
		}
		unfinished = r.Unfinished
	}
	if n := b.raw.LLen(ctx, b.q.Pending).Val(); n != 1500 {
		t.Errorf("%d are pending, want the 1500 of others", n)
	}
}
