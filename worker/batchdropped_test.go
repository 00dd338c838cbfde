package worker_test

import (
	"context"
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

// cancelled is the Redis client of a pool to which all batches look cancelled. What
// asynq writes at the end of a task is done twice, or never.
type cancelled struct {
	redis.UniversalClient
	never   bool
	written atomic.Int64
}

func (c *cancelled) HGet(ctx context.Context, key, field string) *redis.StringCmd {
	if field == "state" && strings.Contains(key, ":batch:") {
		return redis.NewStringResult("cancelled", nil)
	}
	return c.UniversalClient.HGet(ctx, key, field)
}

func (c *cancelled) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, "asynq:{default}:processed:") }) {
		c.written.Add(1)
		if c.never {
			return redis.NewCmdResult(nil, errDead)
		}
		if cmd := c.UniversalClient.EvalSha(ctx, sha, keys, args...); cmd.Err() != nil {
			return cmd
		}
	}
	return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// A task that was dropped is forgotten when Redis says that it is there no more, and when
// nobody could write its end.
func TestVirtualDroppedTasksAreForgotten(t *testing.T) {
	t.Parallel()
	for name, never := range map[string]bool{"its end is written twice": false, "its end is never written": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := virtualBatchRig(t)
				c := &cancelled{UniversalClient: h.connect(), never: never}
				cfg := policies()
				cfg.Asynq.Concurrency = 2
				pool, _ := h.startOn(c, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
					t.Error("a task of a cancelled batch runs")
					return nil
				}), cfg)
				stop := h.feed(map[string]batch.Source{"messages": messages(5, 1)})
				h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages"})
				h.until("all are dropped", func() bool { return c.written.Load() >= 5 })
				stop()
				if never {
					h.rdb.FlushAll(t.Context()) // nothing is delivered again
					time.Sleep(10 * time.Minute)
				}
				synctest.Wait()
				if n := pool.Adapter().Dropped(); n != 0 {
					t.Errorf("%d are remembered, want none", n)
				}
			})
		})
	}
}
