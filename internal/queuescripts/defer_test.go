package queuescripts

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// safetyNet is when asynq's own forwarder may take a deferred task.
const safetyNet = 5 * time.Second

func TestDefer(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("active", "a", "b")
	before := a.raw.HGet(t.Context(), a.q.Task("a"), "msg").Val()
	a.deferTask("a", minute, "")
	a.place("a", "retry", minute+safetyNet, minute)
	if got := a.raw.LRange(t.Context(), a.q.active, 0, -1).Val(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("active = %v, want b alone", got)
	}
	if got := a.raw.ZRange(t.Context(), a.q.Lease, 0, -1).Val(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("leases = %v, want that of b", got)
	}
	if got := a.raw.HGet(t.Context(), a.q.Task("a"), "msg").Val(); got != before {
		t.Errorf("message = %q, want it unchanged", got)
	}
	if ttl := a.raw.PTTL(t.Context(), a.q.Due).Val(); ttl < time.Hour+minute-time.Second || ttl > time.Hour+minute+time.Second {
		t.Errorf("the index lives %v, want an hour longer than the task waits", ttl)
	}
	// What is not running is not ours to move, and asynq's answer says so.
	state := redistest.Dump(t, a.raw)
	for _, id := range []string{"a", "unknown"} {
		cmd := Defer(t.Context(), a.rdb, a.q, DeferArgs{ID: id, Token: 7, At: start, Record: "x"})
		if err := cmd.Err(); err == nil || !strings.HasPrefix(err.Error(), "NOT FOUND") {
			t.Errorf("Defer(%q) = %v, want NOT FOUND", id, err)
		}
	}
	if !maps.Equal(state, redistest.Dump(t, a.raw)) {
		t.Errorf("a refused Defer changed something")
	}
}

func TestUniqueLockFollowsTheTask(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ctx := t.Context()
	lock := "asynq:{default}:unique:sms:x"
	ttl := func(want time.Duration) {
		t.Helper()
		if got := a.raw.PTTL(ctx, lock).Val(); got > want+time.Second || got < want-time.Second {
			t.Errorf("the lock lives %v, want %v", got, want)
		}
	}
	a.put("active", "a", "b")
	a.raw.HSet(ctx, a.q.Task("a"), "unique_key", lock)
	a.raw.HSet(ctx, a.q.Task("b"), "unique_key", lock)
	a.raw.Set(ctx, lock, "a", time.Hour)
	a.deferTask("b", minute, lock) // not b's any more
	ttl(time.Hour)
	a.deferTask("a", minute, lock)
	ttl(time.Hour + minute)

	move := func(in time.Duration, ids ...string) {
		t.Helper()
		for _, id := range ids {
			got, err := Retime(ctx, a.rdb, a.q, []Retiming{{ID: id, At: start.Add(in)}})
			redistest.WantCodes(t, "Retime", got, err, 1)
		}
	}
	move(3*minute, "b")
	ttl(time.Hour + minute)
	move(3*minute, "a") // two minutes more
	ttl(time.Hour + 3*minute)
	move(2*minute, "a") // it never gets shorter
	ttl(time.Hour + 3*minute)
	a.raw.Del(ctx, lock)
	move(4*minute, "a")
	if n := a.raw.Exists(ctx, lock).Val(); n != 0 {
		t.Errorf("the lock is back, want none")
	}
}

// A hint comes while the task is still running: the deferral that follows
// takes the earlier of the two instants.
func TestHintBeforeDefer(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("active", "a", "b")
	for _, id := range []string{"a", "b"} {
		got, err := RetimeEarlier(t.Context(), a.rdb, a.q, []Retiming{{ID: id, At: start.Add(30 * time.Second)}})
		redistest.WantCodes(t, "Retime of an active task", got, err, 1)
		a.place(id, "active", 0, 30*time.Second)
	}
	a.deferTask("a", minute, "")
	a.place("a", "retry", 30*time.Second+safetyNet, 30*time.Second)
	a.deferTask("b", 10*time.Second, "")
	a.place("b", "retry", 10*time.Second+safetyNet, 10*time.Second)
	// Without "earlier" a running task is left alone.
	a.put("active", "c")
	got, err := Retime(t.Context(), a.rdb, a.q, []Retiming{{ID: "c", At: start.Add(minute)}})
	redistest.WantCodes(t, "Retime", got, err, 0)
	a.place("c", "active", 0, 0)
}

