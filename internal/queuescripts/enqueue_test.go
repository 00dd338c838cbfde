package queuescripts

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

const uuid = "0190c3a4-5b6c-7d8e-9f00-a1b2c3d4e5f6"

// enqueue runs enqueue.lua as a call of its own.
func (a *asynqQueue) enqueue(call uint64, want []int64, tasks ...EnqueueTask) {
	a.Helper()
	got, err := Enqueue(a.Context(), a.rdb, a.q, call, tasks)
	redistest.WantCodes(a.T, "Enqueue", got, err, want...)
	redistest.KeysHaveALife(a.T, a.raw)
}

func (a *asynqQueue) booked(id string, token uint64, in time.Duration) EnqueueTask {
	return EnqueueTask{ID: id, Token: token, Message: []byte("message of " + id), At: start.Add(in), Record: "sms 1 key"}
}

// fields are asynq's own of a task's hash.
func (a *asynqQueue) fields(id string) map[string]string {
	a.Helper()
	h := a.raw.HGetAll(a.Context(), a.q.Task(id)).Val()
	delete(h, "hw")
	return h
}

func TestEnqueueAsAsynqDoes(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	lock, later := "asynq:{default}:unique:sms:x", start.Add(minute).Unix()
	a.enqueue(1, []int64{1, 1, 1},
		EnqueueTask{ID: uuid, Token: 1, Message: []byte("m\x00\xff"), Since: 12345},
		EnqueueTask{ID: "unique", Token: 2, Message: []byte("u"), Since: 12346, Unique: lock, Lock: time.Hour},
		EnqueueTask{ID: "\x01later", Token: 3, Message: []byte("l"), Score: later, Unique: lock + "2", Lock: 2 * time.Hour})
	for id, want := range map[string]map[string]string{
		uuid:        {"msg": "m\x00\xff", "state": "pending", "pending_since": "12345"},
		"unique":    {"msg": "u", "state": "pending", "pending_since": "12346", "unique_key": lock},
		"\x01later": {"msg": "l", "state": "scheduled", "unique_key": lock + "2"},
	} {
		if diff := cmp.Diff(want, a.fields(id)); diff != "" {
			t.Errorf("the hash of %q (-want +got):\n%s", id, diff)
		}
	}
	if diff := cmp.Diff([]string{"unique", uuid}, a.raw.LRange(t.Context(), a.q.Pending, 0, -1).Val()); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
	want := []redis.Z{{Score: float64(later), Member: "\x01later"}}
	if diff := cmp.Diff(want, a.raw.ZRangeWithScores(t.Context(), a.q.Scheduled, 0, -1).Val()); diff != "" {
		t.Errorf("scheduled (-want +got):\n%s", diff)
	}
	for key, id := range map[string]string{lock: "unique", lock + "2": "\x01later"} {
		if got := a.raw.Get(t.Context(), key).Val(); got != id {
			t.Errorf("%s is held by %q, want %q", key, got, id)
		}
	}
	if ttl := a.raw.PTTL(t.Context(), lock).Val(); ttl > time.Hour || ttl < time.Hour-minute {
		t.Errorf("the lock lives %v, want an hour", ttl)
	}
	if n := a.raw.Exists(t.Context(), a.q.Due).Val(); n != 0 {
		t.Errorf("%d keys of ours for tasks that nobody booked, want none", n)
	}
}

func TestEnqueueRefuses(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	lock := "asynq:{default}:unique:sms:x"
	a.put("completed", "there")
	a.raw.Set(t.Context(), lock, "other", time.Hour)
	before := redistest.Dump(t, a.raw)
	a.enqueue(1, []int64{Conflict, Duplicate, Duplicate, Enqueued, Conflict},
		EnqueueTask{ID: "there", Token: 1, Message: []byte("m"), Since: 1, Unique: lock + "2", Lock: time.Hour},
		EnqueueTask{ID: "new", Token: 2, Message: []byte("m"), Since: 1, Unique: lock, Lock: time.Hour},
		EnqueueTask{ID: "there", Token: 3, Message: []byte("m"), Since: 1, Unique: lock, Lock: time.Hour},
		EnqueueTask{ID: "twice", Token: 4, Message: []byte("m"), Since: 1},
		EnqueueTask{ID: "twice", Token: 5, Message: []byte("another"), Since: 1})
	after := redistest.Dump(t, a.raw)
	for _, key := range []string{a.q.Task("twice"), a.q.Pending, a.q.sent + "0000000000000001"} {
		if after[key] == "" {
			t.Errorf("no %s, want what was enqueued", key)
		}
		delete(after, key)
	}
	if !maps.Equal(before, after) { // no lock, no place of who was refused
		t.Errorf("refused tasks changed something: %v, want %v", after, before)
	}
}

