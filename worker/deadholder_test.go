package worker_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// dead is the way to Redis of a process that has died: nothing leaves it any more.
type dead struct{ atomic.Bool }

func (d *dead) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *dead) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if d.Load() {
			cmd.SetErr(errDead)
			return errDead
		}
		return next(ctx, cmd)
	}
}

func (d *dead) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if d.Load() {
			for _, cmd := range cmds {
				cmd.SetErr(errDead)
			}
			return errDead
		}
		return next(ctx, cmds)
	}
}

// slotTasks are policies of one slot, and a handler whose first task takes so long,
// all others for ever.
func slotTasks(seen *runs, lease, first time.Duration) (asynq.Handler, worker.Config) {
	handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		takes := 24 * time.Hour
		if seen.note(ctx, task).id == "t0" {
			takes = first
		}
		select {
		case <-time.After(takes):
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	})
	cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{{
		Name: "slots", Limit: throttle.Concurrent(1, lease), Constant: "acme",
	}}})
	cfg.Asynq.Concurrency = 4
	return handler, cfg
}

// A pool dies with the slot, and with those who are next in line for it deferred by
// itself. Another lets the next one in at the very end of the lease.
func TestVirtualSlotOfADeadPoolIsBackWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	for _, tc := range []struct {
		name  string
		tasks int
		first time.Duration // how long the first task takes
		dies  time.Duration
	}{
		{"as it was deferred", 2, time.Hour, 500 * ms},
		{"its instant has moved with the lease", 2, time.Hour, lease + 500*ms},
		{"its instant has moved twice", 2, time.Hour, 2*lease + 500*ms},
		{"it was far behind and is next now", 3, 500 * ms, 500 * ms},
		{"as before, and the lease was renewed", 3, 500 * ms, lease + 800*ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clients, _ := mini(t, 3)
				var died dead
				clients[0].AddHook(&died)
				seen := &runs{}
				handler, cfg := slotTasks(seen, lease, tc.first)
				started(t, clients[0], handler, cfg)
				for i := range tc.tasks {
					enqueue(t, clients[2], queue.NewTask("sms", nil, asynq.TaskID(fmt.Sprintf("t%d", i))))
					time.Sleep(100 * ms) // of the bubble: they come in this order
				}
				time.Sleep(tc.dies)
				started(t, clients[1], handler, cfg)
				died.Store(true)
				leases, err := clients[2].ZRangeWithScores(t.Context(), "hw:{acme}:slots:tokens", -1, -1).Result()
				if err != nil || len(leases) != 1 || len(seen.all()) != tc.tasks-1 {
					t.Fatalf("leases %v, %v, and there ran %v; want one, and all but the last task", leases, err, seen.ids())
				}
				time.Sleep(2 * lease)
				last := seen.first(fmt.Sprintf("t%d", tc.tasks-1))
				ends := time.UnixMicro(int64(leases[0].Score))
				if !last.grant.At.Equal(ends) || last.at.Sub(ends) > ms {
					t.Errorf("the next was let in %v after the lease ended, and began %v after it; want neither late",
						last.grant.At.Sub(ends), last.at.Sub(ends))
				}
			})
		})
	}
}
