package worker_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// A slot comes free, and the tasks that were next in its line were archived or deleted
// by an operator: the first that is left has the slot at once.
func TestVirtualFreeSlotPassesTasksThatAreGone(t *testing.T) {
	t.Parallel()
	const busy = 2 * time.Second
	for name, tc := range map[string]struct {
		lease time.Duration
		gone  int
		take  func(i *asynq.Inspector, id string) error
	}{
		"archived":       {time.Minute, 1, func(i *asynq.Inspector, id string) error { return i.ArchiveTask("default", id) }},
		"deleted":        {time.Minute, 1, func(i *asynq.Inspector, id string) error { return i.DeleteTask("default", id) }},
		"many archived":  {2 * time.Second, 32, func(i *asynq.Inspector, id string) error { return i.ArchiveTask("default", id) }},
		"many deleted":   {time.Minute, 40, func(i *asynq.Inspector, id string) error { return i.DeleteTask("default", id) }},
		"just before it": {time.Minute, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clients, _ := mini(t, 2)
				insp := asynq.NewInspectorFromRedisClient(clients[1])
				seen := &runs{}
				handler, cfg := slotTasks(seen, tc.lease, busy)
				started(t, clients[0], handler, cfg)
				for i := range tc.gone + 2 {
					enqueue(t, clients[1], queue.NewTask("sms", nil, asynq.TaskID(fmt.Sprintf("t%d", i))))
					time.Sleep(10 * ms) // of the bubble: they come in this order
					for i == 0 && seen.count("t0") == 0 {
						time.Sleep(ms) // the others may be fetched with it, and one of them have the slot
					}
				}
				began := seen.first("t0").at
				time.Sleep(500 * ms) // by then a pool has fetched and deferred them: asynq deletes no task that is active
				gone := func() {
					for i := range tc.gone {
						take := tc.take
						if take == nil {
							take = func(i *asynq.Inspector, id string) error { return i.DeleteTask("default", id) }
						}
						if err := take(insp, fmt.Sprintf("t%d", i+1)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if tc.take == nil { // no look at what waits comes between
					time.Sleep(time.Until(began.Add(busy - ms)))
				}
				gone()
				last := fmt.Sprintf("t%d", tc.gone+1)
				time.Sleep(time.Until(began.Add(busy + time.Second)))
				if seen.count(last) != 1 {
					t.Fatalf("a second after the slot came free there ran %v, want t0 and %s", seen.ids(), last)
				}
			})
		})
	}
}

// A process dies that waited for a slot in an Acquire: the task behind it has the slot
// within a second, whether a lease ends or is given back.
func TestVirtualFreeSlotPassesACallerThatDied(t *testing.T) {
	t.Parallel()
	const lease = 20 * time.Second
	for name, tc := range map[string]struct {
		released time.Duration // when the lease is given back; 0 for never
		within   time.Duration
	}{
		"the lease ends":          {0, time.Second},
		"the lease is given back": {2 * time.Second, 2 * time.Second}, // for a second it is kept for the caller
		"given back late":         {15 * time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clients, _ := mini(t, 3)
				var died dead
				clients[0].AddHook(&died)
				began := time.Now()
				holder := slots(t, clients[1], lease)
				d, err := holder.TryAcquire(t.Context(), "acme", 1)
				if err != nil || !d.Granted {
					t.Fatalf("%v, %v, want a grant", d, err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { _ = slots(t, clients[0], lease).Acquire(ctx, "acme", 1) }()
				time.Sleep(100 * ms)
				died.Store(true)

				seen := &runs{}
				handler, cfg := slotTasks(seen, lease, time.Hour)
				started(t, clients[2], handler, cfg)
				enqueue(t, clients[2], queue.NewTask("sms", nil, asynq.TaskID("t1")))
				free := began.Add(lease)
				if tc.released > 0 {
					free = began.Add(tc.released)
					time.Sleep(time.Until(free))
					if _, err := holder.Policy().Release(t.Context(), d); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Until(free.Add(tc.within)))
				if seen.count("t1") != 1 {
					t.Errorf("%v after the slot came free the task has not begun", tc.within)
				}
			})
		})
	}
}

// Tasks that wait for a rate are deleted or archived: their places are free within a
// second, and who comes next goes as if they had not been there.
func TestVirtualPlacesOfTasksThatAreGoneAreFree(t *testing.T) {
	t.Parallel()
	for name, clear := range map[string]func(i *asynq.Inspector) (int, error){
		"deleted":  func(i *asynq.Inspector) (int, error) { return i.DeleteAllRetryTasks("default") },
		"archived": func(i *asynq.Inspector) (int, error) { return i.ArchiveAllRetryTasks("default") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clients, _ := mini(t, 2)
				insp := asynq.NewInspectorFromRedisClient(clients[1])
				seen := &runs{}
				cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{
					{Name: "phone", Limit: throttle.Sliding(1, time.Second), Key: queue.MustJSONKey("$.to")},
					{Name: "provider", Limit: throttle.Sliding(5, time.Second), Constant: "acme"},
				}})
				cfg.Asynq.Concurrency = 8
				started(t, clients[0], seen.handler(), cfg)
				const tasks = 100
				for i := range tasks {
					enqueue(t, clients[1], queue.NewTask("sms", []byte(to(fmt.Sprintf("+%d", i%50))), asynq.TaskID(fmt.Sprintf("t%d", i))))
				}
				time.Sleep(2100 * ms)
				n, err := clear(insp)
				if err != nil || n < tasks/2 {
					t.Fatalf("cleared %d, %v, want nearly all", n, err)
				}
				time.Sleep(time.Second)
				began := time.Now()
				enqueue(t, clients[1], queue.NewTask("sms", []byte(to("+new")), asynq.TaskID("new")))
				time.Sleep(300 * ms)
				if seen.count("new") != 1 {
					time.Sleep(time.Minute)
					t.Errorf("the next began after %v, want at once", seen.first("new").at.Sub(began))
				}
			})
		})
	}
}

func slots(t *testing.T, rdb redis.UniversalClient, lease time.Duration) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(rdb, "slots", throttle.Concurrent(1, lease), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
