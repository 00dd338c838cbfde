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
	"github.com/headwayq/headway/worker"
)

// cancelled is the Redis client of a pool to which all batches look cancelled. What
// asynq writes at the end of a task is done so many times.
type cancelled struct {
	redis.UniversalClient
	times   int
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
		if c.times == 0 {
			return redis.NewCmdResult(nil, errDead)
		}
		for range c.times - 1 {
			if cmd := c.UniversalClient.EvalSha(ctx, sha, keys, args...); cmd.Err() != nil {
				return cmd
			}
		}
	}
	return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// dropAll lets a pool drop five tasks with some options.
func (h *batchRig) dropAll(c *cancelled, opts ...asynq.Option) *worker.Pool {
	h.Helper()
	cfg := policies()
	cfg.Asynq.Concurrency = 2
	pool, _ := h.startOn(c, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		h.Error("a task of a cancelled batch runs")
		return nil
	}), cfg)
	source := batch.Seq(func(batch.Spec) iter.Seq[batch.Element] {
		return func(yield func(batch.Element) bool) {
			for range 5 {
				if !yield(batch.Element{Payload: []byte(to("+1")), Options: opts}) {
					return
				}
			}
		}
	})
	stop := h.feed(map[string]batch.Source{"messages": source})
	h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages"})
	h.until("all are dropped", func() bool { return c.written.Load() >= 5 })
	stop()
	return pool
}

// A task that was dropped is forgotten when Redis says that it is there no more, and when
// nobody could write its end.
func TestVirtualDroppedTasksAreForgotten(t *testing.T) {
	t.Parallel()
	for name, times := range map[string]int{"its end is written twice": 2, "its end is never written": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := virtualBatchRig(t)
				pool := h.dropAll(&cancelled{UniversalClient: h.connect(), times: times})
				if times == 0 {
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

// A task that was dropped did not run: it is not kept as one that is completed, or its element
// would be refused when the batch is started again.
func TestVirtualDroppedTasksAreNotKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := virtualBatchRig(t)
		h.dropAll(&cancelled{UniversalClient: h.connect(), times: 1}, asynq.Retention(time.Hour))
		synctest.Wait()
		if q := h.queueInfo(); q.Size != 0 || q.Completed != 0 {
			t.Errorf("asynq keeps %d tasks, %d of them as completed, want none", q.Size, q.Completed)
		}
		if p := h.progress("winter"); p.Dropped != 5 {
			t.Errorf("%+v, want 5 dropped", p)
		}
	})
}
