package luascripts

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const minute = time.Minute

// asynqQueue is a queue as asynq keeps it, made by hand.
type asynqQueue struct {
	*testing.T
	rdb redis.UniversalClient
	raw *redis.Client
	q   Queue
}

func newQueue(t *testing.T) *asynqQueue {
	t.Helper()
	rdb, raw := timed(t)
	return &asynqQueue{t, rdb, raw, QueueKeys("hw", "default")}
}

// pool is who defers.
var pool = PoolMark{1, 0, 255, 7}

// put makes a task in a state, where asynq has it.
func (a *asynqQueue) put(state string, ids ...string) {
	a.Helper()
	for _, id := range ids {
		a.raw.HSet(a.Context(), a.q.Task(id), "msg", "message of "+id, "state", state)
		switch state {
		case "active":
			a.raw.LPush(a.Context(), a.q.active, id)
			a.raw.ZAdd(a.Context(), a.q.lease, redis.Z{Score: 1, Member: id})
		case "pending":
			a.raw.LPush(a.Context(), a.q.pending, id)
		}
	}
}

// tasks are named as those who have not seen their entries name them.
func tasks(ids ...string) []DueTask {
	out := make([]DueTask, len(ids))
	for i, id := range ids {
		out[i].ID = id
	}
	return out
}

// dueAt is the instant of a task in the index, 0 when it has none.
func (a *asynqQueue) dueAt(id string) float64 {
	for _, e := range []string{shortID(id), fmt.Sprintf("\x03%d:%ssms 1 key", len(id), id)} {
		if at := a.raw.ZScore(a.Context(), a.q.due, e).Val(); at != 0 {
			return at
		}
	}
	return 0
}

func (a *asynqQueue) deferTask(id string, in time.Duration, unique string) {
	a.Helper()
	d := DeferArgs{ID: id, Token: rand.Uint64(), At: start.Add(in), For: "sms 1 key", Wait: in, Unique: unique, Pool: pool}
	if err := Defer(a.Context(), a.rdb, a.q, d).Err(); err != nil {
		a.Fatalf("Defer(%q): %v", id, err)
	}
	keysHaveALife(a.T, a.raw)
}

