package luascripts

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

const feeder, rival = 11, 12

// batchScene is a batch on a real Redis.
type batchScene struct {
	*asynqQueue
	calls uint64
}

func newBatch(t *testing.T, window int) *batchScene {
	t.Helper()
	b := &batchScene{asynqQueue: newQueue(t)}
	r, err := BatchStart(t.Context(), b.rdb, b.q, BatchStartArgs{Token: 1, Batch: Batch{ID: "b", Name: "n", Type: "sms", Source: "csv", Args: "f.csv", Window: window, Weight: 100}})
	if err != nil || r.Status != 1 || r.State != BatchRunning || !r.Started.Equal(start) {
		t.Fatalf("BatchStart = %+v, %v, want one that runs since %v", r, err, start)
	}
	b.claim(feeder, ClaimOurs)
	return b
}

func (b *batchScene) claim(owner uint64, want int64) BatchReply {
	b.Helper()
	r, err := BatchClaim(b.Context(), b.rdb, b.q, BatchClaimArgs{ID: "b", Owner: owner, Lease: 2 * time.Second})
	if err != nil || r.Status != want {
		b.Fatalf("BatchClaim by %d = %+v, %v, want %d", owner, r, err, want)
	}
	return r
}

// tasks are the elements from..to-1, named by their positions, to run now.
func (b *batchScene) tasks(from, to int64) []FeedTask {
	out := make([]FeedTask, 0, to-from)
	for i := from; i < to; i++ {
		e := fmt.Sprint("e", i)
		out = append(out, FeedTask{Position: i, Element: e, EnqueueTask: EnqueueTask{Token: uint64(1000 + i), Message: []byte("m" + e), Since: 1}})
	}
	return out
}

// set changes the batch.
func (b *batchScene) set(what BatchChange, want int64) BatchReply {
	b.Helper()
	r, err := BatchSet(b.Context(), b.rdb, b.q, BatchSetArgs{ID: "b", What: what})
	if err != nil || r.Status != want {
		b.Fatalf("BatchSet(%s) = %+v, %v, want %d", what, r, err, want)
	}
	return r
}

func (b *batchScene) count(outcome Outcome, want int, ends bool, elements ...string) {
	b.Helper()
	n, ended, err := BatchCount(b.Context(), b.rdb, b.q, "b", outcome, elements...)
	if n != want || ended != ends || err != nil {
		b.Errorf("BatchCount(%s of %v) = %d, %v, %v, want %d, %v", outcome, elements, n, ended, err, want, ends)
	}
}

// none checks that nothing is left in Redis but what is told, and answers that are kept for a minute.
func (b *batchScene) none(but ...string) {
	b.Helper()
	for key := range content(b.T, b.raw) {
		if !slices.Contains(but, key) && !strings.HasPrefix(key, b.q.sent) {
			b.Errorf("%s is left", key)
		}
	}
}

// feed feeds them in a call of its own.
func (b *batchScene) feed(cursor int64, tasks ...FeedTask) FeedReply {
	b.Helper()
	b.calls++
	r, err := Feed(b.Context(), b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: b.calls, Cursor: cursor, Mark: fmt.Sprint("mark", cursor), Tasks: tasks})
	if err != nil {
		b.Fatalf("Feed: %v", err)
	}
	return r
}

func (b *batchScene) read() BatchView {
	b.Helper()
	views, errs := ReadBatches(b.Context(), b.raw, b.q, []string{"b"})
	if errs[0] != nil {
		b.Fatalf("ReadBatches: %v", errs[0])
	}
	return views[0]
}

