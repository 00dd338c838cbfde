package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/event"
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
	// on a machine that is busy for longer than a tenth of the window each grant comes too late
	const phones, messages, window, lease = 25, 3, 2 * time.Second, time.Minute
	policy := phoneAndProvider(window, throttle.Sliding(400, window))
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
	t.Logf("%d messages took %v; the phones' limit allows them in 4 s", phones*messages, time.Since(began))
}

// A task that the provider holds up keeps its turn at its phone, in another hash slot, where its limit would admit it at once.
// The pool leaves it alone until the provider's instant: it is not moved forward, looked at and moved back.
func TestPoolOnClusterLeavesATaskAloneUntilItsInstant(t *testing.T) {
	t.Parallel()
	const messages = 30
	rdb := redistest.StartCluster(t, 3)
	var deferred, promoted atomic.Int64
	cfg := worker.Config{Policies: []queue.Policy{phoneAndProvider(time.Hour, throttle.Sliding(1, time.Hour))}}
	cfg.Observer.Deferred = func(context.Context, event.Deferred) { deferred.Add(1) }
	cfg.Observer.Promoted = func(context.Context, event.Promoted) { promoted.Add(1) }
	cfg.Asynq.Concurrency = 4
	seen := &runs{}
	p := started(t, rdb, seen.handler(), cfg)
	for i := range messages {
		enqueue(t, rdb, queue.NewTask("sms", []byte(to(fmt.Sprint("+", i)))))
	}
	eventually(t, "one ran, and the others wait", func() bool { return len(seen.all()) == 1 && deferred.Load() >= messages-1 })
	if s := p.Stats(); promoted.Load() > 0 || s.WakeChecks > 0 || s.Moved > 0 {
		t.Errorf("%d promotions, %d checks, %d moves, want none", promoted.Load(), s.WakeChecks, s.Moved)
	}
}

// The clock of each master is compared with the local one, and one that is off is named.
func TestPoolComparesTheClockOfEachMaster(t *testing.T) {
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 3)
	off := nodes[2].Addr()
	for ahead, starts := range map[time.Duration]bool{-6 * time.Second: false, 2 * time.Second: true} {
		o := *rdb.Options()
		o.NewClient = func(o *redis.Options) *redis.Client {
			c := redis.NewClient(o)
			if o.Addr == off {
				c.AddHook(shiftedTime(func() time.Duration { return ahead }))
			}
			return c
		}
		client := redis.NewClusterClient(&o)
		t.Cleanup(func() { _ = client.Close() })
		core, logs := observer.New(zapcore.WarnLevel)
		p, err := worker.New(client, new(runs).handler(), worker.Config{Logger: zap.New(core), Unlimited: worker.UnlimitedAllow})
		if err != nil {
			t.Fatal(err)
		}
		err = p.Start(t.Context())
		p.Shutdown()
		if starts {
			warned := logs.FilterMessageSnippet("clock differs").All()
			if err != nil || len(warned) != 1 || warned[0].ContextMap()["addr"] != off {
				t.Errorf("a clock %v ahead: Start = %v, warnings %v, want one that names %s", ahead, err, warned, off)
			}
			continue
		}
		if !errors.Is(err, worker.ErrClockSkew) || strings.Count(err.Error(), "ahead") != 1 || !strings.Contains(err.Error(), "redis "+off) {
			t.Errorf("a clock %v ahead: Start = %v, want it to name %s alone", ahead, err, off)
		}
	}
}

// shiftedTime lets the clock of a server be so far ahead, as its client hears of it.
type shiftedTime func() time.Duration

func (shiftedTime) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s shiftedTime) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		s.shift(cmd)
		return err
	}
}

func (s shiftedTime) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			s.shift(cmd)
		}
		return err
	}
}

func (s shiftedTime) shift(cmd redis.Cmder) {
	if t, ok := cmd.(*redis.TimeCmd); ok {
		t.SetVal(t.Val().Add(s()))
	}
}

// loadingHook answers scripts about some keys as a server does that begins.
type loadingHook struct{ tag string }

type loadingError struct{}

func (loadingError) Error() string { return "LOADING Redis is loading the dataset in memory" }
func (loadingError) RedisError()   {}

func (h loadingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h loadingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h loadingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) && strings.Contains(fmt.Sprint(cmd.Args()...), h.tag) {
			cmd.SetErr(loadingError{})
			return loadingError{}
		}
		return next(ctx, cmd)
	}
}

// While the node of a wide rule answers nothing useful, a task gives its worker up after some seconds, also
// when its handler asks: it is no failure.
func TestTaskIsDeferredWhileOneNodeIsAway(t *testing.T) {
	t.Parallel()
	for name, inHandler := range map[string]bool{"by its policy": false, "by its handler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.StartCluster(t, 3)
			client := redis.NewClusterClient(rdb.Options())
			t.Cleanup(func() { _ = client.Close() })
			client.AddHook(loadingHook{"{acme}"})
			cfg := worker.Config{Unlimited: worker.UnlimitedAllow}
			cfg.Asynq.Concurrency = 1
			handler := new(runs).handler()
			if inHandler {
				own := throttle.Config{}
				phone, err := throttle.New(client, "phone", throttle.Sliding(1, time.Minute), own)
				provider, err2 := throttle.New(client, "provider", throttle.Sliding(10, time.Minute), own)
				both, err3 := throttle.NewPolicy(phone, provider)
				if err := errors.Join(err, err2, err3); err != nil {
					t.Fatal(err)
				}
				handler = asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
					_, err := both.Acquire(ctx, throttle.Request{Key: "+1", Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}})
					return err
				})
			} else {
				cfg.Policies = []queue.Policy{phoneAndProvider(time.Minute, throttle.Sliding(10, time.Minute))}
			}
			p := started(t, client, handler, cfg)
			enqueue(t, rdb, queue.NewTask("sms", []byte(to("+1")), asynq.TaskID("a"), asynq.MaxRetry(0)))
			inspector := asynq.NewInspectorFromRedisClient(rdb)
			var info *asynq.TaskInfo
			eventually(t, "the task is deferred", func() bool {
				var err error
				info, err = inspector.GetTaskInfo("default", "a")
				return err == nil && info.State == asynq.TaskStateRetry
			})
			if info.Retried != 0 || info.LastErr != "" {
				t.Errorf("it counts as %d failures, %q, want none", info.Retried, info.LastErr)
			}
			if n := p.Stats().Admissions; n > 0 {
				t.Errorf("%d admissions, want none: nothing was decided", n)
			}
		})
	}
}
