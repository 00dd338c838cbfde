package worker_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// A task was deleted while it waited, and another of its id waits for something else:
// what the first left is cleared when it is due, although the key was closed meanwhile,
// and does not move the other again and again.
func TestEntryOfADeletedTaskIsCleared(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	limit := throttle.Sliding(1, 2*time.Second)
	lim := r.limiter("sms", limit)
	r.take(lim, "+1")
	pool, _ := r.start(seen.handler(), policies(smsLimit(limit)))
	r.deferred("a")
	if err := r.insp.DeleteTask("default", "a"); err != nil {
		t.Fatal(err)
	}
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0), asynq.Deadline(time.Now().Add(24*time.Hour)))
	r.eventually("deferred again", func() bool { return r.is("a", asynq.TaskStateRetry) })
	if n := r.rdb.ZCard(t.Context(), "hw:{default}:due").Val(); n != 2 {
		t.Fatalf("%d entries are in the index, want that of the task which was deleted, too", n)
	}
	if _, err := lim.CloseKey(t.Context(), "+1", time.Hour); err != nil {
		t.Fatal(err)
	}
	r.eventually("one entry", func() bool { return r.rdb.ZCard(t.Context(), "hw:{default}:due").Val() == 1 })
	never(t, 300*ms, "the task moved again and again", func() bool { return pool.Stats().Moved > 2 })
	if !r.is("a", asynq.TaskStateRetry) || len(seen.all()) > 0 {
		t.Errorf("%v ran on a closed key, want that it waits", seen.ids())
	}
}

// A task was deleted while it waited, and another of its id runs for long: what the first
// left is cleared meanwhile. A hundred of those were all that a look at the index lists,
// and kept every other task from being woken.
func TestVirtualEntryOfADeletedTaskWhileAnotherOfItsIDRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		rdb, _ := redistest.Mini(t)
		r, seen := rigOn(t, nil, rdb), &runs{}
		limit := throttle.Sliding(1, 20*time.Second)
		lim := r.limiter("sms", limit)
		long := make(chan struct{})
		cfg := policies(smsLimit(limit))
		cfg.Asynq.Concurrency = n + 10
		pool, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if task.Type() == "long" {
				<-long
				return nil
			}
			return seen.handler().ProcessTask(ctx, task)
		}), cfg)
		for i := range n {
			id, phone := fmt.Sprint("a", i), fmt.Sprint("+", i)
			r.take(lim, phone)
			r.enqueue("sms", id, to(phone), asynq.MaxRetry(0))
			r.eventually(id+" deferred", func() bool { return r.is(id, asynq.TaskStateRetry) })
			if err := r.insp.DeleteTask("default", id); err != nil {
				t.Fatal(err)
			}
			r.enqueue("long", id, to(phone))
		}
		time.Sleep(time.Minute) // all of them were due long ago
		if left := r.rdb.ZCard(t.Context(), "hw:{default}:due").Val(); left != 0 {
			t.Errorf("%d entries of deleted tasks are left, want none", left)
		}
		r.take(lim, "b")
		r.enqueue("sms", "b", to("b"), asynq.MaxRetry(0))
		time.Sleep(21 * time.Second)
		if len(seen.all()) != 1 {
			t.Errorf("%v ran, want the one that was due", seen.ids())
		}
		close(long)
		pool.Shutdown()
	})
}

// Many tasks were deleted while they waited, more than one look lists: who is due behind
// them is woken at its instant all the same, and where others of their ids run, as soon as
// those are no more taken for them.
func TestVirtualManyDeletedTasksDelayNoOther(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		again bool
		late  time.Duration // at most
	}{
		{"they are gone", false, 100 * ms},
		{"others of their ids run", true, 2*time.Second + 100*ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := sized(220, 350)
				rdb, _ := redistest.Mini(t)
				r, seen := rigOn(t, nil, rdb), &runs{}
				limit := throttle.Sliding(1, 20*time.Second)
				lim := r.limiter("sms", limit)
				long := make(chan struct{})
				cfg := policies(smsLimit(limit))
				cfg.Asynq.Concurrency = n + 10
				r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
					if task.Type() == "long" {
						<-long
						return nil
					}
					return seen.handler().ProcessTask(ctx, task)
				}), cfg)
				defer close(long)
				for i := range n {
					r.take(lim, fmt.Sprint("+", i))
				}
				time.Sleep(time.Millisecond)
				due := r.take(lim, "b").At.Add(20 * time.Second) // behind all others
				for i := range n {
					id, phone := fmt.Sprint("a", i), fmt.Sprint("+", i)
					r.enqueue("sms", id, to(phone), asynq.MaxRetry(0))
					r.eventually(id+" deferred", func() bool { return r.is(id, asynq.TaskStateRetry) })
					if err := r.insp.DeleteTask("default", id); err != nil {
						t.Fatal(err)
					}
					if tc.again {
						r.enqueue("long", id, to(phone))
					}
				}
				r.enqueue("sms", "b", to("b"), asynq.MaxRetry(0))
				time.Sleep(time.Until(due) + tc.late + time.Second)
				if all := seen.all(); len(all) != 1 || all[0].at.Before(due) || all[0].at.Sub(due) > tc.late {
					t.Errorf("%v ran, want b at %v, at most %v late", all, due, tc.late)
				}
			})
		})
	}
}
