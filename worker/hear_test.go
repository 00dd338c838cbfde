package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// A slot that one pool gives back goes at once to a task that another pool has
// deferred: it does not wait until that task is overdue.
func TestSlotGoesAtOnceToATaskOfAnotherPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, _ := mini(t, 2)
		const takes = time.Second
		ran := make(chan time.Time, 2)
		handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			ran <- time.Now()
			time.Sleep(takes)
			return nil
		})
		cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{{
			Name: "slots", Limit: throttle.Concurrent(1, time.Minute), Key: queue.ConstantKey("acme"),
		}}})
		cfg.Asynq.Concurrency = 1 // so that the second task goes to the second pool
		for i, rdb := range clients {
			p := started(t, rdb, handler, cfg)
			enqueue(t, clients[0], queue.NewTask("sms", nil))
			time.Sleep(200 * ms)
			if i == 1 && p.Stats().Deferred != 1 {
				t.Fatalf("the second pool: %+v, want one deferred", p.Stats())
			}
		}
		time.Sleep(2 * takes)
		if len(ran) != 2 {
			t.Fatalf("%d handlers ran, want 2", len(ran))
		}
		first, second := <-ran, <-ran
		if idle := second.Sub(first) - takes; idle > 5*ms {
			t.Errorf("the slot was idle for %v, want next to nothing", idle)
		}
	})
}
