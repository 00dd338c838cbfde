package luascripts

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// fill leaves Redis no memory for good. To write until it is full would not do: it frees buffers of its clients meanwhile.
func fill(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	if err := rdb.ConfigSet(context.Background(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
}

// The same for a batch: what is new is refused whole, what ends or is taken out is not.
func TestFullRedisAndABatch(t *testing.T) {
	t.Parallel()
	rdb, raw := timed(t, redistest.Arg("maxmemory-policy", "noeviction"))
	ctx, q := t.Context(), NewQueueKeys("hw", "default")
	b := &batchScene{asynqQueue: &asynqQueue{t, rdb, raw, q}}
	begin := func(id string) (BatchReply, error) {
		return BatchStart(ctx, rdb, q, BatchStartArgs{Token: 1, Batch: Batch{ID: id, Window: 10, Weight: 100}})
	}
	if _, err := begin("b"); err != nil {
		t.Fatal(err)
	}
	b.claim(feeder, ClaimOurs)
	b.feed(4, b.tasks(0, 4)...)
	// The texts are known before memory runs out.
	_, _, _ = BatchCount(ctx, rdb, q, "none", OutcomeDone, "e")
	_, _ = BatchSet(ctx, rdb, q, BatchSetArgs{ID: "none", What: BatchPause})
	_, _ = BatchDrop(ctx, rdb, q, "none", []string{"e"})
	fill(t, raw)

	before := content(t, raw)
	for name, call := range map[string]func() error{
		"to start": func() error { _, err := begin("c"); return err },
		"to feed": func() error {
			_, err := Feed(ctx, rdb, q, FeedArgs{Batch: "b", Owner: feeder, Call: 9, Cursor: 5, Tasks: b.tasks(4, 5)})
			return err
		},
		"to feed none": func() error {
			_, err := Feed(ctx, rdb, q, FeedArgs{Batch: "b", Owner: feeder, Call: 9, Cursor: 4})
			return err
		},
		"to claim": func() error {
			_, err := BatchClaim(ctx, rdb, q, BatchClaimArgs{ID: "b", Owner: feeder, Lease: minute})
			return err
		},
		"another speed": func() error {
			_, err := BatchSet(ctx, rdb, q, BatchSetArgs{ID: "b", What: BatchSetWeight, N: 1})
			return err
		},
	} {
		if err := call(); !strings.Contains(fmt.Sprint(err), "OOM") {
			t.Errorf("%s = %v, want OOM", name, err)
		}
		if after := content(t, raw); !maps.Equal(before, after) {
			t.Fatalf("%s changed %q to %q, want nothing changed", name, before, after)
		}
	}
	b.count(OutcomeDone, 1, false, "e0")
	for _, what := range []BatchChange{BatchPause, BatchResume, BatchCancel} {
		b.set(what, SetDone)
	}
	r, err := BatchDrop(ctx, rdb, q, "b", []string{"e1", "e2", "e3"})
	wantCodes(t, "BatchDrop", r.Codes, err, Dropped, Dropped, Dropped)
	if !r.Gone {
		t.Errorf("BatchDrop = %+v, want nothing left", r)
	}
	b.none(q.Task(BatchTaskID("b", "e0")), q.pending)
}

// A Redis without memory refuses whole what takes permits, and does what gives
// something back: otherwise tasks and permits would be lost then.
func TestFullRedis(t *testing.T) {
	t.Parallel()
	rdb, raw := timed(t, redistest.Arg("maxmemory-policy", "noeviction"))
	ctx, n := t.Context(), Numbers{Kind: Sliding, Permits: 3, Window: time.Minute}
	limit := func(id string) LimitKeys { return NewLimitKeys("hw", "rule", id) }
	ask := func(id, job string, token uint64, cost int, mode Mode) (AcquireReply, error) {
		return Acquire(ctx, rdb, AcquireArgs{Rules: one(limit(id), n, cost), Token: token, Job: job, Mode: mode, Inline: 50 * time.Millisecond, MaxWait: -1})
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(ask("used", "a", 1, 2, GrantOrBook))
	must(ask("used", "b", 2, 1, GrantOrBook))
	must(ask("used", "c", 3, 1, GrantOrBook))
	must(ask("used", "d", 4, 1, GrantOrBook))
	must(ask("half", "a", 5, 1, GrantOrBook))
	q := NewQueueKeys("hw", "default")
	for _, id := range []string{"run", "late"} {
		raw.HSet(ctx, q.Task(id), "state", "active")
		raw.LPush(ctx, q.active, id)
		raw.ZAdd(ctx, q.lease, redis.Z{Score: 1, Member: id})
	}
	must(Defer(ctx, rdb, q, DeferArgs{ID: "late", Token: 1, At: start, Record: "x"}).Result())
	// The texts are known before memory runs out.
	must(Cancel(ctx, rdb, CancelArgs{Rules: one(limit("other"), n, 1), Token: 9}))
	must(Wake(ctx, rdb, q, tasks("nobody"), start, false))
	must(Enqueue(ctx, rdb, q, 9, []EnqueueTask{{ID: "late", Token: 9, Since: 1}}))
	must(Peek(ctx, rdb, limit("used"), PeekArgs{Numbers: n, Cost: 1, Most: 10}))
	must(Reset(ctx, rdb, limit("other"), n))
	fill(t, raw)

	before := content(t, raw)
	for name, task := range map[string]EnqueueTask{
		"a task to run":         {ID: "new", Token: 1, Message: []byte("m"), Since: 1},
		"a task with a lock":    {ID: "new", Token: 1, Message: []byte("m"), Since: 1, Unique: "asynq:{default}:unique:x", Lock: time.Minute},
		"a task that is booked": {ID: "new", Token: 1, Message: []byte("m"), At: start, Record: "x"},
	} {
		if codes, err := Enqueue(ctx, rdb, q, 1, []EnqueueTask{task}); !strings.Contains(fmt.Sprint(err), "OOM") {
			t.Errorf("%s = %v, %v, want OOM", name, codes, err)
		}
		if after := content(t, raw); !maps.Equal(before, after) {
			t.Fatalf("%s changed %q to %q, want nothing changed", name, before, after)
		}
	}
	for name, call := range map[string]func() (AcquireReply, error){
		"a grant on a new key":         func() (AcquireReply, error) { return ask("new", "x", 11, 1, GrantOrBook) },
		"a try on a new key":           func() (AcquireReply, error) { return ask("new", "", 12, 1, Try) },
		"a grant in a ring that grows": func() (AcquireReply, error) { return ask("half", "x", 13, 2, GrantOrBook) },
		"a booking on a full key":      func() (AcquireReply, error) { return ask("used", "x", 14, 1, GrantOrBook) },
		"a booking on a new key":       func() (AcquireReply, error) { return ask("new", "x", 15, 1, Book) },
	} {
		if r, err := call(); !strings.Contains(fmt.Sprint(err), "OOM") {
			t.Errorf("%s = %+v, %v, want OOM", name, r, err)
		}
		if after := content(t, raw); !maps.Equal(before, after) {
			t.Fatalf("%s changed %q to %q, want nothing changed", name, before, after)
		}
	}

	if r, err := Peek(ctx, rdb, limit("used"), PeekArgs{Numbers: n, Cost: 1, Most: 10}); err != nil || r.Waiting != 2 {
		t.Errorf("Peek = %+v, %v, want two waiting", r, err)
	}
	if r, err := Cancel(ctx, rdb, CancelArgs{Rules: one(limit("used"), n, 1), Job: "c"}); err != nil {
		t.Errorf("Cancel of a booking = %+v, %v, want nil", r, err)
	}
	if r, err := Cancel(ctx, rdb, CancelArgs{Rules: one(limit("used"), n, 2), Token: 1, Job: "a"}); err != nil || r.Status != Granted || len(r.Promoted) != 1 || r.Promoted[0].Job != "d" {
		t.Errorf("Cancel of a grant = %+v, %v, want it given back, and d next", r, err)
	}
	if r, err := Cancel(ctx, rdb, CancelArgs{Rules: one(limit("used"), n, 1), Token: 2, Job: "b", Back: true}); err != nil || r.Status != Granted {
		t.Errorf("Cancel of a grant that comes back = %+v, %v, want it given back", r, err)
	}
	if r, err := Cancel(ctx, rdb, CancelArgs{Rules: one(limit("new"), n, 1), Token: 77}); err != nil {
		t.Errorf("Cancel of an unknown token = %+v, %v, want nil", r, err)
	}
	if err := Defer(ctx, rdb, q, DeferArgs{ID: "run", Token: 2, At: start, Record: "x"}).Err(); err != nil {
		t.Errorf("Defer = %v, want nil", err)
	}
	got, err := Wake(ctx, rdb, q, tasks("late", "run"), start, false)
	wantCodes(t, "Wake", got, err, Woken, Woken)
	if r, err := Reset(ctx, rdb, limit("used"), n); err != nil {
		t.Errorf("Reset = %+v, %v, want nil", r, err)
	}
	keysHaveALife(t, raw)
}

// A job that was postponed behind others of its closing may leave, too: its script takes away before it
// writes what it notes.
func TestFullRedisAndAPostponedJob(t *testing.T) {
	t.Parallel()
	rdb, raw := timed(t, redistest.Arg("maxmemory-policy", "noeviction"))
	rules := one(NewLimitKeys("hw", "rule", "id"), Numbers{Kind: Sliding, Permits: 3, Window: time.Minute}, 1)
	for _, job := range []string{"a", "b", "c"} {
		if r, err := Close(t.Context(), rdb, CloseArgs{Rules: rules, Rule: 1, Job: job, For: time.Minute}); err != nil || r.Status != Granted {
			t.Fatalf("Close for %s = %+v, %v", job, r, err)
		}
	}
	if _, err := Cancel(t.Context(), rdb, CancelArgs{Rules: rules, Job: "nobody"}); err != nil { // the text is known before memory runs out
		t.Fatal(err)
	}
	line := rules[0].line
	squeezed := func() float64 { return raw.ZScore(t.Context(), line, "squeezed").Val() }
	before := squeezed()
	fill(t, raw)
	if r, err := Cancel(t.Context(), rdb, CancelArgs{Rules: rules, Job: "b"}); err != nil {
		t.Errorf("Cancel = %+v, %v, want nil", r, err)
	}
	if after := squeezed(); after != before-1 {
		t.Errorf("what is noted of those that were postponed went from %.0f to %.0f, want one less", before, after)
	}
}
