package worker_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// On a cluster whose servers' clocks differ, pools keep the limits by a clock outside, and no
// task is left behind.
func TestPoolsOnClusterOfDifferentClocks(t *testing.T) {
	redistest.NeedFunctions(t)
	t.Parallel()
	for name, ahead := range map[string][]time.Duration{
		"by some of a second": {0, 150 * ms, -150 * ms},
		"by an hour":          {0, time.Hour, -time.Hour},
	} {
		t.Run(name, func(t *testing.T) { poolsOnClocks(t, ahead) }) // one after the other: each has three servers
	}
}

func poolsOnClocks(t *testing.T, ahead []time.Duration) {
	t.Helper()
	const phones, messages, window = 30, 5, 500 * ms
	rdb, nodes := redistest.StartNodes(t, 3)
	_, library := luascripts.Library()
	for i, ahead := range ahead {
		if err := redistest.Skew(t.Context(), nodes[i].Client(t), library, ahead); err != nil {
			t.Fatal(err)
		}
	}
	seen := &runs{}
	cfg := worker.Config{Policies: []queue.Policy{phoneAndProvider(window, throttle.Sliding(100, time.Second))}}
	cfg.Asynq.Concurrency = 10
	for range 2 {
		started(t, rdb, seen.handler(), cfg)
	}
	began := time.Now()
	for i := range phones * messages {
		enqueue(t, rdb, queue.NewTask("sms", []byte(to(fmt.Sprint("+", i%phones)))))
	}
	eventually(t, "all ran", func() bool { return len(seen.all()) >= phones*messages })
	t.Logf("%d messages took %v; the phones' limit allows them in 2 s", phones*messages, time.Since(began))
	starts := make(map[string][]time.Time)
	for _, r := range seen.all() {
		starts[r.payload] = append(starts[r.payload], r.at)
	}
	for phone, at := range starts {
		slices.SortFunc(at, time.Time.Compare)
		for i := range len(at) - 1 {
			if gap := at[i+1].Sub(at[i]); gap < window-window/10-5*ms { // our own noting takes its time
				t.Errorf("%s: two messages start %v apart, want %v less a tenth", phone, gap, window)
			}
		}
	}
}

// A limit of concurrent tasks in a third hash slot starves nobody: while a place is free, a task that
// waits for one comes at once, and not when a lease would have ended.
func TestPoolOnClusterWithConcurrentLimit(t *testing.T) {
	t.Parallel()
	const phones, messages, window, lease = 25, 4, 500 * ms, time.Minute
	policy := phoneAndProvider(window, throttle.Sliding(200, time.Second))
	policy.Rules = append(policy.Rules, queue.Rule{Name: "concurrent", Limit: throttle.Concurrent(5, lease), Constant: "line"})
	rdb := redistest.StartCluster(t, 3)
	seen := &runs{}
	cfg := worker.Config{Policies: []queue.Policy{policy}}
	cfg.Asynq.Concurrency = 10
	p := started(t, rdb, seen.handler(), cfg)
	defer func() {
		if t.Failed() {
			t.Logf("%d ran; %+v", len(seen.all()), p.Stats())
		}
	}()
	began := time.Now()
	for i := range phones * messages {
		enqueue(t, rdb, queue.NewTask("sms", []byte(to(fmt.Sprint("+", i%phones)))))
	}
	eventually(t, "all ran", func() bool { return len(seen.all()) >= phones*messages })
	t.Logf("%d messages took %v; the phones' limit allows them in 1.5 s", phones*messages, time.Since(began))
}