// place checks where a task is: its state, asynq's score, our instant.
func (a *asynqQueue) place(id, state string, score, due time.Duration) {
	a.Helper()
	ctx := a.Context()
	if got := a.raw.HGet(ctx, a.q.Task(id), "state").Val(); got != state {
		a.Errorf("%s is %q, want %q", id, got, state)
	}
	want := map[bool]float64{true: float64(start.Add(score).Unix())}[score != 0]
	if got := a.raw.ZScore(ctx, a.q.retry, id).Val(); got != want {
		a.Errorf("%s has the score %v in retry, want %v", id, got, want)
	}
	want = map[bool]float64{true: float64(start.Add(due).UnixMicro())}[due != 0]
	if got := a.dueAt(id); got != want {
		a.Errorf("%s is due at %.0f, want %.0f", id, got, want)
	}
	keysHaveALife(a.T, a.raw)
}

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
	if got := a.raw.ZRange(t.Context(), a.q.lease, 0, -1).Val(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("leases = %v, want that of b", got)
	}
	if got := a.raw.HGet(t.Context(), a.q.Task("a"), "msg").Val(); got != before {
		t.Errorf("message = %q, want it unchanged", got)
	}
	if ttl := a.raw.PTTL(t.Context(), a.q.due).Val(); ttl < time.Hour+minute-time.Second || ttl > time.Hour+minute+time.Second {
		t.Errorf("the index lives %v, want an hour longer than the task waits", ttl)
	}
	// What is not running is not ours to move, and asynq's answer says so.
	state := content(t, a.raw)
	for _, id := range []string{"a", "unknown"} {
		cmd := Defer(t.Context(), a.rdb, a.q, DeferArgs{ID: id, Token: 7, At: start, For: "x"})
		if err := cmd.Err(); err == nil || !strings.HasPrefix(err.Error(), "NOT FOUND") {
			t.Errorf("Defer(%q) = %v, want NOT FOUND", id, err)
		}
	}
	if !maps.Equal(state, content(t, a.raw)) {
		t.Errorf("a refused Defer changed something")
	}
}

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
	wantCodes(t, "Wake", got, err, Woken, Woken, Woken)
	a.place("first", "pending", 0, 0)
	if got := a.raw.HGet(t.Context(), a.q.Task("first"), "pending_since").Val(); got != fmt.Sprint(start.UnixNano()) {
		t.Errorf("pending_since = %s, want %d", got, start.UnixNano())
	}
	for _, want := range []string{"first", "second", "third", "backlog1", "backlog2"} {
		if got := a.raw.LMove(t.Context(), a.q.pending, a.q.active, "RIGHT", "LEFT").Val(); got != want {
			t.Errorf("asynq pops %q, want %q", got, want)
		}
	}
	got, err = Wake(t.Context(), a.rdb, a.q, tasks(ids...), start, false)
	wantCodes(t, "Wake again", got, err, NotOurs, NotOurs, NotOurs)
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
	a.raw.ZAdd(ctx, a.q.retry, redis.Z{Score: float64(backOff), Member: "failed"})
	for id, state := range map[string]string{"done": "completed", "dead": "archived"} {
		a.raw.HSet(ctx, a.q.Task(id), "state", state)
		a.raw.ZRem(ctx, a.q.retry, id)
	}
	a.raw.Del(ctx, a.q.Task("gone"))
	a.raw.ZRem(ctx, a.q.retry, "gone")
	a.raw.ZAdd(ctx, a.q.due, redis.Z{Score: 1, Member: "running"}) // a hint that came before its deferral

	untouched := map[string]string{}
	for _, id := range []string{"running", "failed", "done", "dead"} {
		untouched[id] = fmt.Sprint(a.raw.HGetAll(ctx, a.q.Task(id)).Val())
	}
	woken := tasks("running", "failed", "done", "dead", "gone", "never", "ours")
	woken[4].For = "sms 1 key" // its hash is not there to tell
	got, err := Wake(ctx, a.rdb, a.q, woken, start, false)
	wantCodes(t, "Wake", got, err, StillActive, NotOurs, NotOurs, NotOurs, Gone, Gone, Woken)
	for id, want := range untouched {
		if got := fmt.Sprint(a.raw.HGetAll(ctx, a.q.Task(id)).Val()); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	if got := a.raw.LRange(ctx, a.q.pending, 0, -1).Val(); !slices.Equal(got, []string{"ours"}) {
		t.Errorf("pending = %v, want ours alone", got)
	}
	if got := a.raw.ZScore(ctx, a.q.retry, "failed").Val(); int64(got) != backOff {
		t.Errorf("the back-off is %v, want %d", got, backOff)
	}
	if n := a.raw.Exists(ctx, a.q.Task("gone"), a.q.Task("never")).Val(); n != 0 {
		t.Errorf("%d hashes of tasks that are gone, want none", n)
	}
	if got := a.raw.ZRange(ctx, a.q.due, 0, -1).Val(); !slices.Equal(got, []string{"running"}) {
		t.Errorf("due = %v, want the active one, to be asked again", got)
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
			got, err := Retime(ctx, a.rdb, a.q, false, []Retiming{{ID: id, At: start.Add(in)}})
			wantCodes(t, "Retime", got, err, 1)
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
		got, err := Retime(t.Context(), a.rdb, a.q, true, []Retiming{{ID: id, At: start.Add(30 * time.Second)}})
		wantCodes(t, "Retime of an active task", got, err, 1)
		a.place(id, "active", 0, 30*time.Second)
	}
	a.deferTask("a", minute, "")
	a.place("a", "retry", 30*time.Second+safetyNet, 30*time.Second)
	a.deferTask("b", 10*time.Second, "")
	a.place("b", "retry", 10*time.Second+safetyNet, 10*time.Second)
	// Without "earlier" a running task is left alone.
	a.put("active", "c")
	got, err := Retime(t.Context(), a.rdb, a.q, false, []Retiming{{ID: "c", At: start.Add(minute)}})
	wantCodes(t, "Retime", got, err, 0)
	a.place("c", "active", 0, 0)
}

