package batchscripts

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

func TestFeed(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 3)
	b.feed(0)
	redistest.WantCodes(t, "Feed", b.feed(2, b.tasks(0, 2)...).Codes, nil, 1, 1)
	if got := b.raw.HGetAll(t.Context(), b.q.Task(TaskID("b", "e1"))).Val(); got["msg"] != "me1" || got["state"] != "pending" {
		t.Errorf("the task is %v, want it pending", got)
	}
	redistest.WantCodes(t, "Feed", b.feed(4, b.tasks(2, 4)...).Codes, nil, 1, FeedNoRoom)
	if v := b.read(); v.Unfinished != 3 || v.Enqueued != 3 || v.Cursor != 2 || v.Mark != "mark2" {
		t.Errorf("the batch is %+v, want 3 unfinished, and the cursor where it was", v)
	}
	b.count(OutcomeDone, 1, false, "e0", "e0", "e9")
	redistest.WantCodes(t, "Feed", b.feed(4, b.tasks(2, 4)...).Codes, nil, FeedSettled, 1)
	if v := b.read(); v.Unfinished != 3 || v.Enqueued != 4 || v.Cursor != 4 || v.Done != 1 {
		t.Errorf("the batch is %+v, want 3 unfinished of 4", v)
	}
	// Elements may come in another order than the source has them.
	b.count(OutcomeFailed, 2, false, "e1", "e2")
	redistest.WantCodes(t, "Feed", b.feed(4, b.tasks(6, 8)...).Codes, nil, 1, 1)
	ahead, err := AheadElements(t.Context(), b.raw, b.q, "b", 0, 10)
	if want := []Element{{"e6", 6}, {"e7", 7}}; err != nil || !slices.Equal(ahead, want) {
		t.Errorf("ahead of the cursor are %v, %v, want %v", ahead, err, want)
	}
	b.count(OutcomeDone, 3, false, "e3", "e6", "e7")
	redistest.WantCodes(t, "Feed", b.feed(8, b.tasks(4, 8)...).Codes, nil, 1, 1, FeedSettled, FeedSettled)
	if n := b.raw.Exists(t.Context(), keysOf(b.q, "b").ahead).Val(); n != 0 {
		t.Error("elements before the cursor are still kept, want none")
	}
	if unfinished, err := UnfinishedElements(t.Context(), b.raw, b.q, "b", 5, 10); err != nil || !slices.Equal(unfinished, []Element{{"e5", 5}}) {
		t.Errorf("unfinished from 5 on are %v, %v, want e5", unfinished, err)
	}
}

// Feed refuses what asynq would, and what its caller says; an id that comes again is
// refused while it is settled ahead, or its task exists.
func TestFeedRefuses(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 10)
	lock := "asynq:{default}:unique:sms:x"
	b.raw.Set(t.Context(), lock, "other", time.Hour)
	redistest.PutTasks(b.raw, "completed", TaskID("b", "e1"))
	tasks := b.tasks(0, 6)
	tasks[2].Message, tasks[2].Reason = nil, "too late"
	tasks[3].Unique, tasks[3].Lock = lock, time.Hour
	tasks[4].Element = "e0"
	redistest.WantCodes(t, "Feed", b.feed(0, tasks...).Codes, nil, 1, queuescripts.Conflict, FeedRefused, queuescripts.Duplicate, queuescripts.Conflict, 1)
	again := b.tasks(8, 9)
	again[0].Element = "e2"
	redistest.WantCodes(t, "Feed", b.feed(6, again...).Codes, nil, queuescripts.Conflict)
	v := b.read()
	if v.Refused != 5 || v.Enqueued != 2 || v.Unfinished != 2 || v.Cursor != 6 {
		t.Errorf("the batch is %+v, want 2 enqueued and 5 refused", v)
	}
	if want := map[string]int64{"too late": 1, ReasonDuplicate: 1, ReasonIDTaken: 3}; !maps.Equal(v.RefusedFor, want) {
		t.Errorf("they are refused for %v, want %v", v.RefusedFor, want)
	}
	if ahead, err := AheadElements(t.Context(), b.raw, b.q, "b", 0, 10); err != nil || !slices.Equal(ahead, []Element{{"e2", 8}}) {
		t.Errorf("ahead of the cursor are %v, %v, want e2 where it was met last", ahead, err)
	}
}