func TestBatchStartsOnce(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 3)
	before := content(t, b.raw)
	a := BatchStartArgs{Token: 1, Batch: Batch{ID: "b", Name: "n", Type: "sms", Source: "csv", Args: "f.csv", Window: 3, Weight: 100}}
	for token, began := range map[uint64]int64{1: 1, 2: 0} { // a copy, and another replica
		a.Token = token
		r, err := BatchStart(t.Context(), b.rdb, b.q, a)
		if err != nil || r.Status != began || r.Name != "n" || r.Window != 3 || r.Until.IsZero() {
			t.Errorf("BatchStart by %d = %+v, %v, want %d and the batch as it is", token, r, err, began)
		}
	}
	if after := content(t, b.raw); !maps.Equal(before, after) {
		t.Errorf("what was there has changed: %v, want %v", after, before)
	}
	if ids, err := Unfinished(t.Context(), b.raw, b.q, 0, 10); err != nil || !slices.Equal(ids, []string{"b"}) {
		t.Errorf("Unfinished = %v, %v, want b", ids, err)
	}
	if _, errs := ReadBatches(t.Context(), b.raw, b.q, []string{"other"}); !errors.Is(errs[0], ErrNoBatch) {
		t.Errorf("ReadBatches of another = %v, want %v", errs[0], ErrNoBatch)
	}
}

func TestFeed(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 3)
	b.feed(0)
	wantCodes(t, "Feed", b.feed(2, b.tasks(0, 2)...).Codes, nil, 1, 1)
	if got := b.fields(BatchTaskID("b", "e1")); got["msg"] != "me1" || got["state"] != "pending" {
		t.Errorf("the task is %v, want it pending", got)
	}
	wantCodes(t, "Feed", b.feed(4, b.tasks(2, 4)...).Codes, nil, 1, FeedNoRoom)
	if v := b.read(); v.Open != 3 || v.Enqueued != 3 || v.Cursor != 2 || v.Mark != "mark2" {
		t.Errorf("the batch is %+v, want 3 open, and the cursor where it was", v)
	}
	b.count(OutcomeDone, 1, false, "e0", "e0", "e9")
	wantCodes(t, "Feed", b.feed(4, b.tasks(2, 4)...).Codes, nil, FeedSettled, 1)
	if v := b.read(); v.Open != 3 || v.Enqueued != 4 || v.Cursor != 4 || v.Done != 1 {
		t.Errorf("the batch is %+v, want 3 open of 4", v)
	}
	// Elements may come in another order than the source has them.
	b.count(OutcomeFailed, 2, false, "e1", "e2")
	wantCodes(t, "Feed", b.feed(4, b.tasks(6, 8)...).Codes, nil, 1, 1)
	ahead, err := AheadElements(t.Context(), b.raw, b.q, "b", 0, 10)
	if want := []BatchElement{{"e6", 6}, {"e7", 7}}; err != nil || !slices.Equal(ahead, want) {
		t.Errorf("ahead of the cursor are %v, %v, want %v", ahead, err, want)
	}
	b.count(OutcomeDone, 3, false, "e3", "e6", "e7")
	wantCodes(t, "Feed", b.feed(8, b.tasks(4, 8)...).Codes, nil, 1, 1, FeedSettled, FeedSettled)
	if n := b.raw.Exists(t.Context(), b.q.batchKeys("b").ahead).Val(); n != 0 {
		t.Error("elements before the cursor are still kept, want none")
	}
	if open, err := OpenElements(t.Context(), b.raw, b.q, "b", 5, 10); err != nil || !slices.Equal(open, []BatchElement{{"e5", 5}}) {
		t.Errorf("open from 5 on are %v, %v, want e5", open, err)
	}
}

