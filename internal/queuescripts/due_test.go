package queuescripts

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// every defers a task that is every pool's.
func (a *asynqQueue) every(in time.Duration, ids ...string) {
	a.Helper()
	for i, id := range ids {
		a.put("active", id)
		d := DeferArgs{ID: id, Token: uint64(i + 1), At: start.Add(in), Record: "sms 1 key", Wait: in}
		if err := Defer(a.Context(), a.rdb, a.q, d).Err(); err != nil {
			a.Fatalf("Defer(%q): %v", id, err)
		}
	}
}

func (a *asynqQueue) wantDue(args DueArgs, ids ...string) DueReply {
	a.Helper()
	r, err := Due(a.Context(), a.rdb, a.q, args)
	var got []string
	for _, t := range r.Tasks {
		got = append(got, t.ID)
	}
	if err != nil || !slices.Equal(got, ids) {
		a.Fatalf("Due(%+v) = %q, %v, want %q", args, got, err, ids)
	}
	return r
}

// What is every pool's goes to the pool that asks first, so that it is not looked at
// twice; another finds it when it was not woken.
func TestWhatIsEveryPoolsIsTakenByOne(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	one, other := PoolMark{1}, PoolMark{2}
	a.every(time.Second, "a", "b", "c")
	args := DueArgs{Lead: time.Second, Room: 2, Free: 2, Pool: one, Others: time.Second}
	r := a.wantDue(args, "a", "b")
	if r.Tasks[0].Pool != (PoolMark{}) || !r.More {
		t.Errorf("Due = %+v, want that a was every pool's, and that there is more", r)
	}
	args.Pool, args.Room, args.Free = other, 10, 10
	if r = a.wantDue(args, "c"); !r.Again.Equal(start.Add(2 * time.Second)) {
		t.Errorf("another is to ask again at %v, want when the first is overdue", r.Again)
	}
	a.wantDue(DueArgs{Lead: time.Second, Room: 10, Pool: one, Others: time.Second}, "a", "b")
	args.Lead, args.Others = 2*time.Second, -time.Second
	a.wantDue(args, "a", "b", "c")
	codes, err := Retime(t.Context(), a.rdb, a.q, []Retiming{{ID: "a", At: start, Any: true}})
	redistest.WantCodes(t, "Retime", codes, err, 1)
	a.wantDue(DueArgs{Room: 10, Free: 10, Pool: other, Others: time.Minute}, "a")
	codes, err = Wake(t.Context(), a.rdb, a.q, tasks("a", "b"), start, false)
	redistest.WantCodes(t, "Wake of what was taken", codes, err, Woken, Woken)
}

// Of what is every pool's a pool takes no more than it has workers for: another may have one.
func TestNoPoolTakesMoreThanItHasWorkersFor(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.every(0, "a", "b", "c")
	a.wantDue(DueArgs{Room: 2, Free: 1, Pool: PoolMark{1}, Others: minute}, "a", "b")
	a.wantDue(DueArgs{Room: 3, Free: 3, Pool: PoolMark{2}, Others: minute}, "b", "c")
}

// Those that can't be woken, and those of others, keep nobody from those behind them.
func TestWhatIsDueBehindWhatIsNot(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	for i := range 30 {
		id := string(rune('A' + i))
		a.put("active", id)
		a.deferTask(id, -time.Second, "")
	}
	a.put("active", "D")
	a.raw.HSet(t.Context(), a.q.Task("D"), "state", "active")
	a.raw.Del(t.Context(), a.q.Task("E"))
	a.every(0, "x", "y")
	args := DueArgs{Room: 1, Free: 1, Pool: PoolMark{9}, Others: minute}
	if r := a.wantDue(args, "D", "E", "x"); !r.More {
		t.Errorf("Due = %+v, want that there is more", r)
	}
	args.Room = 0
	if r := a.wantDue(args, "D", "E"); !r.More {
		t.Errorf("Due without room = %+v, want that there is more", r)
	}
}

// A look without room reads few entries of many, and not all that are due.
func TestALookReadsWhatItHasRoomFor(t *testing.T) {
	t.Parallel()
	a := newQueue(t, redistest.Own()) // it counts commands
	for i := range 300 {
		a.every(0, fmt.Sprint("x", i))
	}
	reads := func() (n int) {
		stats := a.raw.Info(t.Context(), "commandstats").Val()
		_, after, _ := strings.Cut(stats, "cmdstat_hmget:calls=")
		_, _ = fmt.Sscanf(after, "%d", &n)
		return n
	}
	before := reads()
	if r, err := Due(t.Context(), a.rdb, a.q, DueArgs{Room: 3, Free: 3, Pool: PoolMark{1}}); err != nil || len(r.Tasks) != 3 || !r.More {
		t.Fatalf("Due = %+v, %v, want three, and that there is more", r, err)
	}
	if n := reads() - before; n > 5 {
		t.Errorf("a look with room for three read %d tasks", n)
	}
}

// When Redis is full nothing can be taken: then all pools have it, and it is woken.
func TestFullRedisAndWhatIsDue(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t, redistest.Arg("maxmemory-policy", "noeviction"))
	a := &asynqQueue{t, rdb, raw, NewQueueKeys("hw", "default")}
	a.every(0, "a")
	_, _ = Due(t.Context(), rdb, a.q, DueArgs{}) // the text is known before memory runs out
	_, _ = Wake(t.Context(), rdb, a.q, tasks("none"), start, false)
	redistest.FillMemory(t, raw)
	a.wantDue(DueArgs{Room: 10, Free: 10, Pool: PoolMark{1}, Others: minute}, "a")
	a.wantDue(DueArgs{Room: 10, Free: 10, Pool: PoolMark{2}, Others: minute}, "a")
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