// A copy of a call is answered as the call was, whatever became of its tasks.
func TestEnqueueTwice(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ctx, lock := t.Context(), "asynq:{default}:unique:sms:x"
	tasks := []EnqueueTask{
		{ID: "a", Token: 1, Message: []byte("m"), Since: 1, Unique: lock, Lock: time.Hour},
		a.booked("b", 2, minute),
		{ID: "a", Token: 3, Message: []byte("m"), Since: 1},
		{ID: "c", Token: 4, Message: []byte("m"), Since: 1, Unique: lock, Lock: time.Hour},
	}
	want := []int64{Enqueued, Enqueued, Conflict, Duplicate}
	a.enqueue(7, want, tasks...)
	before := redistest.Dump(t, a.raw)
	a.enqueue(7, want, tasks...)
	if after := redistest.Dump(t, a.raw); !maps.Equal(before, after) {
		t.Errorf("a copy changed something: %v, want %v", after, before)
	}
	// Once its answers are forgotten the tasks themselves still know.
	a.raw.Del(ctx, a.q.sent+"0000000000000007")
	a.raw.HSet(ctx, a.q.Task("a"), "state", "active")
	a.raw.LPush(ctx, a.q.active, a.raw.RPop(ctx, a.q.Pending).Val())
	a.deferTask("a", minute, "")
	a.enqueue(7, want, tasks...)
	a.place("a", "retry", minute+safetyNet, minute)
	// Gone, within the minute.
	a.raw.Del(ctx, a.q.Task("a"), a.q.Task("b"), a.q.Retry, a.q.Scheduled, lock)
	a.enqueue(7, want, tasks...)
	if n := a.raw.Exists(ctx, a.q.Task("a"), a.q.Task("b"), a.q.Pending, lock).Val(); n != 0 {
		t.Errorf("%d keys of tasks that are gone, want none", n)
	}
	if ttl := a.raw.PTTL(ctx, a.q.sent+"0000000000000007").Val(); ttl > minute+time.Second || ttl < minute-10*time.Second {
		t.Errorf("the answers live %v, want a minute", ttl)
	}
	a.enqueue(8, []int64{Enqueued}, tasks[0])
}

func TestBookedIsWokenAtItsInstant(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ctx := t.Context()
	a.enqueue(1, []int64{1, 1, 1}, a.booked("a", 1, time.Second), a.booked(uuid, 2, minute), a.booked("users", 3, time.Second))
	wantScore := func(id string, in time.Duration) {
		t.Helper()
		if got, want := a.raw.ZScore(ctx, a.q.Scheduled, id).Val(), float64(start.Add(in+safetyNet).Unix()); got != want {
			t.Errorf("%s is scheduled for %.0f, want %.0f", id, got, want)
		}
	}
	wantScore(uuid, minute)
	due, err := Due(ctx, a.rdb, a.q, DueArgs{Lead: 2 * time.Second, Room: 10})
	if err != nil || len(due.Tasks) != 2 || due.Tasks[0].State != "scheduled" || due.Tasks[0].Record != "sms 1 key" || due.Tasks[0].Pool != (PoolMark{}) {
		t.Errorf("Due = %+v, %v, want a and users, scheduled, of no pool", due, err)
	}
	walk, err := ScanDeferred(ctx, a.rdb, a.q, time.Time{}, 0, 10)
	if err != nil || len(walk.Tasks) != 3 || walk.Tasks[2].ID != uuid {
		t.Errorf("Walk = %+v, %v, want all three", walk, err)
	}
	got, err := Retime(ctx, a.rdb, a.q, []Retiming{{ID: uuid, At: start.Add(2 * minute)}})
	redistest.WantCodes(t, "Retime", got, err, 1)
	wantScore(uuid, 2*minute)
	// A score that is not ours is the user's.
	a.raw.ZAdd(ctx, a.q.Scheduled, redis.Z{Score: 7, Member: "users"})
	got, err = Retime(ctx, a.rdb, a.q, []Retiming{{ID: "users", At: start.Add(minute)}})
	redistest.WantCodes(t, "Retime of a user's own", got, err, 0)
	got, err = Wake(ctx, a.rdb, a.q, tasks("a", uuid, "users"), start, false)
	redistest.WantCodes(t, "Wake", got, err, Woken, Woken, NotOurs)
	if diff := cmp.Diff([]string{uuid, "a"}, a.raw.LRange(ctx, a.q.Pending, 0, -1).Val()); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
	if got := a.raw.ZRange(ctx, a.q.Scheduled, 0, -1).Val(); len(got) != 1 || got[0] != "users" {
		t.Errorf("scheduled = %v, want users alone", got)
	}
	if h := a.fields("a"); h["state"] != "pending" || h["pending_since"] != fmt.Sprint(start.UnixNano()) || h["msg"] != "message of a" {
		t.Errorf("the hash of a = %v, want it pending since now, with its message", h)
	}
}

