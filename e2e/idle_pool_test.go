package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// idlePool runs a pool with default settings and one policy, and no tasks.
func idlePool(tb testing.TB, rdb redis.UniversalClient, servers, queues int) *worker.Pool {
	tb.Helper()
	cfg := worker.Config{Servers: servers, Policies: []queue.Policy{smsPolicy(throttle.Sliding(1, time.Minute))}}
	cfg.Asynq.Queues = map[string]int{"default": 1}
	for i := 1; i < queues; i++ {
		cfg.Asynq.Queues[fmt.Sprint("queue", i)] = 1
	}
	return startPool(tb, rdb, asynq.NewServeMux(), cfg)
}

// An idle pool has few connections, however many workers: one listens for asynq, one for the
// pool, and the rest carry what the pool asked for at the same time when it started.
func TestIdlePoolHasFewConnections(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(t)
	rdb := srv.Client(t)
	startPool(t, rdb, asynq.NewServeMux(), worker.Config{
		Asynq: asynq.Config{Concurrency: 40}, Policies: []queue.Policy{smsPolicy(throttle.Sliding(1, time.Minute))},
	})
	waitUntil := time.Now().Add(30 * time.Second)
	for subscribers(t, admin) < 2 && time.Now().Before(waitUntil) {
		time.Sleep(5 * time.Millisecond)
	}
	if n := subscribers(t, admin); n != 2 {
		t.Errorf("%d connections listen, want 2", n)
	}
	const most = 6 // with those that listen 8, twice what asynq has
	if n := int(rdb.PoolStats().TotalConns); n > most {
		t.Errorf("an idle pool has %d connections beside those that listen, want at most %d", n, most)
	}
}

// subscribers is how many connections listen to channels.
func subscribers(tb testing.TB, rdb *redis.Client) (n int) {
	tb.Helper()
	list, err := rdb.Do(context.Background(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	if err != nil {
		tb.Fatal(err)
	}
	return strings.Count(list, " sub=") - strings.Count(list, " sub=0 ")
}

// TestIdle: a pool without tasks, or whose tasks are not due for long, asks Redis for little. The share of a core is
// measured by `make accept`; here the requests are counted, which do not depend
// on the machine.
func TestIdle(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		servers, queues, deferred int
		most                      float64 // with those inside of scripts; asynq's are 6 for each server
		span                      time.Duration
	}{
		{1, 1, 0, 30, 2 * time.Second}, {4, 1, 0, 4 * 30, 2 * time.Second}, {32, 1, 0, 32 * 30, 2 * time.Second},
		{1, 3, 0, 30, 10 * time.Second}, // for asynq moves what is due in each queue every 5 s
		{1, 1, 9, 80, 10 * time.Second}, // of one phone: the next is due after a minute, and its limit may change
	} {
		servers := tc.servers
		t.Run(fmt.Sprintf("%d servers, %d queues, %d deferred", tc.servers, tc.queues, tc.deferred), func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Start(t).Client(t)
			var sent sentCount
			rdb.AddHook(&sent)
			idlePool(t, rdb, servers, tc.queues)
			client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{smsPolicy(throttle.Sliding(1, time.Minute))}})
			if err != nil {
				t.Fatal(err)
			}
			tasks := make([]*queue.Task, tc.deferred)
			for i := range tasks {
				tasks[i] = queue.NewTask(typeSMS, []byte(`{"to":"+15550100"}`))
			}
			for _, b := range client.BookMany(t.Context(), tasks) {
				if b.Err != nil {
					t.Fatal(b.Err)
				}
			}
			time.Sleep(4500 * time.Millisecond) // the longer a pool has been idle, the less often it looks
			beginning, before := sent.Load(), commands(t, rdb)
			time.Sleep(tc.span) // the rate is what is measured
			requests := float64(sent.Load()-beginning) / tc.span.Seconds()
			inner := float64(commands(t, rdb)-before) / tc.span.Seconds()
			if inner > tc.most {
				t.Errorf("an idle pool with %d servers, %d queues and %d deferred tasks costs Redis %.1f commands a second, want at most %v", servers, tc.queues, tc.deferred, inner, tc.most)
			}
			if infos, err := asynq.NewInspectorFromRedisClient(rdb).Servers(); err != nil || len(infos) != servers {
				t.Errorf("asynq lists %d servers, %v, want %d", len(infos), err, servers)
			}
			if n := rdb.ZCard(t.Context(), "hw:{default}:due").Val(); n < int64(tc.deferred-1) { // the first is due at once
				t.Errorf("%d tasks are deferred, want %d", n, tc.deferred-1)
			}
			t.Logf("%.1f commands a second sent, %.1f processed with those inside of scripts", requests, inner)
		})
	}
}

// commands is how many commands Redis has processed, those inside of scripts
// included.
func commands(tb testing.TB, rdb *redis.Client) int64 {
	tb.Helper()
	info, err := rdb.Info(context.Background(), "stats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "total_commands_processed:"); ok {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return n
		}
	}
	tb.Fatal("INFO stats has no total_commands_processed")
	return 0
}

// sentCount counts the commands that a client sends.
type sentCount struct{ atomic.Int64 }

// DialHook implements [redis.Hook].
func (c *sentCount) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (c *sentCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.Add(1)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (c *sentCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}
