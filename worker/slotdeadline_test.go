package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// oneSlot is a policy of one task at a time.
func oneSlot() queue.Policy {
	return queue.Policy{Type: "export", Rules: []queue.Rule{{Name: "slots", Limit: throttle.Concurrent(1, 10*time.Minute), Constant: "acme"}}}
}

// A task waits for a slot whose lease ends after its deadline. The slot is free long before: the task runs, and
// is not archived.
func TestVirtualTaskWithADeadlineWaitsForASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r, seen := rigOn(t, nil, rdb), &runs{}
		r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			seen.note(ctx, task)
			time.Sleep(5 * time.Second)
			return nil
		}), policies(oneSlot()))
		r.enqueue("export", "a", "{}")
		seen.ran(t, 1)
		r.enqueue("export", "b", "{}", asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(0))
		seen.ran(t, 2)
		r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
		r.wantQueue(2, 0, 0)
	})
}

// The lease of a slot ends when the gate is closed, which opens behind the deadline of a task that waits for the slot. The slot is
// free before the gate closes: the task runs, and is not archived.
func TestVirtualTaskWithADeadlineWaitsForASlotBeforeClosing(t *testing.T) {
	t.Parallel()
	hours, err := gate.Parse("00:00-00:05 UTC")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // it begins at midnight, UTC
		rdb, _ := redistest.Mini(t)
		r, seen := rigOn(t, nil, rdb), &runs{}
		gated := oneSlot()
		gated.Rules = append(gated.Rules, queue.Rule{Name: "hours", Gate: hours})
		r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			seen.note(ctx, task)
			time.Sleep(5 * time.Second)
			return nil
		}), policies(gated))
		r.enqueue("export", "a", "{}")
		seen.ran(t, 1)
		r.enqueue("export", "b", "{}", asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(0))
		seen.ran(t, 2)
		r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
		r.wantQueue(2, 0, 0)
	})
}

// The deadlines of many tasks pass while they wait for a slot. Each is refused shortly before, and leaves no
// place: the next one has the slot as soon as it is free.
func TestVirtualDeadlinesPassWhileTasksWaitForASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const late, takes = 20, 2 * time.Minute
		rdb, _ := redistest.Mini(t)
		r, seen := rigOn(t, nil, rdb), &runs{}
		p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if seen.note(ctx, task); seen.count("b") == 0 {
				time.Sleep(takes)
			}
			return nil
		}), policies(oneSlot()))
		r.enqueue("export", "a", "{}")
		seen.ran(t, 1)
		began := time.Now()
		for i := range late {
			r.enqueue("export", fmt.Sprint("late ", i), "{}", asynq.Deadline(began.Add(time.Minute)), asynq.MaxRetry(3))
		}
		r.enqueue("export", "b", "{}")
		time.Sleep(takes / 2)
		if q := r.queueInfo(); q.Archived != late {
			t.Errorf("%d tasks are archived at their deadline, want %d", q.Archived, late)
		}
		if got := r.info("late 0"); got == nil || got.Retried != 0 || !strings.Contains(got.LastErr, "at the earliest") {
			t.Errorf("%+v, want that it came too late", got)
		}
		if n := r.peek(p.Limiter("slots"), "acme").Waiting; n != 1 {
			t.Errorf("%d wait for the slot, want b alone", n)
		}
		time.Sleep(takes)
		if apart := seen.first("b").at.Sub(seen.first("a").at); apart < takes || apart > takes+time.Second {
			t.Errorf("b ran %v after a, want %v", apart, takes)
		}
	})
}