// A lock is held as long as asynq holds it: from the task's instant on.
func TestLockOfABooking(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	task := a.booked("a", 1, 10*minute)
	task.Unique, task.Lock = "asynq:{default}:unique:sms:x", minute
	a.enqueue(1, []int64{1}, task)
	if ttl := a.raw.PTTL(t.Context(), task.Unique).Val(); ttl > 11*minute || ttl < 11*minute-time.Second {
		t.Errorf("the lock lives %v, want 11m", ttl)
	}
	got, err := Retime(t.Context(), a.rdb, a.q, []Retiming{{ID: "a", At: start.Add(12 * minute)}})
	redistest.WantCodes(t, "Retime", got, err, 1)
	if ttl := a.raw.PTTL(t.Context(), task.Unique).Val(); ttl > 13*minute || ttl < 13*minute-time.Second {
		t.Errorf("the lock lives %v, want 13m", ttl)
	}
}

// What a user schedules is never ours, also when we enqueued it.
func TestScheduledByAUserStays(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ctx, later := t.Context(), start.Add(time.Hour).Unix()
	a.enqueue(1, []int64{1}, EnqueueTask{ID: "mine", Token: 1, Message: []byte("m"), Score: later})
	a.raw.HSet(ctx, a.q.Task("plain"), "msg", "m", "state", "scheduled")
	a.raw.ZAdd(ctx, a.q.Scheduled, redis.Z{Score: float64(later), Member: "plain"})
	for _, id := range []string{"mine", "plain"} { // even if an index named them
		a.raw.ZAdd(ctx, a.q.Due, redis.Z{Score: 1, Member: id})
	}
	a.raw.Expire(ctx, a.q.Due, time.Hour)
	got, err := Retime(ctx, a.rdb, a.q, []Retiming{{ID: "mine", At: start}, {ID: "plain", At: start}})
	redistest.WantCodes(t, "Retime", got, err, 0, 0)
	got, err = Wake(ctx, a.rdb, a.q, tasks("mine", "plain"), start, false)
	redistest.WantCodes(t, "Wake", got, err, NotOurs, NotOurs)
	for _, id := range []string{"mine", "plain"} {
		if got := int64(a.raw.ZScore(ctx, a.q.Scheduled, id).Val()); got != later || a.fields(id)["state"] != "scheduled" {
			t.Errorf("%s is scheduled for %d, %v, want %d", id, got, a.fields(id), later)
		}
	}
}

// Pools hear of a booking that is due before all others, and not of one for which they look anyway.
func TestEnqueueTellsTheFirstInstant(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	sub := a.raw.Subscribe(t.Context(), a.q.Channel())
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.enqueue(1, []int64{1, 1}, a.booked("b", 1, 3*time.Second), a.booked("a", 2, 2*time.Second))
	a.enqueue(2, []int64{1}, a.booked("c", 3, 4*time.Second))
	a.enqueue(3, []int64{1}, EnqueueTask{ID: "p", Token: 4, Message: []byte("m"), Since: 1})
	a.enqueue(4, []int64{1}, a.booked("past", 5, -time.Second))
	if err := Notify(t.Context(), a.rdb, a.q, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, want := range []time.Duration{2 * time.Second, 0, 5 * time.Second} {
		m, err := sub.ReceiveTimeout(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseNotice(m.(*redis.Message).Payload); got != want || err != nil {
			t.Errorf("told %v, %v, want %v", got, err, want)
		}
	}
	for _, payload := range []string{"", "x", "-1"} {
		if d, err := ParseNotice(payload); err == nil {
			t.Errorf("Told(%q) = %v, want an error", payload, d)
		}
	}
}

// A pool may have read already what comes due within a second: it does not look again for that. So a booking is
// told although such a task comes before it, as one that runs or one for which no worker is free.
func TestEnqueueTellsOfABookingBehindOneThatIsDue(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	sub := a.raw.Subscribe(t.Context(), a.q.Channel())
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.enqueue(1, []int64{1, 1, 1}, a.booked("due", 1, -100*time.Millisecond), a.booked("soon", 2, 10*time.Millisecond), a.booked("later", 3, 2*time.Second))
	a.enqueue(2, []int64{1}, a.booked("now", 4, time.Millisecond))
	a.enqueue(3, []int64{1}, a.booked("before the later one", 5, 1500*time.Millisecond))
	a.enqueue(4, []int64{1}, a.booked("after it", 6, 3*time.Second))
	a.enqueue(5, []int64{1}, a.booked("end", 7, 0))
	for _, want := range []time.Duration{0, time.Millisecond, 1500 * time.Millisecond, 0} {
		m, err := sub.ReceiveTimeout(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseNotice(m.(*redis.Message).Payload); got != want || err != nil {
			t.Errorf("told %v, %v, want %v", got, err, want)
		}
	}
}

func TestEnqueueOnMini(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	a := &asynqQueue{t, rdb, rdb, NewQueueKeys("hw", "default")}
	for range 2 {
		a.enqueue(1, []int64{1, 1}, a.booked("a", 1, minute), EnqueueTask{ID: uuid, Token: 2, Message: []byte("m"), Since: 1})
	}
	got, err := Wake(t.Context(), rdb, a.q, tasks("a", uuid), start, false)
	redistest.WantCodes(t, "Wake", got, err, Woken, NotOurs)
}
