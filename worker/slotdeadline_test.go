package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// A task waits for a slot whose lease ends after its deadline. The slot is free long before: the task runs, and
// is not archived.
func TestVirtualTaskWithADeadlineWaitsForASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r, seen := rigOn(t, nil, rdb), &runs{}
		slots := queue.Policy{Type: "export", Rules: []queue.Rule{{Name: "slots", Limit: throttle.Concurrent(1, 10*time.Minute), Constant: "acme"}}}
		r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			seen.note(ctx, task)
			time.Sleep(5 * time.Second)
			return nil
		}), policies(slots))
		r.enqueue("export", "a", "{}")
		seen.ran(t, 1)
		r.enqueue("export", "b", "{}", asynq.Deadline(time.Now().Add(time.Minute)), asynq.MaxRetry(0))
		seen.ran(t, 2)
		r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
		r.wantQueue(2, 0, 0)
	})
}