// Feed refuses what asynq would, and what its caller says; an id that comes again is
// refused while it is settled ahead, or its task exists.
func TestFeedRefuses(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 10)
	lock := "asynq:{default}:unique:sms:x"
	b.raw.Set(t.Context(), lock, "other", time.Hour)
	b.put("completed", BatchTaskID("b", "e1"))
	tasks := b.tasks(0, 6)
	tasks[2].Message = nil
	tasks[3].Unique, tasks[3].Lock = lock, time.Hour
	tasks[4].Element = "e0"
	wantCodes(t, "Feed", b.feed(0, tasks...).Codes, nil, 1, Conflict, FeedRefused, Duplicate, Conflict, 1)
	again := b.tasks(8, 9)
	again[0].Element = "e2"
	wantCodes(t, "Feed", b.feed(6, again...).Codes, nil, Conflict)
	if v := b.read(); v.Refused != 5 || v.Enqueued != 2 || v.Open != 2 || v.Cursor != 6 {
		t.Errorf("the batch is %+v, want 2 enqueued and 5 refused", v)
	}
	if ahead, err := AheadElements(t.Context(), b.raw, b.q, "b", 0, 10); err != nil || !slices.Equal(ahead, []BatchElement{{"e2", 8}}) {
		t.Errorf("ahead of the cursor are %v, %v, want e2 where it was met last", ahead, err)
	}
}

// Each call sent twice has one effect and one answer.
func TestBatchCallsTwice(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 3)
	ctx := t.Context()
	tasks := b.tasks(0, 4)
	tasks[1].At, tasks[1].For = start.Add(minute), "place"
	tasks[2].Message = nil
	feed := func(call uint64, cursor int64, end bool, tasks ...FeedTask) func() any {
		return func() any {
			r, err := Feed(ctx, b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: call, Cursor: cursor, Mark: "m", End: end, PaceAt: start, Tasks: tasks})
			return fmt.Sprint(r, err)
		}
	}
	for _, c := range []struct {
		what string
		call func() any
	}{
		{"claim", func() any {
			return fmt.Sprint(BatchClaim(ctx, b.rdb, b.q, BatchClaimArgs{ID: "b", Owner: feeder, Lease: minute}))
		}},
		{"feed", feed(1, 3, false, tasks[:3]...)},
		{"feed nothing", feed(2, 3, false)},
		{"pause", func() any { return fmt.Sprint(BatchSet(ctx, b.rdb, b.q, BatchSetArgs{ID: "b", What: BatchPause})) }},
		{"feed while paused", feed(3, 4, false, tasks[3])},
		{"resume", func() any { return fmt.Sprint(BatchSet(ctx, b.rdb, b.q, BatchSetArgs{ID: "b", What: BatchResume})) }},
		{"pace", func() any {
			return fmt.Sprint(BatchSet(ctx, b.rdb, b.q, BatchSetArgs{ID: "b", What: BatchSetPace, N: 7, Per: minute}))
		}},
		{"weight", func() any {
			return fmt.Sprint(BatchSet(ctx, b.rdb, b.q, BatchSetArgs{ID: "b", What: BatchSetWeight, N: 34}))
		}},
		{"feed beyond the weight", feed(4, 4, false, tasks[3])},
		{"window", func() any {
			return fmt.Sprint(BatchSet(ctx, b.rdb, b.q, BatchSetArgs{ID: "b", What: BatchSetWindow, N: 100}))
		}},
		{"feed the last", feed(5, 4, true, tasks[3])},
		{"give up", func() any { return fmt.Sprint(BatchClaim(ctx, b.rdb, b.q, BatchClaimArgs{ID: "b", Owner: feeder})) }},
		{"cancel", func() any { return fmt.Sprint(BatchSet(ctx, b.rdb, b.q, BatchSetArgs{ID: "b", What: BatchCancel})) }},
	} {
		first := c.call()
		after := content(t, b.raw)
		if second := c.call(); first != second {
			t.Errorf("%s twice: %v, want %v", c.what, second, first)
		}
		if again := content(t, b.raw); !maps.Equal(after, again) {
			t.Errorf("%s twice changed %q to %q", c.what, after, again)
		}
	}
	if v := b.read(); v.State != BatchCancelled || !v.End || v.Enqueued != 3 || v.Refused != 1 || v.PaceN != 7 || v.PacePer != minute || v.Ceiling() != 34 {
		t.Errorf("the batch is %+v, want all of this done once", v)
	}
	// What a copy finds gone it does not do again.
	first, err := BatchDrop(ctx, b.rdb, b.q, "b", []string{"e0", "e1"})
	wantCodes(t, "BatchDrop", first.Codes, err, Dropped, Dropped)
	second, err := BatchDrop(ctx, b.rdb, b.q, "b", []string{"e0", "e1"})
	wantCodes(t, "BatchDrop again", second.Codes, err, DropNotOpen, DropNotOpen)
	if first.Dropped != 2 || second.Dropped != 2 || second.Open != 1 || !slices.Equal(first.For, []string{"", "place"}) {
		t.Errorf("BatchDrop = %+v, %+v, want two dropped, of which one had a place", first, second)
	}
	b.count(OutcomeDone, 1, true, "e3")
	b.count(OutcomeDone, 0, false, "e3")
	b.none(b.q.Task(BatchTaskID("b", "e3")), b.q.pending)
}