func TestRetime(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ctx := t.Context()
	a.put("active", "a", "b", "failed", "old")
	for _, id := range []string{"a", "b", "failed", "old"} {
		a.deferTask(id, minute, "")
	}
	a.raw.ZAdd(ctx, a.q.retry, redis.Z{Score: 7, Member: "failed"})
	a.put("completed", "done")
	all := func(in time.Duration) []Retiming {
		var out []Retiming
		for _, id := range []string{"a", "b", "failed", "done", "gone"} {
			out = append(out, Retiming{ID: id, At: start.Add(in)})
		}
		return out
	}
	got, err := Retime(ctx, a.rdb, a.q, false, all(2*minute))
	wantCodes(t, "Retime later", got, err, 1, 1, 0, 0, 0)
	a.place("a", "retry", 2*minute+safetyNet, 2*minute)
	got, err = Retime(ctx, a.rdb, a.q, true, all(3*minute))
	wantCodes(t, "Retime earlier, to a later instant", got, err, 0, 0, 0, 0, 0)
	a.place("a", "retry", 2*minute+safetyNet, 2*minute)
	got, err = Retime(ctx, a.rdb, a.q, true, all(30*time.Second))
	wantCodes(t, "Retime earlier", got, err, 1, 1, 0, 0, 0)
	a.place("a", "retry", 30*time.Second+safetyNet, 30*time.Second)
	if got := a.raw.ZScore(ctx, a.q.retry, "failed").Val(); got != 7 {
		t.Errorf("the back-off of another is %v, want 7", got)
	}
	got, err = Wake(ctx, a.rdb, a.q, tasks("a", "failed"), start, false) // hw's score moved along
	wantCodes(t, "Wake", got, err, Woken, NotOurs)
	// Long past, also when its index is new: it stays, and has a life.
	a.raw.Del(ctx, a.q.due)
	got, err = Retime(ctx, a.rdb, a.q, false, []Retiming{{ID: "old", At: start.Add(-2 * time.Hour)}})
	wantCodes(t, "Retime to long ago", got, err, 1)
	a.place("old", "retry", -2*time.Hour+safetyNet, -2*time.Hour)
}

func TestDue(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	reply, err := Due(t.Context(), a.rdb, a.q, 0, 10)
	if err != nil || !reply.Now.Equal(start) || !reply.Next.IsZero() || len(reply.Tasks) != 0 {
		t.Errorf("Due of nothing = %+v, %v, want nothing", reply, err)
	}
	ids := []string{"a", "b", "c", "d"}
	a.put("active", ids...)
	for i, id := range ids {
		a.deferTask(id, time.Duration(i)*time.Second, "")
	}
	a.raw.Del(t.Context(), a.q.Task("b"))
	reply, err = Due(t.Context(), a.rdb, a.q, 1500*time.Millisecond, 10)
	want := []DueTask{{"a", start, "retry", "sms 1 key", pool}, {"b", start.Add(time.Second), "", "sms 1 key", PoolMark{}}}
	same := func(x, y DueTask) bool {
		return x.ID == y.ID && x.At.Equal(y.At) && x.State == y.State && x.For == y.For && x.Pool == y.Pool
	}
	if err != nil || !slices.EqualFunc(reply.Tasks, want, same) || !reply.Next.Equal(start.Add(2*time.Second)) {
		t.Errorf("Due = %+v, %v, want %+v", reply, err, want)
	}
	reply, err = Due(t.Context(), a.rdb, a.q, minute, 1)
	if err != nil || len(reply.Tasks) != 1 || !reply.Next.Equal(start.Add(time.Second)) {
		t.Errorf("Due of one = %+v, %v, want a, and b next", reply, err)
	}
}

