package batchscripts

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// A batch ends when its source has no more and nothing is unfinished; its record is kept for
// a day.
func TestBatchEnds(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]func(*batchScene){
		"by the last task": func(b *batchScene) { b.count(OutcomeFailed, 1, true, "e1") },
		"while it is paused": func(b *batchScene) {
			b.set(Pause, SetDone)
			b.count(OutcomeFailed, 1, true, "e1")
		},
		"by the end of the source": func(b *batchScene) {
			b.raw.HDel(b.Context(), keysOf(b.q, "b").record, "end")
			b.count(OutcomeFailed, 1, false, "e1")
			for range 2 { // a copy has the same answer
				r, err := Feed(b.Context(), b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: 77, Cursor: 2, End: true})
				if err != nil || !r.Ended {
					b.Errorf("Feed = %+v, %v, want the batch ended", r, err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBatch(t, 2)
			ctx := t.Context()
			b.raw.ZAdd(ctx, b.q.BatchesEnded, redis.Z{Score: float64(start.Add(-1).UnixMicro()), Member: "old"}, redis.Z{Score: float64(start.Add(time.Minute).UnixMicro()), Member: "older"})
			redistest.WantCodes(t, "Feed", b.feed(2, b.tasks(0, 2)...).Codes, nil, 1, 1)
			full, err := Feed(ctx, b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: 50, Cursor: 3, End: true, Tasks: b.tasks(2, 3)})
			redistest.WantCodes(t, "Feed", full.Codes, err, FeedNoRoom)
			if v := b.read(); v.End {
				t.Error("the source is at its end, and its last element has no room")
			}
			b.count(OutcomeDone, 1, false, "e0")
			if r, err := Feed(ctx, b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: 51, Cursor: 2, End: true}); err != nil || r.Ended {
				t.Errorf("Feed = %+v, %v, want the batch unfinished", r, err)
			}
			last(b)
			v := b.read()
			if v.State != Ended || !v.Ended.Equal(start) || v.Done != 1 || v.Failed != 1 || !v.Until.IsZero() {
				t.Errorf("the batch is %+v, want it ended", v)
			}
			redistest.KeysHaveALife(t, b.raw)
			of := keysOf(b.q, "b")
			if ttl := b.raw.PTTL(ctx, of.record).Val(); ttl < 24*time.Hour-time.Minute || ttl > 24*time.Hour+time.Minute {
				t.Errorf("the record lives %v, want a day", ttl)
			}
			if ids, err := listed(b, EachFinished); err != nil || !slices.Equal(ids, []string{"older", "b"}) {
				t.Errorf("EachFinished = %v, %v, want what is kept", ids, err)
			}
			b.none(of.record, b.q.BatchesEnded, b.q.Pending, b.q.Task(TaskID("b", "e0")), b.q.Task(TaskID("b", "e1")))
			b.claim(feeder, ClaimGone)
			for _, what := range []Change{Pause, Resume, Cancel, SetPace} {
				b.set(what, SetWrong)
			}
			if r := b.feed(9); r.Status != NotOwner {
				t.Errorf("Feed of a batch that has ended = %+v, want nothing done", r)
			}
		})
	}
}

// Of a cancelled batch nothing is left, wherever its tasks are; what runs ends first.
func TestBatchCancelLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 10)
	ctx := t.Context()
	lock := "asynq:{default}:unique:sms:x"
	tasks := b.tasks(0, 8)
	tasks[0].Unique, tasks[0].Lock = lock, time.Hour
	tasks[1].Score = start.Add(time.Hour).Unix()
	tasks[2].At, tasks[2].Record = start.Add(time.Minute), "a place"
	id := func(i int) string { return TaskID("b", tasks[i].Element) }
	b.feed(8, tasks...)
	if _, err := queuescripts.Enqueue(ctx, b.rdb, b.q, 900, []queuescripts.EnqueueTask{{ID: "another", Token: 900, Message: []byte("m"), Since: 1}}); err != nil {
		t.Fatal(err)
	}
	move := func(i int, state string) {
		b.raw.LRem(ctx, b.q.Pending, 1, id(i))
		redistest.PutTasks(b.raw, state, id(i))
	}
	for i, state := range map[int]string{3: "active", 4: "active", 6: "completed", 7: "archived"} {
		move(i, state)
	}
	b.deferTaskOf(id(3))
	b.raw.LRem(ctx, b.q.Pending, 1, id(5))
	b.raw.Del(ctx, b.q.Task(id(5)))

	all := []string{"e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"}
	if r, err := Drop(ctx, b.rdb, b.q, "b", all); err != nil || r.Cancelled {
		t.Errorf("Drop of a batch that runs = %+v, %v, want nothing done", r, err)
	}
	b.set(Cancel, SetDone)
	if r := b.feed(9); r.Status != NotRunning {
		t.Errorf("Feed of a cancelled batch = %+v, want nothing done", r)
	}
	b.set(Resume, SetWrong)
	b.claim(feeder, ClaimOurs) // to drop what waits
	r, err := Drop(ctx, b.rdb, b.q, "b", all)
	redistest.WantCodes(t, "Drop", r.Codes, err, Dropped, Dropped, Dropped, Dropped, DropRuns, DropDone, DropDone, DropFailed)
	if r.Unfinished != 1 || r.Gone || r.Dropped != 4 || r.Done != 2 || r.Failed != 1 || r.Record[2] != "a place" || r.Record[3] != "sms 1 key" {
		t.Errorf("Drop = %+v, want one left that runs", r)
	}
	// It is put away once more before it ends.
	b.deferTaskOf(id(4))
	r, err = Drop(ctx, b.rdb, b.q, "b", all)
	redistest.WantCodes(t, "Drop", r.Codes, err, DropFinished, DropFinished, DropFinished, DropFinished, Dropped, DropFinished, DropFinished, DropFinished)
	if !r.Gone || r.Unfinished != 0 || r.Dropped != 5 {
		t.Errorf("Drop = %+v, want the batch gone", r)
	}
	b.none(b.q.Pending, b.q.Task("another"), b.q.Task(id(6)), b.q.Task(id(7)))
	if got := b.raw.LRange(ctx, b.q.Pending, 0, -1).Val(); !slices.Equal(got, []string{"another"}) {
		t.Errorf("pending are %v, want the task of nobody's batch", got)
	}
	b.set(Cancel, SetGone)
	// One of which nothing is unfinished is gone at once.
	if _, err := Start(ctx, b.rdb, b.q, StartArgs{Token: 9, Batch: Batch{ID: "b", Window: 1, Weight: 1}}); err != nil {
		t.Fatal(err)
	}
	if r := b.set(Cancel, SetDone); r.State != Cancelled || r.Window != 1 || r.Unfinished != 0 {
		t.Errorf("Set = %+v, want the last of it", r)
	}
	b.none(b.q.Pending, b.q.Task("another"), b.q.Task(id(6)), b.q.Task(id(7)))
}

