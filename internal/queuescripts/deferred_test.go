package queuescripts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
)

// field is what we keep in asynq's hash of a task.
func (a *asynqQueue) field(id string) string {
	return a.raw.HGet(a.Context(), a.q.Task(id), "hw").Val()
}

// What a task waits for is replaced, and dropped when it is woken: only the tokens of
// the last eight deferrals stay.
func TestFieldDoesNotGrow(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("active", uuid)
	for n := 1; n <= 12; n++ {
		a.deferTask(uuid, time.Duration(n)*time.Second, "")
		if got, want := len(a.field(uuid)), 17+8*min(n, 8)+len("sms 1 key"); got != want {
			t.Fatalf("after %d deferrals the field has %d bytes, want %d", n, got, want)
		}
		got, err := Wake(t.Context(), a.rdb, a.q, tasks(uuid), start, false)
		redistest.WantCodes(t, "Wake", got, err, Woken)
		if got, want := len(a.field(uuid)), 17+8*min(n, 8); got != want {
			t.Fatalf("when it was woken it has %d bytes, want %d", got, want)
		}
		a.raw.LRem(t.Context(), a.q.Pending, 0, uuid)
		a.put("active", uuid)
	}
	if n := a.raw.Exists(t.Context(), a.q.Due).Val(); n != 0 {
		t.Error("the index is left, want none")
	}
}

// How a task waits is kept until it has run: since when, how often its instant was changed,
// and why it has the one that it has.
func TestHowATaskWaits(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	want := func(since time.Duration, moved int, cause Cause, rule int) {
		t.Helper()
		f, err := GetTask(t.Context(), a.rdb, a.q, "a")
		w := Wait{Since: start.Add(since), Moved: moved, Reason: WaitReason{cause, rule}}
		if since < 0 {
			w = Wait{}
		}
		if err != nil || !f.Wait.Since.Equal(w.Since) || f.Wait.Moved != w.Moved || f.Wait.Reason != w.Reason {
			t.Fatalf("it waits as %+v, %v, want %+v", f.Wait, err, w)
		}
		if r, err := ScanDeferredWithStates(t.Context(), a.rdb, a.q, time.Time{}, 0, 10); err != nil || len(r.Tasks) == 1 && r.Tasks[0].Wait != f.Wait {
			t.Fatalf("in a list it waits as %+v, %v", r.Tasks, err)
		}
	}
	deferAs := func(token uint64, cause Cause, rule int) {
		t.Helper()
		d := DeferArgs{ID: "a", Token: token, At: start.Add(2 * minute), Record: "sms+day 1 key", Wait: minute, Reason: WaitReason{cause, rule}}
		if err := Defer(t.Context(), a.rdb, a.q, d).Err(); err != nil {
			t.Fatal(err)
		}
	}
	a.put("active", "a")
	want(-1, 0, 0, 0)
	deferAs(1, CauseBooked, 1)
	want(0, 0, CauseBooked, 1)
	a.rdb.(redistest.Timed).SetTime(start.Add(10 * time.Second))
	got, err := Retime(t.Context(), a.rdb, a.q, []Retiming{{ID: "a", At: start.Add(minute), Reason: WaitReason{CauseChange, 2}}})
	redistest.WantCodes(t, "Retime", got, err, Retimed)
	want(0, 1, CauseChange, 2)
	got, err = RetimeEarlier(t.Context(), a.rdb, a.q, []Retiming{{ID: "a", At: start.Add(30 * time.Second), Reason: WaitReason{CausePromotion, SameRule}}})
	redistest.WantCodes(t, "Retime", got, err, Retimed)
	want(0, 2, CausePromotion, 2)
	got, err = Wake(t.Context(), a.rdb, a.q, []DueTask{{ID: "a", Record: "sms+day 1 key"}}, start, false)
	redistest.WantCodes(t, "Wake", got, err, Woken)
	want(0, 2, CausePromotion, 2)
	a.raw.LRem(t.Context(), a.q.Pending, 0, "a")
	a.put("active", "a")
	deferAs(2, CauseGate, 0)
	want(0, 3, CauseGate, 0)
	a.put("active", "a") // an operator ran it, and it failed
	a.raw.ZRem(t.Context(), a.q.Retry, "a")
	if err := Forget(t.Context(), a.rdb, a.q, "a", ""); err != nil {
		t.Fatal(err)
	}
	want(-1, 0, 0, 0)
	deferAs(3, CauseBooked, 1)
	want(10*time.Second, 0, CauseBooked, 1)
}

