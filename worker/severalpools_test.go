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
func TestVirtualSlotGoesAtOnceToATaskOfAnotherPool(t *testing.T) {
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
			Name: "slots", Limit: throttle.Concurrent(1, time.Minute), Constant: "acme",
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

// Tasks that belong to every pool are more than one pool has workers for. One pool wakes
// its share; another, which looks a moment later, wakes the rest in time.
func TestVirtualPoolsShareTasksOfEveryPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, windows, window = 4, 10, 10 * time.Second
		clients, _ := mini(t, 3)
		seen := &runs{}
		handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			seen.note(ctx, task)
			time.Sleep(time.Second)
			return nil
		})
		policy := queue.Policy{Type: "sms", Rules: []queue.Rule{{
			Name: "sms", Limit: throttle.Sliding(n, window), Constant: "acme",
		}}}
		cfg := policies(policy)
		cfg.Servers, cfg.Asynq.Concurrency = 1, n/2
		for _, rdb := range clients[:2] {
			started(t, rdb, handler, cfg)
		}
		c, err := queue.NewClient(clients[2], queue.ClientConfig{Policies: []queue.Policy{policy}})
		if err != nil {
			t.Fatal(err)
		}
		wantBooked(t, c.BookMany(t.Context(), smsTo("+1", "t", n*windows)))
		time.Sleep(windows * window)
		all := seen.all()
		if len(all) != n*windows {
			t.Fatalf("%d ran, want %d", len(all), n*windows)
		}
		for _, r := range all[n:] {
			if late := r.grant.At.Sub(r.grant.From); late > ms {
				t.Errorf("%s was let in %v after its instant, want next to nothing", r.id, late)
			}
		}
	})
}