// The rate is what ended in the last 10 to 20 seconds.
func TestBatchRate(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 1000)
	for i := range int64(10) {
		b.feed(100*i+100, b.tasks(100*i, 100*i+100)...)
	}
	next := 0
	for s := range 60 { // 5/s, and 1/s from 40 s on
		b.setTime(start.Add(time.Duration(s) * time.Second))
		n := 5
		if s >= 40 {
			n = 1
		}
		var elements []string
		for range n {
			elements = append(elements, fmt.Sprint("e", next))
			next++
		}
		b.count(OutcomeDone, n, false, elements...)
		v := b.read()
		switch got := v.Rate(start.Add(time.Duration(s+1) * time.Second)); {
		case s > 10 && s < 40 && (got < 4 || got > 6), s == 59 && (got < 0.9 || got > 1.2):
			t.Errorf("at %d s the rate is %v", s, got)
		}
	}
	if v := b.read(); v.Rate(start.Add(-time.Hour)) != 0 || v.Done != int64(next) {
		t.Errorf("the batch is %+v, want %d done, and no rate before it began", v, next)
	}
}

func (b *batchScene) setTime(at time.Time) { b.rdb.(redistest.Timed).SetTime(at) }

// deferTaskOf puts an active task away for a minute.
func (b *batchScene) deferTaskOf(id string) {
	b.Helper()
	d := queuescripts.DeferArgs{ID: id, Token: 4711, At: start.Add(time.Minute), Record: "sms 1 key", Wait: time.Minute}
	if err := queuescripts.Defer(b.Context(), b.rdb, b.q, d).Err(); err != nil {
		b.Fatalf("Defer(%q): %v", id, err)
	}
}

// A task is looked for from where the list is popped: those that waited for longest are
// dropped first, and a script that went through all of the others would hold Redis up. Of
// an id that is there twice the one goes that is found first from there.
func TestBatchDropOfALongList(t *testing.T) {
	t.Parallel()
	const n = 4000
	b := newBatch(t, n)
	for from := int64(0); from < n; from += ElementsMax {
		if r := b.feed(from+ElementsMax, b.tasks(from, from+ElementsMax)...); r.Unfinished != int(from)+ElementsMax {
			t.Fatalf("Feed = %+v", r)
		}
	}
	oldest := b.raw.LRange(t.Context(), b.q.Pending, -ElementsMax, -1).Val()
	for _, id := range oldest {
		b.raw.LPush(t.Context(), b.q.Pending, id)
	}
	b.set(Cancel, SetDone)
	var first []string
	for i := range ElementsMax {
		first = append(first, fmt.Sprint("e", i))
	}
	if r, err := Drop(t.Context(), b.rdb, b.q, "b", first); err != nil || r.Unfinished != n-ElementsMax {
		t.Fatalf("Drop = %+v, %v", r, err)
	}
	pending := b.raw.LRange(t.Context(), b.q.Pending, 0, -1).Val()
	slices.Reverse(oldest)
	if len(pending) != n || !slices.Equal(pending[:ElementsMax], oldest) || slices.Contains(pending[ElementsMax:], oldest[0]) {
		t.Errorf("%d are pending, with %d at the far end, want the %d at the other end gone", len(pending), len(oldest), ElementsMax)
	}
}