// A copy that comes when its answer is forgotten enqueues nothing again, whatever
// became of its tasks.
func TestFeedAgainLater(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 10)
	ctx := t.Context()
	b.feed(1, b.tasks(0, 3)...)
	b.count(OutcomeDone, 2, false, "e0", "e1")
	b.raw.Del(ctx, b.q.Task(TaskID("b", "e0")), b.q.Task(TaskID("b", "e1")))
	redistest.WantCodes(t, "Feed", b.feed(1, b.tasks(0, 3)...).Codes, nil, FeedSettled, FeedSettled, FeedSettled)
	if v := b.read(); v.Enqueued != 3 || v.Unfinished != 1 {
		t.Errorf("the batch is %+v, want 3 enqueued", v)
	}
	// Cut short between a task and its note: it is noted.
	b.raw.ZRem(ctx, keysOf(b.q, "b").unfinished, "e2")
	b.raw.ZRem(ctx, keysOf(b.q, "b").ahead, "e2")
	redistest.WantCodes(t, "Feed", b.feed(1, b.tasks(2, 3)...).Codes, nil, queuescripts.Enqueued)
	if v := b.read(); v.Unfinished != 1 || b.raw.LLen(ctx, b.q.Pending).Val() != 3 {
		t.Errorf("the batch is %+v, want the task unfinished and not enqueued again", v)
	}
}

// Who lost the lease, or has not heard of a pause, does nothing.
func TestFeedIsFenced(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 10)
	at := func(d time.Duration) {
		t.Helper()
		b.setTime(start.Add(d))
	}
	b.claim(rival, ClaimAnother)
	at(2 * time.Second)
	b.feed(1, b.tasks(0, 1)...) // nobody took it: it is still ours
	if r := b.claim(rival, ClaimOurs); r.Cursor != 1 || r.Unfinished != 1 || !r.Until.Equal(start.Add(4*time.Second)) {
		t.Errorf("Claim = %+v, want the batch where it is", r)
	}
	b.claim(feeder, ClaimAnother)
	before := redistest.Dump(t, b.raw)
	if r := b.feed(2, b.tasks(1, 2)...); r.Status != NotOwner || r.Codes != nil {
		t.Errorf("Feed of who lost the lease = %+v, want nothing done", r)
	}
	if after := redistest.Dump(t, b.raw); !maps.Equal(before, after) {
		t.Errorf("it changed something: %v, want %v", after, before)
	}
	// Nobody else's lease is given up.
	if r, err := Claim(t.Context(), b.rdb, b.q, ClaimArgs{ID: "b", Owner: feeder}); err != nil || r.Until.IsZero() {
		t.Errorf("Claim = %+v, %v, want the lease of the other there", r, err)
	}
	if r, err := Claim(t.Context(), b.rdb, b.q, ClaimArgs{ID: "b", Owner: rival}); err != nil || !r.Until.IsZero() {
		t.Errorf("Claim = %+v, %v, want the lease given up", r, err)
	}
	b.claim(feeder, ClaimOurs)
	b.set(Pause, SetDone)
	if r := b.feed(2, b.tasks(1, 2)...); r.Status != NotRunning {
		t.Errorf("Feed of a paused batch = %+v, want nothing done", r)
	}
	at(3 * time.Second)
	if r := b.set(Resume, SetDone); !r.Resumed.Equal(start.Add(3 * time.Second)) {
		t.Errorf("Set = %+v, want it to go on now", r)
	}
	redistest.WantCodes(t, "Feed", b.feed(2, b.tasks(1, 2)...).Codes, nil, queuescripts.Enqueued)
	// What was booked anew is noted for that resume alone, by who has the batch.
	resumed := start.Add(3 * time.Second)
	for _, c := range []struct {
		owner             uint64
		rebooked, becomes time.Time
	}{{feeder, start, time.Time{}}, {rival, resumed, time.Time{}}, {feeder, resumed, resumed}, {feeder, time.Time{}, resumed}} {
		r, err := Claim(t.Context(), b.rdb, b.q, ClaimArgs{ID: "b", Owner: c.owner, Lease: 2 * time.Second, Rebooked: c.rebooked})
		if v := b.read(); err != nil || !v.Rebooked.Equal(c.becomes) || !r.Rebooked.Equal(c.becomes) {
			t.Errorf("Claim of %+v = %+v, %v, want %v noted", c, r, err, c.becomes)
		}
	}
	b.set(Pause, SetDone)
	if v := b.read(); !v.Rebooked.IsZero() {
		t.Errorf("of a paused batch it is noted that it is booked anew: %+v", v)
	}
	b.set(Resume, SetDone)
	if r, err := Feed(t.Context(), b.rdb, b.q, FeedArgs{Batch: "another", Owner: feeder, Call: 99}); err != nil || r.Status != NotOwner {
		t.Errorf("Feed of no batch = %+v, %v, want nothing done", r, err)
	}
	if n := b.raw.Exists(t.Context(), keysOf(b.q, "another").record).Val(); n != 0 {
		t.Error("there is a record of no batch")
	}
}