// A task that runs may have a hint or an old entry: what its own error is told to
// wait for must not be cut short by it. One that was deferred keeps its entry.
func TestForget(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("active", "a", "b")
	a.deferTask("b", minute, "")
	got, err := RetimeEarlier(t.Context(), a.rdb, a.q, []Retiming{{ID: "a", At: start.Add(time.Second)}})
	redistest.WantCodes(t, "Retime of an active task", got, err, 1)
	for _, id := range []string{"a", "b", "unknown"} {
		if err := Forget(t.Context(), a.rdb, a.q, id, ""); err != nil {
			t.Fatal(err)
		}
	}
	a.place("a", "active", 0, 0)
	a.place("b", "retry", minute+safetyNet, minute)
}

// What a deleted task left is dropped while another of its id runs, by what that one
// waited for; the entry that the other has stays.
func TestForgetOfADeletedTask(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("active", "a")
	a.deferTask("a", minute, "")
	left := a.raw.ZRange(t.Context(), a.q.Due, 0, -1).Val()
	a.raw.ZRem(t.Context(), a.q.Retry, "a")
	a.raw.Del(t.Context(), a.q.Task("a"))
	a.put("active", "a")
	got, err := RetimeEarlier(t.Context(), a.rdb, a.q, []Retiming{{ID: "a", At: start.Add(time.Second)}})
	redistest.WantCodes(t, "Retime of an active task", got, err, 1)
	due, err := Due(t.Context(), a.rdb, a.q, DueArgs{Lead: time.Hour, Room: 10})
	if err != nil || len(due.Tasks) != 2 || len(left) != 1 {
		t.Fatalf("Due = %+v, %v, want the hint and what is left", due, err)
	}
	for _, d := range due.Tasks {
		if d.Record == "" {
			continue
		}
		if err := Forget(t.Context(), a.rdb, a.q, "a", d.Record); err != nil {
			t.Fatal(err)
		}
	}
	if now := a.raw.ZRange(t.Context(), a.q.Due, 0, -1).Val(); len(now) != 1 || now[0] == left[0] {
		t.Errorf("the index has %q, want the hint alone", now)
	}
}

// The answer of a deferral may be lost, and its copy may come when the task
// runs again: that delivery is left alone.
func TestDeferTwice(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("active", "a")
	args := DeferArgs{ID: "a", Token: 0x0123456789abcdef, At: start.Add(minute), Wait: minute, Record: "sms 1 key"}
	for range 2 {
		if err := Defer(t.Context(), a.rdb, a.q, args).Err(); err != nil {
			t.Fatal(err)
		}
	}
	a.place("a", "retry", minute+safetyNet, minute)
	got, err := Wake(t.Context(), a.rdb, a.q, tasks("a"), start, false)
	redistest.WantCodes(t, "Wake", got, err, Woken)
	a.raw.LMove(t.Context(), a.q.Pending, a.q.active, "RIGHT", "LEFT")
	a.raw.HSet(t.Context(), a.q.Task("a"), "state", "active")
	if err := Defer(t.Context(), a.rdb, a.q, args).Err(); err != nil {
		t.Errorf("a late copy of Defer = %v, want OK", err)
	}
	a.place("a", "active", 0, 0)
	// Nor is the copy taken for new when another deferral came in between.
	a.deferTask("a", minute, "")
	got, err = Wake(t.Context(), a.rdb, a.q, tasks("a"), start, false)
	redistest.WantCodes(t, "Wake", got, err, Woken)
	a.raw.LMove(t.Context(), a.q.Pending, a.q.active, "RIGHT", "LEFT")
	a.raw.HSet(t.Context(), a.q.Task("a"), "state", "active")
	if err := Defer(t.Context(), a.rdb, a.q, args).Err(); err != nil {
		t.Errorf("a late copy of an older Defer = %v, want OK", err)
	}
	a.place("a", "active", 0, 0)
}