// A copy that comes when its answer is forgotten enqueues nothing again, whatever
// became of its tasks.
func TestFeedAgainLater(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 10)
	ctx := t.Context()
	b.feed(1, b.tasks(0, 3)...)
	b.count(OutcomeDone, 2, false, "e0", "e1")
	b.raw.Del(ctx, b.q.Task(BatchTaskID("b", "e0")), b.q.Task(BatchTaskID("b", "e1")))
	wantCodes(t, "Feed", b.feed(1, b.tasks(0, 3)...).Codes, nil, FeedSettled, FeedSettled, FeedSettled)
	if v := b.read(); v.Enqueued != 3 || v.Open != 1 {
		t.Errorf("the batch is %+v, want 3 enqueued", v)
	}
	// Cut short between a task and its note: it is noted.
	b.raw.ZRem(ctx, b.q.batchKeys("b").open, "e2")
	b.raw.ZRem(ctx, b.q.batchKeys("b").ahead, "e2")
	wantCodes(t, "Feed", b.feed(1, b.tasks(2, 3)...).Codes, nil, Enqueued)
	if v := b.read(); v.Open != 1 || b.raw.LLen(ctx, b.q.pending).Val() != 3 {
		t.Errorf("the batch is %+v, want the task open and not enqueued again", v)
	}
}

