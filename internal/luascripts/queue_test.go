package luascripts

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

const minute = time.Minute

// asynqQueue is a queue as asynq keeps it, made by hand.
type asynqQueue struct {
	*testing.T
	rdb redis.UniversalClient
	raw *redis.Client
	q   QueueKeys
}

func newQueue(t *testing.T, opts ...redistest.Option) *asynqQueue {
	t.Helper()
	rdb, raw := timed(t, opts...)
	return &asynqQueue{t, rdb, raw, NewQueueKeys("hw", "default")}
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
	d := DeferArgs{ID: id, Token: rand.Uint64(), At: start.Add(in), Record: "sms 1 key", Wait: in, Unique: unique, Pool: pool}
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
	got, err := Retime(ctx, a.rdb, a.q, all(2*minute))
	wantCodes(t, "Retime later", got, err, Retimed, Retimed, 0, Ended, Deleted)
	a.place("a", "retry", 2*minute+safetyNet, 2*minute)
	got, err = RetimeEarlier(ctx, a.rdb, a.q, all(3*minute))
	wantCodes(t, "Retime earlier, to a later instant", got, err, 0, 0, 0, Ended, Deleted)
	a.place("a", "retry", 2*minute+safetyNet, 2*minute)
	got, err = RetimeEarlier(ctx, a.rdb, a.q, all(30*time.Second))
	wantCodes(t, "Retime earlier", got, err, Retimed, Retimed, 0, Ended, Deleted)
	a.place("a", "retry", 30*time.Second+safetyNet, 30*time.Second)
	if got := a.raw.ZScore(ctx, a.q.retry, "failed").Val(); got != 7 {
		t.Errorf("the back-off of another is %v, want 7", got)
	}
	got, err = Wake(ctx, a.rdb, a.q, tasks("a", "failed"), start, false) // hw's score moved along
	wantCodes(t, "Wake", got, err, Woken, NotOurs)
	// Long past, also when its index is new: it stays, and has a life.
	a.raw.Del(ctx, a.q.due)
	got, err = Retime(ctx, a.rdb, a.q, []Retiming{{ID: "old", At: start.Add(-2 * time.Hour)}})
	wantCodes(t, "Retime to long ago", got, err, 1)
	a.place("old", "retry", -2*time.Hour+safetyNet, -2*time.Hour)
}

func TestDue(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	reply, err := Due(t.Context(), a.rdb, a.q, DueArgs{Room: 10})
	if err != nil || !reply.Now.Equal(start) || !reply.Again.IsZero() || len(reply.Tasks) != 0 {
		t.Errorf("Due of nothing = %+v, %v, want nothing", reply, err)
	}
	ids := []string{"a", "b", "c", "d"}
	a.put("active", ids...)
	for i, id := range ids {
		a.deferTask(id, time.Duration(i)*time.Second, "")
	}
	a.raw.Del(t.Context(), a.q.Task("b"))
	reply, err = Due(t.Context(), a.rdb, a.q, DueArgs{Lead: 1500 * time.Millisecond, Room: 10})
	want := []DueTask{{"a", start, "retry", "sms 1 key", pool, Wait{}}, {"b", start.Add(time.Second), "", "sms 1 key", PoolMark{}, Wait{}}}
	same := func(x, y DueTask) bool {
		return x.ID == y.ID && x.At.Equal(y.At) && x.State == y.State && x.Record == y.Record && x.Pool == y.Pool
	}
	if err != nil || !slices.EqualFunc(reply.Tasks, want, same) || !reply.Again.Equal(start.Add(500*time.Millisecond)) {
		t.Errorf("Due = %+v, %v, want %+v", reply, err, want)
	}
	reply, err = Due(t.Context(), a.rdb, a.q, DueArgs{Lead: minute, Room: 1})
	if err != nil || len(reply.Tasks) != 2 || !reply.More {
		t.Errorf("Due of one = %+v, %v, want a, b that is gone beside, and that there is more", reply, err)
	}
}
