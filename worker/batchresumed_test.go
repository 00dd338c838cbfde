package worker_test

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue/batch"
)

// outdated is the Redis client of a pool to which all batches look paused while still is
// set.
type outdated struct {
	redis.UniversalClient
	still atomic.Bool
}

func (o *outdated) HGet(ctx context.Context, key, field string) *redis.StringCmd {
	if o.still.Load() && field == "state" && strings.Contains(key, ":batch:") {
		return redis.NewStringResult("paused", nil)
	}
	return o.UniversalClient.HGet(ctx, key, field)
}

// A pool defers tasks long after their batch went on. They come back within a minute of the
// last time, and not after the hour of a pause.
func TestVirtualBatchTasksDeferredAfterItIsResumed(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]asynq.Option{
		"for an hour":           nil,
		"until a near deadline": {asynq.Deadline(time.Date(2000, 1, 1, 0, 5, 0, 0, time.UTC))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deferredAfterItIsResumed(t, opts)
		})
	}
}

func deferredAfterItIsResumed(t *testing.T, opts []asynq.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := virtualBatchRig(t)
		late := &outdated{UniversalClient: h.connect()}
		late.still.Store(true)
		cfg := policies()
		cfg.Asynq.Concurrency = 2
		h.startOn(late, h.handler(), cfg)
		h.feed(map[string]batch.Source{"messages": batch.Seq(func(batch.Spec) iter.Seq[batch.Element] {
			return slices.Values(slices.Repeat([]batch.Element{{Payload: []byte(to("+1")), Options: opts}}, 5))
		})})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages"})
		h.until("all are enqueued", func() bool { return h.progress("winter").Open == 5 })
		if err := h.batches.Pause(t.Context(), "default", "winter"); err != nil {
			t.Fatal(err)
		}
		if err := h.batches.Resume(t.Context(), "default", "winter"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Second)
		if ran := len(h.seen.all()); ran != 0 {
			t.Fatalf("%d ran, want all put away again and again", ran)
		}
		late.still.Store(false)
		began := time.Now()
		if p := h.ends(); p.Done != 5 || time.Since(began) > 65*time.Second {
			t.Errorf("it ended as %+v after %v, want all done within a minute", p, time.Since(began))
		}
	})
}