// Who lost the lease, or has not heard of a pause, does nothing.
func TestFeedIsFenced(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 10)
	at := func(d time.Duration) {
		t.Helper()
		if err := b.setTime(start.Add(d)); err != nil {
			t.Fatal(err)
		}
	}
	b.claim(rival, ClaimAnother)
	at(2 * time.Second)
	b.feed(1, b.tasks(0, 1)...) // nobody took it: it is still ours
	if r := b.claim(rival, ClaimOurs); r.Cursor != 1 || r.Open != 1 || !r.Until.Equal(start.Add(4*time.Second)) {
		t.Errorf("BatchClaim = %+v, want the batch where it is", r)
	}
	b.claim(feeder, ClaimAnother)
	before := content(t, b.raw)
	if r := b.feed(2, b.tasks(1, 2)...); r.Status != NotOwner || r.Codes != nil {
		t.Errorf("Feed of who lost the lease = %+v, want nothing done", r)
	}
	if after := content(t, b.raw); !maps.Equal(before, after) {
		t.Errorf("it changed something: %v, want %v", after, before)
	}
	// Nobody else's lease is given up.
	if r, err := BatchClaim(t.Context(), b.rdb, b.q, BatchClaimArgs{ID: "b", Owner: feeder}); err != nil || r.Until.IsZero() {
		t.Errorf("BatchClaim = %+v, %v, want the lease of the other there", r, err)
	}
	if r, err := BatchClaim(t.Context(), b.rdb, b.q, BatchClaimArgs{ID: "b", Owner: rival}); err != nil || !r.Until.IsZero() {
		t.Errorf("BatchClaim = %+v, %v, want the lease given up", r, err)
	}
	b.claim(feeder, ClaimOurs)
	b.set(BatchPause, SetDone)
	if r := b.feed(2, b.tasks(1, 2)...); r.Status != NotRunning {
		t.Errorf("Feed of a paused batch = %+v, want nothing done", r)
	}
	at(3 * time.Second)
	if r := b.set(BatchResume, SetDone); !r.Resumed.Equal(start.Add(3 * time.Second)) {
		t.Errorf("BatchSet = %+v, want it to go on now", r)
	}
	wantCodes(t, "Feed", b.feed(2, b.tasks(1, 2)...).Codes, nil, Enqueued)
	// What was booked anew is noted for that resume alone, by who has the batch.
	resumed := start.Add(3 * time.Second)
	for _, c := range []struct {
		owner             uint64
		rebooked, becomes time.Time
	}{{feeder, start, time.Time{}}, {rival, resumed, time.Time{}}, {feeder, resumed, resumed}, {feeder, time.Time{}, resumed}} {
		r, err := BatchClaim(t.Context(), b.rdb, b.q, BatchClaimArgs{ID: "b", Owner: c.owner, Lease: 2 * time.Second, Rebooked: c.rebooked})
		if v := b.read(); err != nil || !v.Rebooked.Equal(c.becomes) || !r.Rebooked.Equal(c.becomes) {
			t.Errorf("BatchClaim of %+v = %+v, %v, want %v noted", c, r, err, c.becomes)
		}
	}
	b.set(BatchPause, SetDone)
	if v := b.read(); !v.Rebooked.IsZero() {
		t.Errorf("of a paused batch it is noted that it is booked anew: %+v", v)
	}
	b.set(BatchResume, SetDone)
	if r, err := Feed(t.Context(), b.rdb, b.q, FeedArgs{Batch: "another", Owner: feeder, Call: 99}); err != nil || r.Status != NotOwner {
		t.Errorf("Feed of no batch = %+v, %v, want nothing done", r, err)
	}
	if n := b.raw.Exists(t.Context(), b.q.batchKeys("another").record).Val(); n != 0 {
		t.Error("there is a record of no batch")
	}
}

