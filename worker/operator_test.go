package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/throttle"
)

// deferred enqueues tasks to one phone and waits until all are deferred.
func (r *rig) deferred(ids ...string) {
	r.Helper()
	for _, id := range ids {
		r.enqueue("sms", id, to("+1"), asynq.MaxRetry(0))
		r.eventually(id+" deferred", func() bool { return r.is(id, asynq.TaskStateRetry) })
	}
}

func TestPausedQueueLosesNothing(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	r.exhausted(2*time.Second, seen.handler(), w.config())
	r.deferred("a", "b", "c")
	if err := r.insp.PauseQueue("default"); err != nil {
		t.Fatal(err)
	}
	r.eventually("a woken", func() bool { return r.is("a", asynq.TaskStatePending) })
	never(t, 1200*ms, "a run while paused", func() bool { return len(seen.all()) > 0 })
	if err := r.insp.UnpauseQueue("default"); err != nil {
		t.Fatal(err)
	}
	seen.ran(t, 3)
	t.Logf("after the pause they ran in the order %v", seen.ids()) // who was woken meanwhile is late, and keeps no order
	r.wantGaps(seen, 2*time.Second)
	r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
	r.wantQueue(3, 0, 0)
	w.want(t, 0, 0)
}

// wantGaps checks the grants of all runs against a limit of 1 per window.
func (r *rig) wantGaps(s *runs, per time.Duration) {
	r.Helper()
	all := s.all()
	slices.SortFunc(all, func(a, b run) int { return a.grant.At.Compare(b.grant.At) })
	for i := 1; i < len(all); i++ {
		if gap := all[i].grant.At.Sub(all[i-1].grant.At); gap < per {
			r.Errorf("breach: %s was granted %v after %s, want at least %v", all[i].id, gap, all[i-1].id, per)
		}
	}
	for _, n := range all {
		if early := n.grant.Start().Sub(n.at); early > 0 {
			r.Errorf("%s started %v early", n.id, early)
		}
	}
}

func TestDeletedQueueLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	lim, _ := r.exhausted(1500*ms, seen.handler(), asynq.Config{})
	r.deferred("a", "b", "c")
	if err := r.insp.DeleteQueue("default", true); err != nil {
		t.Fatal(err)
	}
	r.eventually("an empty line", func() bool { return r.peek(lim, "+1").Waiting == 0 })
	r.eventually("no due entries", func() bool { return r.rdb.Exists(t.Context(), "hw:{default}:due").Val() == 0 })
	if keys := r.rdb.Keys(t.Context(), "asynq:{default}:*").Val(); slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, ":t:") }) {
		t.Errorf("tasks are back: %v", keys)
	}
	if n := len(seen.all()); n > 0 {
		t.Errorf("%d tasks of a deleted queue ran", n)
	}
}

func TestRunTaskOfAnOperatorRunsOnlyWhenPermitted(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	_, spent := r.exhausted(1500*ms, seen.handler(), w.config())
	r.deferred("a", "b")
	for _, id := range []string{"b", "a", "b"} {
		if err := r.insp.RunTask("default", id); err != nil {
			t.Fatal(err)
		}
		r.eventually(id+" deferred again", func() bool { return r.is(id, asynq.TaskStateRetry) })
	}
	seen.ran(t, 2)
	if got := seen.ids(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("they ran in the order %v, want a b", got)
	}
	if gap := seen.first("a").grant.At.Sub(spent); gap < 1500*ms || gap > 2400*ms {
		t.Errorf("a was granted %v after the last permit, want 1.5s", gap)
	}
	r.wantGaps(seen, 1500*ms)
	r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
	r.wantQueue(2, 0, 0)
	w.want(t, 0, 0)
}

// The place of a task that an operator takes away is free at its instant at the
// latest: the next in line comes at the latest when it was promised, and here
// in the place of the first.
func TestRemovedTaskFreesItsBooking(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"archive", "delete"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r, seen := newRig(t), &runs{}
			lim, spent := r.exhausted(time.Second, seen.handler(), asynq.Config{})
			r.deferred("a", "b", "c")
			take := map[string]func(queue, id string) error{"archive": r.insp.ArchiveTask, "delete": r.insp.DeleteTask}[how]
			if err := take("default", "a"); err != nil {
				t.Fatal(err)
			}
			seen.ran(t, 2)
			if got := seen.ids(); !slices.Equal(got, []string{"b", "c"}) {
				t.Fatalf("%v ran, want b and c", got)
			}
			for i, id := range []string{"b", "c"} {
				due := time.Duration(i+1) * time.Second
				if after := seen.first(id).grant.At.Sub(spent); after < due || after > due+900*ms {
					t.Errorf("%s was granted at %v, want %v", id, after, due)
				}
			}
			never(t, 1200*ms, "a ran", func() bool { return seen.count("a") > 0 })
			if n := r.peek(lim, "+1").Waiting; n != 0 {
				t.Errorf("%d wait in the line, want none", n)
			}
			if how == "archive" != r.is("a", asynq.TaskStateArchived) {
				t.Errorf("after %s: %+v", how, r.info("a"))
			}
			r.wantNoTrace("a")
		})
	}
}