// A task whose handler is running has no score of ours any more: its own back-off may
// end in the very second that was ours.
func TestForgetDropsTheScore(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("active", "a")
	a.deferTask("a", minute, "")
	a.raw.ZRem(t.Context(), a.q.Retry, "a") // an operator runs it
	a.put("active", "a")
	if err := Forget(t.Context(), a.rdb, a.q, "a", ""); err != nil {
		t.Fatal(err)
	}
	a.place("a", "active", 0, 0)
	a.raw.HSet(t.Context(), a.q.Task("a"), "state", "retry")
	a.raw.ZAdd(t.Context(), a.q.Retry, redis.Z{Score: float64(start.Add(minute + safetyNet).Unix()), Member: "a"})
	codes, err := Retime(t.Context(), a.rdb, a.q, []Retiming{{ID: "a", At: start}})
	redistest.WantCodes(t, "Retime", codes, err, 0)
	codes, err = Wake(t.Context(), a.rdb, a.q, tasks("a"), start, false)
	redistest.WantCodes(t, "Wake", codes, err, NotOurs)
}

// A score that is no whole second, or that is ours but for what 4 bytes don't hold, is not ours.
func TestScoresOfOthers(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ours := float64(start.Add(minute + safetyNet).Unix())
	for name, score := range map[string]string{"half": fmt.Sprintf("%.1f", ours+0.5), "next": fmt.Sprintf("%.0f", ours+1), "far": "+inf", "past": "-inf", "zero": "0"} {
		a.put("active", name)
		a.deferTask(name, minute, "")
		if err := a.raw.Do(t.Context(), "ZADD", a.q.Retry, score, name).Err(); err != nil {
			t.Fatal(err)
		}
		codes, err := Wake(t.Context(), a.rdb, a.q, tasks(name), start, false)
		redistest.WantCodes(t, "Wake of "+name, codes, err, NotOurs)
	}
}

// What a task waits for is told also when somebody deleted it, and its entry can be
// cleared. One of the same id that came since is not woken by it.
func TestEntriesOfDeletedTasks(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ctx := t.Context()
	for _, id := range []string{uuid, "a", "\x03a", "2:a"} {
		a.put("active", id)
		a.deferTask(id, time.Second, "")
		a.raw.Del(ctx, a.q.Task(id))
		a.raw.ZRem(ctx, a.q.Retry, id)
		due, err := Due(ctx, a.rdb, a.q, DueArgs{Lead: 2 * time.Second, Room: 10})
		if err != nil || len(due.Tasks) != 1 || due.Tasks[0].ID != id || due.Tasks[0].State != "" || due.Tasks[0].Record != "sms 1 key" {
			t.Fatalf("Due = %+v, %v, want %q, gone, with its place", due, err, id)
		}
		a.put("active", id)
		again := DeferArgs{ID: id, Token: 1, At: start.Add(minute), Wait: minute, Record: "sms 1 other", Pool: pool}
		if err := Defer(ctx, a.rdb, a.q, again).Err(); err != nil {
			t.Fatal(err)
		}
		left := Retiming{ID: id, At: start.Add(30 * time.Second), Record: due.Tasks[0].Record}
		codes, err := Retime(ctx, a.rdb, a.q, []Retiming{left})
		redistest.WantCodes(t, "Retime of one that is gone", codes, err, 0)
		codes, err = Wake(ctx, a.rdb, a.q, due.Tasks, start, false)
		redistest.WantCodes(t, "Wake of one that is gone", codes, err, NotOurs)
		due, err = Due(ctx, a.rdb, a.q, DueArgs{Lead: 2 * minute, Room: 10})
		if err != nil || len(due.Tasks) != 1 || due.Tasks[0].Record != "sms 1 other" || !due.Tasks[0].At.Equal(start.Add(minute)) {
			t.Fatalf("Due = %+v, %v, want the other one of that id alone, at its instant", due, err)
		}
		codes, err = Wake(ctx, a.rdb, a.q, due.Tasks, start, false)
		redistest.WantCodes(t, "Wake", codes, err, Woken)
	}
}

// A phone that waits for one rule is told in so few bytes that Redis keeps the entry in
// the piece of memory that the id alone would need, and the field in that of a token.
func TestAPlaceIsShort(t *testing.T) {
	t.Parallel()
	const most = 30 // and 2 of Redis make a piece of 32
	text := WaitRecord{Booking: NewStoredBooking("sms", []int{1}, []string{"+4917010000000"})}.Text()
	if n := len(luascripts.ShortID(uuid) + text); n > most || strings.Contains(text, "491") {
		t.Errorf("an entry takes %d bytes, want %d at most", n, most)
	}
	if n := 1 + 4 + 4 + 8 + len(text); n > most {
		t.Errorf("the field takes %d bytes, want %d at most", n, most)
	}
}
