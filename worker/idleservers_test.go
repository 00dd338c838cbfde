package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/worker"
)

// However many servers a pool has that found nothing: what a client of asynq's enqueues,
// who rings nobody, is found as soon as by a few, for they do not look in step.
func TestVirtualIdleServersFindWhatIsNew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := rigOn(t, nil, rdb)
		began := make(chan time.Time, 1)
		cfg := worker.Config{Servers: 32, Asynq: asynq.Config{Concurrency: 32}}
		r.startOn(rdb, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			began <- time.Now()
			return nil
		}), cfg)
		plain := asynq.NewClientFromRedisClient(rdb)
		var sum, most time.Duration
		const n = 20
		for range n {
			time.Sleep(533 * ms)
			enqueued := time.Now()
			if _, err := plain.Enqueue(asynq.NewTask("other", nil)); err != nil {
				t.Fatal(err)
			}
			took := (<-began).Sub(enqueued)
			sum, most = sum+took, max(most, took)
		}
		if mean := sum / n; mean > 20*ms || most > 100*ms {
			t.Errorf("a new task is found after %v, at most after %v; want 10 ms or so", mean, most)
		}
		t.Logf("found after %v, at most after %v", sum/n, most)
	})
}