// A batch ends when its source has no more and nothing is open; its record is kept for
// a day.
func TestBatchEnds(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]func(*batchScene){
		"by the last task": func(b *batchScene) { b.count(OutcomeFailed, 1, true, "e1") },
		"while it is paused": func(b *batchScene) {
			b.set(BatchPause, SetDone)
			b.count(OutcomeFailed, 1, true, "e1")
		},
		"by the end of the source": func(b *batchScene) {
			b.raw.HDel(b.Context(), b.q.batchKeys("b").record, "end")
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
			b.raw.ZAdd(ctx, b.q.ended, redis.Z{Score: float64(start.Add(-1).UnixMicro()), Member: "old"}, redis.Z{Score: float64(start.Add(minute).UnixMicro()), Member: "older"})
			wantCodes(t, "Feed", b.feed(2, b.tasks(0, 2)...).Codes, nil, 1, 1)
			full, err := Feed(ctx, b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: 50, Cursor: 3, End: true, Tasks: b.tasks(2, 3)})
			wantCodes(t, "Feed", full.Codes, err, FeedNoRoom)
			if v := b.read(); v.End {
				t.Error("the source is at its end, and its last element has no room")
			}
			b.count(OutcomeDone, 1, false, "e0")
			if r, err := Feed(ctx, b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: 51, Cursor: 2, End: true}); err != nil || r.Ended {
				t.Errorf("Feed = %+v, %v, want the batch unfinished", r, err)
			}
			last(b)
			v := b.read()
			if v.State != BatchEnded || !v.Ended.Equal(start) || v.Done != 1 || v.Failed != 1 || !v.Until.IsZero() {
				t.Errorf("the batch is %+v, want it ended", v)
			}
			keysHaveALife(t, b.raw)
			of := b.q.batchKeys("b")
			if ttl := b.raw.PTTL(ctx, of.record).Val(); ttl < 24*time.Hour-minute || ttl > 24*time.Hour+minute {
				t.Errorf("the record lives %v, want a day", ttl)
			}
			if ids, err := Finished(ctx, b.raw, b.q, 0, 10); err != nil || !slices.Equal(ids, []string{"older", "b"}) {
				t.Errorf("Finished = %v, %v, want what is kept", ids, err)
			}
			b.none(of.record, b.q.ended, b.q.pending, b.q.Task(BatchTaskID("b", "e0")), b.q.Task(BatchTaskID("b", "e1")))
			b.claim(feeder, ClaimGone)
			for _, what := range []BatchChange{BatchPause, BatchResume, BatchCancel, BatchSetPace} {
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
	tasks[2].At, tasks[2].For = start.Add(minute), "a place"
	id := func(i int) string { return BatchTaskID("b", tasks[i].Element) }
	b.feed(8, tasks...)
	if _, err := Enqueue(ctx, b.rdb, b.q, 900, []EnqueueTask{{ID: "another", Token: 900, Message: []byte("m"), Since: 1}}); err != nil {
		t.Fatal(err)
	}
	move := func(i int, state string) {
		b.raw.LRem(ctx, b.q.pending, 1, id(i))
		b.put(state, id(i))
	}
	for i, state := range map[int]string{3: "active", 4: "active", 6: "completed", 7: "archived"} {
		move(i, state)
	}
	b.deferTaskOf(id(3))
	b.raw.LRem(ctx, b.q.pending, 1, id(5))
	b.raw.Del(ctx, b.q.Task(id(5)))

	all := []string{"e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"}
	if r, err := BatchDrop(ctx, b.rdb, b.q, "b", all); err != nil || r.Cancelled {
		t.Errorf("BatchDrop of a batch that runs = %+v, %v, want nothing done", r, err)
	}
	b.set(BatchCancel, SetDone)
	if r := b.feed(9); r.Status != NotRunning {
		t.Errorf("Feed of a cancelled batch = %+v, want nothing done", r)
	}
	b.set(BatchResume, SetWrong)
	b.claim(feeder, ClaimOurs) // to drop what waits
	r, err := BatchDrop(ctx, b.rdb, b.q, "b", all)
	wantCodes(t, "BatchDrop", r.Codes, err, Dropped, Dropped, Dropped, Dropped, DropRuns, DropDone, DropDone, DropFailed)
	if r.Open != 1 || r.Gone || r.Dropped != 4 || r.Done != 2 || r.Failed != 1 || r.For[2] != "a place" || r.For[3] != "sms 1 key" {
		t.Errorf("BatchDrop = %+v, want one left that runs", r)
	}
	// It is put away once more before it ends.
	b.deferTaskOf(id(4))
	r, err = BatchDrop(ctx, b.rdb, b.q, "b", all)
	wantCodes(t, "BatchDrop", r.Codes, err, DropNotOpen, DropNotOpen, DropNotOpen, DropNotOpen, Dropped, DropNotOpen, DropNotOpen, DropNotOpen)
	if !r.Gone || r.Open != 0 || r.Dropped != 5 {
		t.Errorf("BatchDrop = %+v, want the batch gone", r)
	}
	b.none(b.q.pending, b.q.Task("another"), b.q.Task(id(6)), b.q.Task(id(7)))
	if got := b.raw.LRange(ctx, b.q.pending, 0, -1).Val(); !slices.Equal(got, []string{"another"}) {
		t.Errorf("pending are %v, want the task of nobody's batch", got)
	}
	b.set(BatchCancel, SetGone)
	// One of which nothing is open is gone at once.
	if _, err := BatchStart(ctx, b.rdb, b.q, BatchStartArgs{Token: 9, Batch: Batch{ID: "b", Window: 1, Weight: 1}}); err != nil {
		t.Fatal(err)
	}
	if r := b.set(BatchCancel, SetDone); r.State != BatchCancelled || r.Window != 1 || r.Open != 0 {
		t.Errorf("BatchSet = %+v, want the last of it", r)
	}
	b.none(b.q.pending, b.q.Task("another"), b.q.Task(id(6)), b.q.Task(id(7)))
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
		if err := b.setTime(start.Add(time.Duration(s) * time.Second)); err != nil {
			t.Fatal(err)
		}
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

func TestBatchIDs(t *testing.T) {
	t.Parallel()
	for id, want := range map[string][3]string{
		"batch:spring-2026.a_b:42": {"spring-2026.a_b", "42", "true"},
		"batch:b:#a/b,c~":          {"b", "#a/b,c~", "true"},
		"batch::42":                {"", "", "false"}, "batch:b:": {"", "", "false"}, "batch:b": {"", "", "false"},
		"batch:b:1:2": {"", "", "false"}, "batch:{b}:1": {"", "", "false"}, "batch:b:{1": {"", "", "false"},
		"batch:b:ü": {"", "", "false"}, "batch:b: ": {"", "", "false"}, "Batch:b:1": {"", "", "false"},
		"batch:" + strings.Repeat("b", 65) + ":1": {"", "", "false"}, "batch:b:" + strings.Repeat("1", 129): {"", "", "false"},
	} {
		batch, element, ok := ParseBatchTaskID(id)
		if got := [3]string{batch, element, fmt.Sprint(ok)}; got != want {
			t.Errorf("ParseBatchTaskID(%q) = %q, want %q", id, got, want)
		}
		if ok && BatchTaskID(batch, element) != id {
			t.Errorf("BatchTaskID(%q, %q) = %q, want %q", batch, element, BatchTaskID(batch, element), id)
		}
	}
}

func (b *batchScene) setTime(at time.Time) error {
	return b.rdb.(*redistest.Timed).SetTime(b.Context(), at)
}

// deferTaskOf puts an active task away for a minute.
func (b *batchScene) deferTaskOf(id string) {
	b.Helper()
	d := DeferArgs{ID: id, Token: 4711, At: start.Add(minute), For: "sms 1 key", Wait: minute}
	if err := Defer(b.Context(), b.rdb, b.q, d).Err(); err != nil {
		b.Fatalf("Defer(%q): %v", id, err)
	}
}

// A task is looked for from where the list is popped: those that waited for longest are
// dropped first, and a script that went through all of the others would hold Redis up.
func TestBatchDropOfALongList(t *testing.T) {
	t.Parallel()
	const n = 20_000
	b := newBatch(t, n)
	for from := int64(0); from < n; from += BatchMax {
		if r := b.feed(from+BatchMax, b.tasks(from, from+BatchMax)...); r.Open != int(from)+BatchMax {
			t.Fatalf("Feed = %+v", r)
		}
	}
	b.set(BatchCancel, SetDone)
	var first []string
	for i := range BatchMax {
		first = append(first, fmt.Sprint("e", i))
	}
	if r, err := BatchDrop(t.Context(), b.rdb, b.q, "b", first); err != nil || r.Open != n-BatchMax {
		t.Fatalf("BatchDrop = %+v, %v", r, err)
	}
	_, stats, _ := strings.Cut(b.rdb.Info(t.Context(), "commandstats").Val(), "cmdstat_lrem:calls=100,usec=")
	stats, _, _ = strings.Cut(stats, ",")
	usec, err := strconv.Atoi(stats)
	if t.Logf("100 of %d: %d us", n, usec); err != nil || usec > 5000 {
		t.Errorf("to find %d of %d took %d us, %v, want hardly any", BatchMax, n, usec, err)
	}
}
