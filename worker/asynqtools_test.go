package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// What asynq's tools show of tasks that wait for a limit: no retry and no error. Our counts
// keep them apart from a task that failed. And nobody changes their payload, by which they
// have their places: asynq does that to scheduled tasks alone, which is why they are not among
// these.
func TestThrottledTasksDoNotLookLikeFailures(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	policy := smsLimit(throttle.Sliding(1, time.Hour))
	r.start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		if task.Type() == "bad" {
			return context.Canceled
		}
		return nil
	}), worker.Config{Policies: []queue.Policy{policy}, Unlimited: worker.UnlimitedAllow})
	r.enqueue("bad", "failed", `{}`)
	for _, id := range []string{"a", "b", "c"} {
		r.enqueue("sms", id, to("+1"))
	}
	r.eventually("two wait and one failed", func() bool { return r.queueInfo().Retry == 3 && r.queueInfo().FailedTotal == 1 })
	tasks, err := r.insp.ListRetryTasks("default")
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, task := range tasks {
		if task.ID == "failed" {
			failed++
			continue
		}
		if task.Retried != 0 || task.LastErr != "" || !task.LastFailedAt.IsZero() {
			t.Errorf("%s waits, and asynq shows %d retries, %q", task.ID, task.Retried, task.LastErr)
		}
		if err := r.insp.UpdateTaskPayload("default", task.ID, []byte(to("+2"))); err == nil {
			t.Errorf("the payload of %s was changed, by which it waits", task.ID)
		}
	}
	i, err := inspect.New(r.rdb, inspect.Config{Policies: []queue.Policy{policy}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := i.Queues(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("Queues = %+v, %v, want one", all, err)
	}
	if got := all[0]; failed != 1 || got.Waiting != 2 || got.Other != 1 || got.Overdue != 0 {
		t.Errorf("%+v, want 2 that wait and 1 other, which failed", got)
	}
}
