package queuescripts

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// aMovingQueue is a queue on a cluster, and what begins to move its slot to another node, with
// all of its keys still here. From then on Redis ends a script that touches a key which the script
// itself has emptied.
func aMovingQueue(t *testing.T) (a *asynqQueue, move func()) {
	t.Helper()
	rdb, nodes := redistest.StartNodes(t, 2)
	q := NewQueueKeys("hw", "default")
	owner, err := rdb.MasterForKey(t.Context(), q.Pending)
	if err != nil {
		t.Fatal(err)
	}
	here, there := nodes[0].Client(t), nodes[1].Client(t)
	if owner.Options().Addr == nodes[1].Addr() {
		here, there = there, here
	}
	here.ZAdd(t.Context(), q.Scheduled, redis.Z{Score: 1e10, Member: "later"})
	return &asynqQueue{t, here, here, q}, func() {
		t.Helper()
		slot, id := here.ClusterKeySlot(t.Context(), q.Pending).Val(), there.Do(t.Context(), "cluster", "myid").Val()
		if err := here.Do(t.Context(), "cluster", "setslot", slot, "migrating", id).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

const waitsForSMS = "sms 1 key"

func (a *asynqQueue) putAway(at time.Time, ids ...string) {
	a.Helper()
	for i, id := range ids {
		d := DeferArgs{ID: id, Token: uint64(4711 + i), At: at, Record: waitsForSMS, Wait: minute}
		if err := Defer(a.Context(), a.rdb, a.q, d).Err(); err != nil {
			a.Fatalf("Defer(%q): %v", id, err)
		}
	}
}

func (a *asynqQueue) wantEntries(key string, want ...string) {
	a.Helper()
	if got := a.raw.ZRange(a.Context(), key, 0, -1).Val(); !slices.Equal(got, want) {
		a.Errorf("%s has %q, want %q", key, got, want)
	}
}

// Tasks that are woken empty the set in which they wait, and go behind those that were woken earlier.
func TestWakeWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	a, move := aMovingQueue(t)
	now := time.Now()
	a.put("active", "a", "b", "c")
	a.putAway(now, "a", "b", "c")
	a.put("pending", "other")
	move()
	for _, ids := range [][]string{{"a"}, {"b", "c"}} { // the second call finds the first in front
		var due []DueTask
		for _, id := range ids {
			due = append(due, DueTask{ID: id, Record: waitsForSMS})
		}
		if got, err := Wake(t.Context(), a.rdb, a.q, due, now, true); err != nil || slices.ContainsFunc(got, func(code int64) bool { return code != Woken }) {
			t.Errorf("Wake(%v) = %v, %v, want all woken", ids, got, err)
		}
	}
	if got, want := a.raw.LRange(t.Context(), a.q.Pending, 0, -1).Val(), []string{"c", "b", "a", "other"}; !slices.Equal(got, want) {
		t.Errorf("%q are pending, want %q", got, want)
	}
	for _, id := range []string{"a", "b", "c"} {
		if state := a.raw.HGet(t.Context(), a.q.Task(id), "state").Val(); state != "pending" {
			t.Errorf("%s is %q, want pending", id, state)
		}
	}
}

// The task is the only one that waits, and so is its entry.
func TestRetimeWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	a, move := aMovingQueue(t)
	now := time.Now()
	a.put("active", "a")
	a.putAway(now, "a")
	entries := a.raw.ZRange(t.Context(), a.q.Due, 0, -1).Val()
	move()
	got, err := Retime(t.Context(), a.rdb, a.q, []Retiming{{ID: "a", At: now.Add(minute), In: minute}})
	if err != nil || !slices.Equal(got, []int64{Retimed}) {
		t.Errorf("Retime = %v, %v, want it re-timed", got, err)
	}
	a.wantEntries(a.q.Due, entries...)
	a.wantEntries(a.q.Retry, "a")
}

// The only entry is a hint that came before the task was deferred.
func TestDeferWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	a, move := aMovingQueue(t)
	now := time.Now()
	a.put("active", "a")
	a.raw.ZAdd(t.Context(), a.q.Retry, redis.Z{Score: 1e10, Member: "later"})
	if got, err := RetimeEarlier(t.Context(), a.rdb, a.q, []Retiming{{ID: "a", At: now}}); err != nil || !slices.Equal(got, []int64{Retimed}) {
		t.Fatalf("Retime = %v, %v, want a hint", got, err)
	}
	hint := a.raw.ZRange(t.Context(), a.q.Due, 0, -1).Val()
	move()
	a.putAway(now.Add(minute), "a")
	a.wantEntries(a.q.Retry, "a", "later")
	if entries := a.raw.ZRange(t.Context(), a.q.Due, 0, -1).Val(); len(entries) != 1 || slices.Equal(entries, hint) {
		t.Errorf("%q are due, want another entry in the place of %q", entries, hint)
	}
}
