package queuescripts

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

func TestWakeKeepsTheOrder(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("pending", "backlog1", "backlog2")
	ids := []string{"first", "second", "third"}
	a.put("active", ids...)
	for i, id := range ids {
		a.deferTask(id, time.Duration(i+1)*time.Second, "")
	}
	got, err := Wake(t.Context(), a.rdb, a.q, tasks(ids...), start, false)
	redistest.WantCodes(t, "Wake", got, err, Woken, Woken, Woken)
	a.place("first", "pending", 0, 0)
	if got := a.raw.HGet(t.Context(), a.q.Task("first"), "pending_since").Val(); got != fmt.Sprint(start.UnixNano()) {
		t.Errorf("pending_since = %s, want %d", got, start.UnixNano())
	}
	for _, want := range []string{"first", "second", "third", "backlog1", "backlog2"} {
		if got := a.raw.LMove(t.Context(), a.q.Pending, a.q.active, "RIGHT", "LEFT").Val(); got != want {
			t.Errorf("asynq pops %q, want %q", got, want)
		}
	}
	got, err = Wake(t.Context(), a.rdb, a.q, tasks(ids...), start, false)
	redistest.WantCodes(t, "Wake again", got, err, NotOurs, NotOurs, NotOurs)
}

func TestWakeLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ctx := t.Context()
	a.put("active", "running", "failed", "done", "dead", "gone", "ours")
	for _, id := range []string{"failed", "done", "dead", "gone", "ours"} {
		a.deferTask(id, time.Second, "")
	}
	backOff := start.Add(time.Hour).Unix() // the task ran meanwhile and failed: its own back-off
	a.raw.ZAdd(ctx, a.q.Retry, redis.Z{Score: float64(backOff), Member: "failed"})
	for id, state := range map[string]string{"done": "completed", "dead": "archived"} {
		a.raw.HSet(ctx, a.q.Task(id), "state", state)
		a.raw.ZRem(ctx, a.q.Retry, id)
	}
	a.raw.Del(ctx, a.q.Task("gone"))
	a.raw.ZRem(ctx, a.q.Retry, "gone")
	a.raw.ZAdd(ctx, a.q.Due, redis.Z{Score: 1, Member: "running"}) // a hint that came before its deferral

	untouched := map[string]string{}
	for _, id := range []string{"running", "failed", "done", "dead"} {
		untouched[id] = fmt.Sprint(a.raw.HGetAll(ctx, a.q.Task(id)).Val())
	}
	woken := tasks("running", "failed", "done", "dead", "gone", "never", "ours")
	woken[4].Record = "sms 1 key" // its hash is not there to tell
	got, err := Wake(ctx, a.rdb, a.q, woken, start, false)
	redistest.WantCodes(t, "Wake", got, err, StillActive, NotOurs, Ended, Ended, Deleted, Deleted, Woken)
	for id, want := range untouched {
		if got := fmt.Sprint(a.raw.HGetAll(ctx, a.q.Task(id)).Val()); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	if got := a.raw.LRange(ctx, a.q.Pending, 0, -1).Val(); !slices.Equal(got, []string{"ours"}) {
		t.Errorf("pending = %v, want ours alone", got)
	}
	if got := a.raw.ZScore(ctx, a.q.Retry, "failed").Val(); int64(got) != backOff {
		t.Errorf("the back-off is %v, want %d", got, backOff)
	}
	if n := a.raw.Exists(ctx, a.q.Task("gone"), a.q.Task("never")).Val(); n != 0 {
		t.Errorf("%d hashes of tasks that are gone, want none", n)
	}
	if got := a.raw.ZRange(ctx, a.q.Due, 0, -1).Val(); !slices.Equal(got, []string{"running", "\x034:deadsms 1 key", "\x034:donesms 1 key"}) {
		t.Errorf("due = %q, want the active one, to be asked again, and those whose places are to be given up", got)
	}
	over := tasks("done", "dead")
	over[0].Record, over[1].Record = "sms 1 key", "sms 1 key"
	got, err = Wake(ctx, a.rdb, a.q, over, start, false)
	redistest.WantCodes(t, "Wake of those", got, err, Ended, Ended)
	if got := a.raw.ZRange(ctx, a.q.Due, 0, -1).Val(); !slices.Equal(got, []string{"running"}) {
		t.Errorf("due = %q, want the active one", got)
	}
}

// Who comes first to wake a task is who deferred it, until a move says that all do;
// so do all when a hint came before its deferral, whose pool does not know of it.
func TestWhoComesFirst(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	hint := func(id string, in time.Duration, shared bool) {
		t.Helper()
		got, err := RetimeEarlier(t.Context(), a.rdb, a.q, []Retiming{{ID: id, At: start.Add(in), Any: shared}})
		redistest.WantCodes(t, "Retime", got, err, 1)
	}
	a.put("active", "kept", "moved", "shared", "again", "hinted", "late")
	hint("hinted", time.Second, false)
	hint("late", time.Minute, false)
	for _, id := range []string{"kept", "moved", "shared", "again", "hinted", "late"} {
		a.deferTask(id, 10*time.Second, "")
	}
	hint("moved", 9*time.Second, false)
	hint("shared", 9*time.Second, true)
	hint("again", 9*time.Second, true)
	hint("again", 8*time.Second, false)
	r, err := Due(t.Context(), a.rdb, a.q, DueArgs{Lead: minute, Room: 10})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]PoolMark{}
	for _, d := range r.Tasks {
		got[d.ID] = d.Pool
	}
	all := PoolMark{}
	want := map[string]PoolMark{"kept": pool, "moved": pool, "shared": all, "again": all, "hinted": all, "late": pool}
	if !maps.Equal(got, want) {
		t.Errorf("who comes first is %v, want %v", got, want)
	}
}

// Who was woken first runs first, also when the next are woken before it was
// fetched; with fair set one other task goes between them: where some woken task
// always waits in front, the others would never run otherwise.
func TestWakeKeepsOrder(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ids := []string{"a", "b", "c", "d"}
	a.put("active", ids...)
	for i, id := range ids {
		a.deferTask(id, time.Duration(i+1)*time.Second, "")
	}
	for _, other := range []string{"x", "y", "z"} {
		a.raw.HSet(t.Context(), a.q.Task(other), "state", "pending", "pending_since", "1")
		a.raw.LPush(t.Context(), a.q.Pending, other)
	}
	wake := func(fair bool, ids []string, want ...string) {
		t.Helper()
		codes := make([]int64, len(ids))
		for i := range codes {
			codes[i] = Woken
		}
		got, err := Wake(t.Context(), a.rdb, a.q, tasks(ids...), start, fair)
		redistest.WantCodes(t, "Wake", got, err, codes...)
		pending := a.raw.LRange(t.Context(), a.q.Pending, 0, -1).Val()
		slices.Reverse(pending)
		if !slices.Equal(pending, want) {
			t.Errorf("to run after Wake(%v) = %v, want %v", tasks(ids...), pending, want)
		}
	}
	wake(false, []string{"a"}, "a", "x", "y", "z")
	wake(true, []string{"b"}, "a", "x", "b", "y", "z")
	a.raw.RPop(t.Context(), a.q.Pending)
	wake(false, []string{"c"}, "x", "b", "c", "y", "z")
	a.raw.RPopCount(t.Context(), a.q.Pending, 3)
	wake(true, []string{"d"}, "y", "d", "z")
}
