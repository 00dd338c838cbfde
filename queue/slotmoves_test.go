package queue

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// While the slot of a queue moves to another node some of its keys are here, and some there.
// Enqueue waits until it can be done, and each task is there once.
func TestEnqueueWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 2)
	client := newClient(t, rdb)
	const n = 20
	enqueue := func(i int) error {
		_, err := client.Enqueue(t.Context(), NewTask("t", nil), asynq.TaskID(fmt.Sprint(i)))
		return err
	}
	for i := range n {
		if err := enqueue(i); err != nil {
			t.Fatal(err)
		}
	}
	slot := rdb.ClusterKeySlot(t.Context(), "{default}").Val()
	owner, err := rdb.MasterForKey(t.Context(), "{default}")
	if err != nil {
		t.Fatal(err)
	}
	from, to := nodes[0].Client(t), nodes[1].Client(t)
	if owner.Options().Addr == nodes[1].Addr() {
		from, to = to, from
	}
	must := func(c *redis.Client, args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	idOf := func(c *redis.Client) string { return c.Do(t.Context(), "cluster", "myid").Val().(string) }
	move := func(most int) {
		t.Helper()
		host, port, err := net.SplitHostPort(to.Options().Addr)
		if err != nil {
			t.Fatal(err)
		}
		keys := from.ClusterGetKeysInSlot(t.Context(), int(slot), most).Val()
		for _, key := range keys {
			must(from, "migrate", host, port, key, 0, 5000)
		}
	}
	must(to, "cluster", "setslot", slot, "importing", idOf(from))
	must(from, "cluster", "setslot", slot, "migrating", idOf(to))
	move(n / 2) // by name: asynq's list, and tasks
	if left := len(from.ClusterGetKeysInSlot(t.Context(), int(slot), 1000).Val()); left == 0 {
		t.Fatal("all keys have moved, want some on both nodes")
	}
	done := make(chan error, 1)
	go func() { // of a task that is there already, and of one that is new
		for i := n - 5; i < n+5; i++ {
			if err := enqueue(i); err != nil && (i >= n || !errors.Is(err, asynq.ErrTaskIDConflict)) {
				done <- fmt.Errorf("task %d: %w", i, err)
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		t.Fatalf("all were enqueued while the keys were on both nodes (%v): the test tries nothing", err)
	case <-time.After(500 * time.Millisecond):
	}
	move(1000)
	must(to, "cluster", "setslot", slot, "node", idOf(to))
	must(from, "cluster", "setslot", slot, "node", idOf(to))
	if err := <-done; err != nil {
		t.Error(err)
	}
	info, err := asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo("default")
	if err != nil {
		t.Fatal(err)
	}
	if info.Pending != n+5 {
		t.Errorf("%d tasks are pending, want %d", info.Pending, n+5)
	}
}

// Whatever happens to the slot of a queue, a task is enqueued, or Enqueue fails without a redirect in its error. Once it has
// succeeded the task is there once.
func TestEnqueueWhateverHappensToItsSlot(t *testing.T) {
	t.Parallel()
	// what stays are the tasks' own keys
	for _, fault := range redistest.SlotFaults(func(key string) bool { return strings.Contains(key, ":t:") }) {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			shared, cluster := redistest.StartMovable(t, 2)
			client := newClient(t, fault.Client(t, shared))
			enqueue := func(id string) error {
				_, err := client.Enqueue(t.Context(), NewTask("t", nil), asynq.TaskID(id))
				if errors.Is(err, asynq.ErrTaskIDConflict) { // the answer before was lost
					return nil
				}
				return err
			}
			if err := enqueue("before"); err != nil {
				t.Fatal(err)
			}
			leave := fault.Enter(t, cluster, "{default}")
			began := time.Now()
			done := make(chan error, 1)
			go func() { done <- enqueue("after") }()
			var err error
			switch { // the fault lasts
			case fault.Long:
				err = <-done
				done <- err
			case !fault.Over:
				time.Sleep(100 * time.Millisecond)
			}
			if err := leave(); err != nil {
				t.Fatal(err)
			}
			lasted := time.Since(began)
			if err = <-done; err != nil {
				if fault.Over || fault.Moving && lasted < 500*time.Millisecond || redistest.RawRedirect.MatchString(err.Error()) {
					t.Errorf("Enqueue = %v, the fault lasted for %v", err, lasted)
				}
				for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); {
					err = enqueue("after")
				}
			}
			info, infoErr := asynq.NewInspectorFromRedisClient(shared).GetQueueInfo("default")
			if err != nil || infoErr != nil || info.Pending != 2 {
				t.Errorf("Enqueue = %v; %+v, %v, want two tasks pending", err, info, infoErr)
			}
		})
	}
}
