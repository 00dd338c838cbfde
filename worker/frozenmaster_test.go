package worker_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// The master of some phones stands still, and more of their tasks come than there are workers. The tasks of other phones run all the
// same, long before the time-outs of the client are over, and those of the silent master when it is back.
func TestPoolOnClusterServesOtherKeysWhileTheirMasterIsSilent(t *testing.T) {
	t.Parallel()
	shared, nodes := redistest.StartNodes(t, 3)
	for _, n := range nodes { // else no node answers while one is away
		if err := n.Client(t).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err(); err != nil {
			t.Fatal(err)
		}
	}
	nodeOf := func(key string) int {
		owner, err := shared.MasterForKey(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return slices.IndexFunc(nodes, func(n *redistest.Server) bool { return n.Addr() == owner.Options().Addr })
	}
	o := *shared.Options()
	o.ReadTimeout = 30 * time.Second
	rdb := redis.NewClusterClient(&o)
	t.Cleanup(func() { _ = rdb.Close() })
	seen := &runs{}
	cfg := policies(phone("sms", 10*ms))
	cfg.Asynq.Concurrency = 4
	started(t, rdb, seen.handler(), cfg)
	client := asynq.NewClientFromRedisClient(shared) // it notes a queue in Redis once, on a node that may be the silent one
	send := func(id, phone string) {
		t.Helper()
		if _, err := client.Enqueue(asynq.NewTask("sms", []byte(to(phone)), asynq.TaskID(id))); err != nil {
			t.Fatal(err)
		}
	}
	phones := make([]string, len(nodes)) // by node
	for i := 0; slices.Contains(phones, ""); i++ {
		key := fmt.Sprint("+", i)
		phones[nodeOf("{"+key+"}")] = key
	}
	ofQueue, ofLimit := nodeOf("{default}"), nodeOf("hw:limit:sms")
	silent := 0
	for silent == ofQueue || silent == ofLimit {
		silent++
	}
	for i, p := range phones {
		send(fmt.Sprint("before ", i), p)
	}
	seen.ran(t, len(phones))
	nodes[silent].Pause()
	t.Cleanup(nodes[silent].Resume)
	for i := range cfg.Asynq.Concurrency + 2 {
		send(fmt.Sprint("silent ", i), phones[silent])
	}
	began := time.Now()
	send("other", phones[ofQueue])
	eventually(t, "the other phone's task runs", func() bool { return seen.count("other") > 0 })
	t.Logf("it ran after %v", time.Since(began).Round(ms))
	nodes[silent].Resume()
	seen.ran(t, len(phones)+cfg.Asynq.Concurrency+3)
}
