package worker_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/worker"
)

// On a Redis Cluster the node of the first queue stands still. The tasks of the next queue, on another node, run all the
// same, and those of the first when its node is back.
func TestPoolOnClusterServesOtherQueuesWhileANodeIsSilent(t *testing.T) {
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 3)
	redistest.ServeInPart(t, nodes)
	nodeOf := func(name string) int { return redistest.NodeOf(t, rdb, nodes, "{"+name+"}") }
	first, second := "q0", "q1"
	for i := 2; nodeOf(second) == nodeOf(first); i++ {
		second = fmt.Sprint("q", i)
	}
	seen := &runs{}
	cfg := worker.Config{Unlimited: worker.UnlimitedAllow}
	cfg.Asynq.Queues, cfg.Asynq.StrictPriority, cfg.Asynq.Concurrency = map[string]int{first: 2, second: 1}, true, 4
	started(t, rdb, seen.handler(), cfg)
	client := asynq.NewClientFromRedisClient(rdb) // it notes a queue in Redis once, on a node that may be the silent one
	send := func(id, queue string) error {
		_, err := client.Enqueue(asynq.NewTask("any", nil), asynq.TaskID(id), asynq.Queue(queue))
		return err
	}
	for _, name := range []string{first, second} {
		if err := send("before "+name, name); err != nil {
			t.Fatal(err)
		}
	}
	seen.ran(t, 2)
	silent := nodes[nodeOf(first)]
	silent.Pause()
	t.Cleanup(silent.Resume)
	const n = 20
	began := time.Now()
	for i := range n {
		if err := send(fmt.Sprint(i), second); err != nil {
			t.Fatal(err)
		}
	}
	seen.ran(t, 2+n)
	took := time.Since(began)
	t.Logf("%d tasks ran within %v", n, took.Round(ms))
	if took > 10*time.Second {
		t.Errorf("%d tasks took %v while the node of another queue was silent, want some seconds at most", n, took)
	}
	silent.Resume()
	eventually(t, "a task of the first queue is enqueued", func() bool {
		err := send("after", first)
		return err == nil || errors.Is(err, asynq.ErrTaskIDConflict) // the answer was lost
	})
	eventually(t, "it runs", func() bool { return seen.count("after") > 0 })
}
