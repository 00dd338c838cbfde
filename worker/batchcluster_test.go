package worker_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// On Redis Cluster, where the phone and the provider are in different slots: a feeder
// dies, the batch is paused, goes on, and ends; another is cancelled.
func TestBatchOnCluster(t *testing.T) {
	t.Parallel()
	const n, phones = 300, 60
	cluster := redistest.StartCluster(t, 3)
	connect := func() redis.UniversalClient { return cluster }
	h := batchRigOn(rigOn(t, nil, nil), connect, []queue.Policy{phoneAndProvider(500*ms, throttle.Sliding(100, time.Second))})
	h.real = true
	h.pool(10)
	sources := map[string]batch.Source{"messages": messages(n, phones), "more": messages(100_000, phones)}
	dying := &mortal{UniversalClient: connect()}
	dying.left.Store(6)
	h.feedOn(dying, sources)
	h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: n, Window: 100})
	h.eventually("the first feeder dies", func() bool { return dying.left.Load() <= 0 })
	h.feed(sources)
	h.eventually("some ran", func() bool { return len(h.seen.all()) > 50 })
	if err := h.batches.Pause(t.Context(), "default", "winter"); err != nil {
		t.Fatal(err)
	}
	if err := h.batches.Resume(t.Context(), "default", "winter"); err != nil {
		t.Fatal(err)
	}
	h.resumed = time.Now()
	h.eventually("all have their places again", func() bool {
		return cluster.HGet(t.Context(), "hw:{default}:batch:winter", "rebooked").Val() != ""
	})
	h.rebooked = time.Now()
	t.Logf("all have their places again %v after the resume", h.rebooked.Sub(h.resumed))
	h.allDone(n, phones)
	h.begin(batch.Spec{ID: "summer", Type: "sms", Source: "more", Window: 100})
	h.eventually("some of the other ran", func() bool { return h.progress("summer").Done > 20 })
	began := time.Now()
	if p, err := h.batches.Cancel(t.Context(), "default", "summer"); err != nil || time.Since(began) > 10*time.Second {
		t.Errorf("Cancel = %+v, %v after %v", p, err, time.Since(began))
	}
}
