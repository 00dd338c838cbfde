package batchscripts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

const feeder, rival = 11, 12

// batchScene is a batch on a real Redis.
type batchScene struct {
	*testing.T
	rdb   redis.UniversalClient
	raw   *redis.Client
	q     queuescripts.QueueKeys
	calls uint64
}

func newBatch(t *testing.T, window int, opts ...redistest.Option) *batchScene {
	t.Helper()
	rdb, raw := redistest.StartTimed(t, opts...)
	b := &batchScene{T: t, rdb: rdb, raw: raw, q: queuescripts.NewQueueKeys("hw", "default")}
	r, err := Start(t.Context(), b.rdb, b.q, StartArgs{Token: 1, Batch: Batch{ID: "b", Name: "n", Type: "sms", Source: "csv", Args: "f.csv", Window: window, Weight: 100}})
	if err != nil || r.Status != 1 || r.State != Running || !r.Started.Equal(start) {
		t.Fatalf("Start = %+v, %v, want one that runs since %v", r, err, start)
	}
	b.claim(feeder, ClaimOurs)
	return b
}

func (b *batchScene) claim(owner uint64, want int64) Reply {
	b.Helper()
	r, err := Claim(b.Context(), b.rdb, b.q, ClaimArgs{ID: "b", Owner: owner, Lease: 2 * time.Second})
	if err != nil || r.Status != want {
		b.Fatalf("Claim by %d = %+v, %v, want %d", owner, r, err, want)
	}
	return r
}

// tasks are the elements from..to-1, named by their positions, to run now.
func (b *batchScene) tasks(from, to int64) []FeedTask {
	out := make([]FeedTask, 0, to-from)
	for i := from; i < to; i++ {
		e := fmt.Sprint("e", i)
		out = append(out, FeedTask{Position: i, Element: e, EnqueueTask: queuescripts.EnqueueTask{Token: uint64(1000 + i), Message: []byte("m" + e), Since: 1}})
	}
	return out
}

// set changes the batch.
func (b *batchScene) set(what Change, want int64) Reply {
	b.Helper()
	r, err := Set(b.Context(), b.rdb, b.q, SetArgs{ID: "b", What: what})
	if err != nil || r.Status != want {
		b.Fatalf("Set(%s) = %+v, %v, want %d", what, r, err, want)
	}
	return r
}

func (b *batchScene) count(outcome Outcome, want int, ends bool, elements ...string) {
	b.Helper()
	n, ended, err := Count(b.Context(), b.rdb, b.q, "b", outcome, elements...)
	if n != want || ended != ends || err != nil {
		b.Errorf("Count(%s of %v) = %d, %v, %v, want %d, %v", outcome, elements, n, ended, err, want, ends)
	}
}