// wantNoTrace checks that nothing of ours speaks of a task.
func (r *rig) wantNoTrace(id string) {
	r.Helper()
	walk, err := queuescripts.ScanDeferred(context.WithoutCancel(r.Context()), r.rdb, queuescripts.NewQueueKeys("hw", "default"), time.Time{}, 0, 1000)
	if err != nil {
		r.Fatal(err)
	}
	for _, d := range walk.Tasks {
		if d.ID == id {
			r.Errorf("%s is due at %v", id, d.At)
		}
	}
}

func TestArchivedWhileDeferredRunsWhenPermitted(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	_, spent := r.exhausted(1200*ms, seen.handler(), asynq.Config{})
	r.deferred("a")
	if err := r.insp.ArchiveTask("default", "a"); err != nil {
		t.Fatal(err)
	}
	if err := r.insp.RunTask("default", "a"); err != nil {
		t.Fatal(err)
	}
	seen.ran(t, 1)
	if gap := seen.first("a").grant.At.Sub(spent); gap < 1200*ms || gap > 2100*ms {
		t.Errorf("a was granted %v after the last permit, want 1.2s", gap)
	}
	r.eventually("done", func() bool { return r.info("a") == nil })
	r.wantNoTrace("a")
}

// A task that was deleted and enqueued anew under its id is a task of its own.
func TestIDUsedAgain(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	r.exhausted(1400*ms, seen.handler(), asynq.Config{})
	r.deferred("a")
	if err := r.insp.DeleteTask("default", "a"); err != nil {
		t.Fatal(err)
	}
	r.enqueue("free", "a", "new", asynq.ProcessIn(3*time.Second))
	never(t, 1500*ms, "the new task runs early", func() bool { return len(seen.all()) > 0 })
	seen.ran(t, 1)
	if got := seen.all()[0].payload; got != "new" {
		t.Errorf("it ran with %q", got)
	}
}

// A process forgets what it remembers of a task that timed out while its
// handler went on: a later task of the same id is another one.
func TestLateNilIsNotTheEndOfAnotherTask(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	goOn := make(chan struct{})
	cfg := policies(phone("sms", time.Minute))
	cfg.Asynq.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if n := seen.note(ctx, task); n.payload == "old" {
			<-goOn
			seen.note(ctx, task)
		}
		return nil
	}), cfg)
	r.enqueue("any", "a", "old", asynq.Timeout(time.Second), asynq.MaxRetry(1))
	r.eventually("timed out", func() bool { return r.is("a", asynq.TaskStateRetry) })
	close(goOn)
	seen.ran(t, 2)
	if err := r.insp.DeleteTask("default", "a"); err != nil {
		t.Fatal(err)
	}
	r.enqueue("any", "a", "new")
	r.eventually("done", func() bool { return r.info("a") == nil })
	if got := seen.all(); len(got) != 3 || got[2].payload != "new" {
		t.Errorf("%d runs, want the new task to have run", len(got))
	}
}

// asynq runs a task again whose time was up, even if its handler returned nil
// afterwards; a limit changes nothing about that.
func TestTimedOutTaskIsTriedAgain(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	cfg := policies(phone("sms", 100*ms))
	cfg.Asynq.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if seen.note(ctx, task); len(seen.all()) == 1 {
			<-ctx.Done() // gives up, and says so in the worst way
		}
		return nil
	}), cfg)
	r.enqueue("sms", "a", to("+1"), asynq.Timeout(time.Second), asynq.MaxRetry(3))
	r.eventually("done", func() bool { return r.info("a") == nil })
	if n := seen.count("a"); n != 2 {
		t.Errorf("%d runs, want 2", n)
	}
	r.wantQueue(2, 1, 0)
}

func TestManyOperators(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	lim := r.limiter("sms", throttle.Sliding(1, 100*ms))
	r.start(seen.handler(), policies(phone("sms", 100*ms)))
	var left []string
	for i := range 20 {
		id := fmt.Sprintf("t%02d", i)
		r.enqueue("sms", id, to("+1"), asynq.MaxRetry(0))
		switch {
		case i == 0 || i%5 > 2:
			left = append(left, id)
		case i%5 == 0:
			_ = r.insp.RunTask("default", id)
			left = append(left, id)
		default:
			r.eventually("deferred, or through already", func() bool { return r.is(id, asynq.TaskStateRetry) || r.info(id) == nil })
			take := r.insp.ArchiveTask
			if i%5 == 2 {
				take = r.insp.DeleteTask
			}
			if take("default", id) != nil {
				left = append(left, id) // it runs, or did
			}
		}
	}
	r.eventually("all through", func() bool { q := r.queueInfo(); return q.Size == q.Archived })
	for _, id := range left {
		if n := seen.count(id); n != 1 {
			t.Errorf("%s ran %d times, want once", id, n)
		}
	}
	r.wantGaps(seen, 100*ms)
	r.eventually("an empty line", func() bool { return r.peek(lim, "+1").Waiting == 0 })
}
