package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// TestSlotsBehindAWideRule: three pools work through slots on a Redis that takes some
// milliseconds to answer, also where a rule that never refuses anybody stands before
// the slots.
func TestSlotsBehindAWideRule(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                 string
		jobs, slots, tenants int
		rules                []string
	}{
		{"slots alone", 400, 20, 1, []string{"slots: {limit: concurrent 20 lease 2s, key: acme}"}},
		{"one tenant", 400, 20, 1, []string{"tenant: {limit: 100000/24h, key: $.tenant}", "slots: {limit: concurrent 20 lease 2s, key: acme}"}},
		{"five tenants", 400, 20, 5, []string{"tenant: {limit: 100000/24h, key: $.tenant}", "slots: {limit: concurrent 20 lease 2s, key: acme}"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const takes = 150 * time.Millisecond
				policies, err := queue.ReadPolicies("night", strings.NewReader(policyFile(typeSMS, tc.rules)))
				if err != nil {
					t.Fatal(err)
				}
				rdb, m := redistest.Mini(t)
				var ran atomic.Int64
				handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
					time.Sleep(takes)
					ran.Add(1)
					return nil
				})
				var pools []*worker.Pool
				for range 3 {
					far := redis.NewClient(redistest.MiniOptions(m))
					t.Cleanup(func() { _ = far.Close() })
					far.AddHook(slowHook{8 * time.Millisecond})
					pools = append(pools, startPool(t, far, handler, worker.Config{Asynq: asynq.Config{Concurrency: 20}, Policies: policies}))
				}
				client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
				if err != nil {
					t.Fatal(err)
				}
				for i := range tc.jobs {
					body, err := json.Marshal(message{ID: fmt.Sprint(i), To: phone(i), Tenant: fmt.Sprint(i % tc.tenants)})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := client.Enqueue(t.Context(), queue.NewTask(typeSMS, body)); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				for ran.Load() < int64(tc.jobs) && time.Since(began) < 5*time.Minute {
					time.Sleep(100 * time.Millisecond)
				}
				ideal := time.Duration(tc.jobs/tc.slots) * takes
				if took := time.Since(began); took > ideal*3/2 {
					t.Errorf("%d of %d ran within %v, want all within %v", ran.Load(), tc.jobs, took, ideal)
				}
				for _, p := range pools {
					t.Logf("%v, %+v", time.Since(began), p.Stats())
				}
			})
		})
	}
}

// slowHook makes the way to Redis and back take up to so long.
type slowHook struct{ most time.Duration }

func (slowHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h slowHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(rand.N(h.most))
		return next(ctx, cmds)
	}
}

func (h slowHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(rand.N(h.most) / 2)
		err := next(ctx, cmd)
		time.Sleep(rand.N(h.most) / 2)
		return err
	}
}