// none checks that nothing is left in Redis but what is told, and answers that are kept for a minute.
func (b *batchScene) none(but ...string) {
	b.Helper()
	for key := range redistest.Dump(b.T, b.raw) {
		if !slices.Contains(but, key) && !strings.HasPrefix(key, "hw:{default}:sent:") {
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

func (b *batchScene) read() View {
	b.Helper()
	views, errs := Read(b.Context(), b.raw, b.q, []string{"b"})
	if errs[0] != nil {
		b.Fatalf("Read: %v", errs[0])
	}
	return views[0]
}

// listed are the batches that each goes through.
func listed(b *batchScene, each func(context.Context, redis.Scripter, queuescripts.QueueKeys, int, func([]string) error) error) (all []string, _ error) {
	err := each(b.Context(), b.raw, b.q, 10, func(ids []string) error {
		all = append(all, ids...)
		return nil
	})
	return all, err
}

func TestBatchStartsOnce(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 3)
	before := redistest.Dump(t, b.raw)
	a := StartArgs{Token: 1, Batch: Batch{ID: "b", Name: "n", Type: "sms", Source: "csv", Args: "f.csv", Window: 3, Weight: 100}}
	for token, began := range map[uint64]int64{1: 1, 2: 0} { // a copy, and another replica
		a.Token = token
		r, err := Start(t.Context(), b.rdb, b.q, a)
		if err != nil || r.Status != began || r.Name != "n" || r.Window != 3 || r.Until.IsZero() {
			t.Errorf("Start by %d = %+v, %v, want %d and the batch as it is", token, r, err, began)
		}
	}
	if after := redistest.Dump(t, b.raw); !maps.Equal(before, after) {
		t.Errorf("what was there has changed: %v, want %v", after, before)
	}
	if ids, err := listed(b, EachUnfinished); err != nil || !slices.Equal(ids, []string{"b"}) {
		t.Errorf("EachUnfinished = %v, %v, want b", ids, err)
	}
	if _, errs := Read(t.Context(), b.raw, b.q, []string{"other"}); !errors.Is(errs[0], ErrNotFound) {
		t.Errorf("Read of another = %v, want %v", errs[0], ErrNotFound)
	}
}

// Each call sent twice has one effect and one answer.
func TestBatchCallsTwice(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 3)
	ctx := t.Context()
	tasks := b.tasks(0, 4)
	tasks[1].At, tasks[1].Record = start.Add(time.Minute), "place"
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
			return fmt.Sprint(Claim(ctx, b.rdb, b.q, ClaimArgs{ID: "b", Owner: feeder, Lease: time.Minute}))
		}},
		{"feed", feed(1, 3, false, tasks[:3]...)},
		{"feed nothing", feed(2, 3, false)},
		{"pause", func() any { return fmt.Sprint(Set(ctx, b.rdb, b.q, SetArgs{ID: "b", What: Pause})) }},
		{"feed while paused", feed(3, 4, false, tasks[3])},
		{"resume", func() any { return fmt.Sprint(Set(ctx, b.rdb, b.q, SetArgs{ID: "b", What: Resume})) }},
		{"pace", func() any {
			return fmt.Sprint(Set(ctx, b.rdb, b.q, SetArgs{ID: "b", What: SetPace, N: 7, Per: time.Minute}))
		}},
		{"weight", func() any {
			return fmt.Sprint(Set(ctx, b.rdb, b.q, SetArgs{ID: "b", What: SetWeight, N: 34}))
		}},
		{"feed beyond the weight", feed(4, 4, false, tasks[3])},
		{"window", func() any {
			return fmt.Sprint(Set(ctx, b.rdb, b.q, SetArgs{ID: "b", What: SetWindow, N: 100}))
		}},
		{"feed the last", feed(5, 4, true, tasks[3])},
		{"give up", func() any { return fmt.Sprint(Claim(ctx, b.rdb, b.q, ClaimArgs{ID: "b", Owner: feeder})) }},
		{"cancel", func() any { return fmt.Sprint(Set(ctx, b.rdb, b.q, SetArgs{ID: "b", What: Cancel})) }},
	} {
		first := c.call()
		after := redistest.Dump(t, b.raw)
		if second := c.call(); first != second {
			t.Errorf("%s twice: %v, want %v", c.what, second, first)
		}
		if again := redistest.Dump(t, b.raw); !maps.Equal(after, again) {
			t.Errorf("%s twice changed %q to %q", c.what, after, again)
		}
	}
	if v := b.read(); v.State != Cancelled || !v.End || v.Enqueued != 3 || v.Refused != 1 || v.PaceN != 7 || v.PacePer != time.Minute || v.Ceiling() != 34 {
		t.Errorf("the batch is %+v, want all of this done once", v)
	}
	// What a copy finds gone it does not do again.
	first, err := Drop(ctx, b.rdb, b.q, "b", []string{"e0", "e1"})
	redistest.WantCodes(t, "Drop", first.Codes, err, Dropped, Dropped)
	second, err := Drop(ctx, b.rdb, b.q, "b", []string{"e0", "e1"})
	redistest.WantCodes(t, "Drop again", second.Codes, err, DropFinished, DropFinished)
	if first.Dropped != 2 || second.Dropped != 2 || second.Unfinished != 1 || !slices.Equal(first.Record, []string{"", "place"}) {
		t.Errorf("Drop = %+v, %+v, want two dropped, of which one had a place", first, second)
	}
	b.count(OutcomeDone, 1, true, "e3")
	b.count(OutcomeDone, 0, false, "e3")
	b.none(b.q.Task(TaskID("b", "e3")), b.q.Pending)
}

// A time in which nobody counted is not averaged over: the rate begins anew behind it.
func TestBatchRateBehindAGap(t *testing.T) {
	t.Parallel()
	for name, gap := range map[string]time.Duration{"a long one": 10 * time.Minute, "the clock went back": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBatch(t, 100)
			b.feed(100, b.tasks(0, 100)...)
			at, next := start, 0
			count := func(seconds int) {
				for range seconds {
					at = at.Add(time.Second)
					b.setTime(at)
					b.count(OutcomeDone, 1, false, fmt.Sprint("e", next))
					next++
				}
			}
			count(30)
			at = at.Add(gap)
			if v := b.read(); v.Rate(at) != 0 {
				t.Errorf("the rate is %v while nothing runs, want none", v.Rate(at))
			}
			count(6)
			if v := b.read(); v.Rate(at) < 0.8 || v.Rate(at) > 1.3 {
				t.Errorf("5 s behind the gap the rate is %v, want 1", v.Rate(at))
			}
		})
	}
}

// A lease that ends further ahead than any is given was given before the clock went back:
// it keeps nobody out.
func TestBatchIsFreeWhenTheClockWentBack(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 1)
	b.setTime(start.Add(-time.Second))
	b.claim(rival, ClaimAnother) // who has it is there, and the clock was set right
	b.setTime(start.Add(-time.Hour))
	b.claim(rival, ClaimOurs)
	b.claim(feeder, ClaimAnother)
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
		batch, element, ok := ParseTaskID(id)
		if got := [3]string{batch, element, fmt.Sprint(ok)}; got != want {
			t.Errorf("ParseTaskID(%q) = %q, want %q", id, got, want)
		}
		if ok && TaskID(batch, element) != id {
			t.Errorf("TaskID(%q, %q) = %q, want %q", batch, element, TaskID(batch, element), id)
		}
	}
}