// Who comes first to wake a task is who deferred it, until a move says that all do;
// so do all when a hint came before its deferral, whose pool does not know of it.
func TestWhoComesFirst(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	hint := func(id string, in time.Duration, shared bool) {
		t.Helper()
		got, err := Retime(t.Context(), a.rdb, a.q, true, []Retiming{{ID: id, At: start.Add(in), Any: shared}})
		wantCodes(t, "Retime", got, err, 1)
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
	r, err := Due(t.Context(), a.rdb, a.q, minute, 10)
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

// A task that runs may have a hint or an old entry: what its own error is told to
// wait for must not be cut short by it. One that was deferred keeps its entry.
func TestForget(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("active", "a", "b")
	a.deferTask("b", minute, "")
	got, err := Retime(t.Context(), a.rdb, a.q, true, []Retiming{{ID: "a", At: start.Add(time.Second)}})
	wantCodes(t, "Retime of an active task", got, err, 1)
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
	left := a.raw.ZRange(t.Context(), a.q.due, 0, -1).Val()
	a.raw.ZRem(t.Context(), a.q.retry, "a")
	a.raw.Del(t.Context(), a.q.Task("a"))
	a.put("active", "a")
	got, err := Retime(t.Context(), a.rdb, a.q, true, []Retiming{{ID: "a", At: start.Add(time.Second)}})
	wantCodes(t, "Retime of an active task", got, err, 1)
	due, err := Due(t.Context(), a.rdb, a.q, time.Hour, 10)
	if err != nil || len(due.Tasks) != 2 || len(left) != 1 {
		t.Fatalf("Due = %+v, %v, want the hint and what is left", due, err)
	}
	for _, d := range due.Tasks {
		if d.For == "" {
			continue
		}
		if err := Forget(t.Context(), a.rdb, a.q, "a", d.For); err != nil {
			t.Fatal(err)
		}
	}
	if now := a.raw.ZRange(t.Context(), a.q.due, 0, -1).Val(); len(now) != 1 || now[0] == left[0] {
		t.Errorf("the index has %q, want the hint alone", now)
	}
}

// The answer of a deferral may be lost, and its copy may come when the task
// runs again: that delivery is left alone.
func TestDeferTwice(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("active", "a")
	args := DeferArgs{ID: "a", Token: 0x0123456789abcdef, At: start.Add(minute), Wait: minute, For: "sms 1 key"}
	for range 2 {
		if err := Defer(t.Context(), a.rdb, a.q, args).Err(); err != nil {
			t.Fatal(err)
		}
	}
	a.place("a", "retry", minute+safetyNet, minute)
	got, err := Wake(t.Context(), a.rdb, a.q, tasks("a"), start, false)
	wantCodes(t, "Wake", got, err, Woken)
	a.raw.LMove(t.Context(), a.q.pending, a.q.active, "RIGHT", "LEFT")
	a.raw.HSet(t.Context(), a.q.Task("a"), "state", "active")
	if err := Defer(t.Context(), a.rdb, a.q, args).Err(); err != nil {
		t.Errorf("a late copy of Defer = %v, want OK", err)
	}
	a.place("a", "active", 0, 0)
	// Nor is the copy taken for new when another deferral came in between.
	a.deferTask("a", minute, "")
	got, err = Wake(t.Context(), a.rdb, a.q, tasks("a"), start, false)
	wantCodes(t, "Wake", got, err, Woken)
	a.raw.LMove(t.Context(), a.q.pending, a.q.active, "RIGHT", "LEFT")
	a.raw.HSet(t.Context(), a.q.Task("a"), "state", "active")
	if err := Defer(t.Context(), a.rdb, a.q, args).Err(); err != nil {
		t.Errorf("a late copy of an older Defer = %v, want OK", err)
	}
	a.place("a", "active", 0, 0)
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
		a.raw.LPush(t.Context(), a.q.pending, other)
	}
	wake := func(fair bool, ids []string, want ...string) {
		t.Helper()
		codes := make([]int64, len(ids))
		for i := range codes {
			codes[i] = Woken
		}
		got, err := Wake(t.Context(), a.rdb, a.q, tasks(ids...), start, fair)
		wantCodes(t, "Wake", got, err, codes...)
		pending := a.raw.LRange(t.Context(), a.q.pending, 0, -1).Val()
		slices.Reverse(pending)
		if !slices.Equal(pending, want) {
			t.Errorf("to run after Wake(%v) = %v, want %v", tasks(ids...), pending, want)
		}
	}
	wake(false, []string{"a"}, "a", "x", "y", "z")
	wake(true, []string{"b"}, "a", "x", "b", "y", "z")
	a.raw.RPop(t.Context(), a.q.pending)
	wake(false, []string{"c"}, "x", "b", "c", "y", "z")
	a.raw.RPopCount(t.Context(), a.q.pending, 3)
	wake(true, []string{"d"}, "y", "d", "z")
}
