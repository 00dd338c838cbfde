package worker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// What a client has booked is every pool's, and becomes that of the first that looks when
// it is due. When that one dies before it has woken it, another does, as soon as it takes
// what belongs to others.
func TestVirtualPoolDiesWithWhatItHasClaimed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, window = 3, 10 * time.Second
		clients, _ := mini(t, 3)
		r, seen := rigOn(t, nil, clients[2]), &runs{}
		policy := phone("sms", window)
		producer, err := queue.NewClient(clients[2], queue.ClientConfig{Policies: []queue.Policy{policy}})
		if err != nil {
			t.Fatal(err)
		}
		lim := r.limiter("sms", throttle.Sliding(1, window))
		var tasks []*queue.Task
		for i := range n {
			number := fmt.Sprint("+", i)
			r.take(lim, number)
			tasks = append(tasks, queue.NewTask("sms", []byte(to(number)), asynq.TaskID(number)))
		}
		results := producer.BookMany(t.Context(), tasks)
		wantBooked(t, results)
		due := results[0].At

		var died dead
		clients[0].AddHook(&died)
		cfg := func() worker.Config { return policies(policy) }
		r.startOn(&hooked{clients[0], func() {
			if time.Until(due) <= 16*ms { // it looks ahead 15 ms at first
				died.Store(true)
			}
		}}, seen.handler(), cfg())
		time.Sleep(time.Until(due))
		if !died.Load() || len(seen.all()) > 0 {
			t.Fatalf("before they were due %v ran, and the first pool is dead: %v; want none, and that it has looked", seen.ids(), died.Load())
		}
		r.startOn(clients[1], seen.handler(), cfg())
		time.Sleep(time.Second)
		for _, task := range results {
			late := seen.first(task.Info.ID).at.Sub(due)
			if late < 20*ms || late > 50*ms {
				t.Errorf("%s ran %v after its instant, want 25 ms: the dead pool's until then, and no longer", task.Info.ID, late)
			}
		}
	})
}
