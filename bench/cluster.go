package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// clusterMasters are the sizes of the clusters that are compared.
var clusterMasters = []int{1, 2, 3}

// clusters measures how the work spreads over the masters of a Redis Cluster. They share the
// processor of one machine, so rates would say little: what counts is the time of the busiest one.
func clusters(ctx context.Context, b *bench) error {
	calls := int64(20_000)
	if b.short {
		calls = 300
	}
	loads := make([]*clusterLoad, len(clusterMasters))
	for i, masters := range clusterMasters {
		var err error
		if loads[i], err = newClusterLoad(b, masters); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		what string
		try  func(ctx context.Context, l *clusterLoad, key string) (throttle.Decision, error)
	}{
		{"a limit per phone", func(ctx context.Context, l *clusterLoad, key string) (throttle.Decision, error) {
			return l.phone.TryAcquire(ctx, key, 1)
		}},
		{"a limit per phone and the provider's", func(ctx context.Context, l *clusterLoad, key string) (throttle.Decision, error) {
			return l.both.Acquire(ctx, throttle.Request{Key: key, Cost: 1, More: []throttle.KeyCost{{Key: "all", Cost: 1}}})
		}},
	} {
		var measures []func() (float64, error)
		for _, l := range loads {
			measures = append(measures, func() (float64, error) {
				return l.measure(ctx, calls, func(ctx context.Context, key string) (throttle.Decision, error) { return c.try(ctx, l, key) })
			})
		}
		figures, err := b.interleave(measures...)
		if err != nil {
			return err
		}
		for i, masters := range clusterMasters[1:] {
			b.row(against(fmt.Sprintf("%s: processor time of the busiest of %d masters for a call", c.what, masters), "µs", lower, "1 master", figures[i+1], figures[0]))
		}
	}
	b.say("%s calls of 128 goroutines, each for another phone at %v; the provider's limit, %v, is one key for all. Nobody asks what is left. "+
		"Time is that of INFO cpu of each master.",
		number(float64(calls)), sms, never)
	return nil
}

// clusterLoad is a cluster, and the limits that are asked there.
type clusterLoad struct {
	nodes []*redis.Client
	phone *throttle.Limiter
	both  *throttle.Policy
	next  int64 // phone
}

// newClusterLoad starts a cluster, which ends with the section.
func newClusterLoad(b *bench, masters int) (*clusterLoad, error) {
	dir, err := os.MkdirTemp("", "headway-bench")
	if err != nil {
		return nil, err
	}
	b.onEnd(func() error { return os.RemoveAll(dir) })
	cluster, err := redisserver.LaunchCluster(dir, masters, false)
	if err != nil {
		return nil, err
	}
	b.onEnd(cluster.Close)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	b.onEnd(rdb.Close)
	l := &clusterLoad{}
	for _, addr := range cluster.Addrs() {
		node := redis.NewClient(clientOptions(addr))
		b.onEnd(node.Close)
		l.nodes = append(l.nodes, node)
	}
	l.phone, err = throttle.New(rdb, "phone", throttle.Sliding(sms.permits, sms.window), throttle.Config{})
	if err != nil {
		return nil, err
	}
	provider, err := throttle.New(rdb, "provider", throttle.Sliding(never.permits, never.window), throttle.Config{})
	if err != nil {
		return nil, err
	}
	l.both, err = throttle.NewPolicy(l.phone, provider)
	return l, err
}

// measure returns the processor time of the busiest node for each of some calls, in microseconds.
func (l *clusterLoad) measure(ctx context.Context, calls int64, try func(ctx context.Context, key string) (throttle.Decision, error)) (float64, error) {
	before, err := l.times(ctx)
	if err != nil {
		return 0, err
	}
	from := l.next
	l.next += calls
	_, err = drive(ctx, 128, time.Minute, calls, func(ctx context.Context, i int64) error {
		d, err := try(ctx, "+49170"+strconv.FormatInt(from+i, 10))
		if err == nil && !d.Granted {
			err = fmt.Errorf("call %d was not granted", i)
		}
		return err
	})
	after, errAfter := l.times(ctx)
	if err := errors.Join(err, errAfter); err != nil {
		return 0, err
	}
	busiest := 0.0
	for i := range after {
		busiest = max(busiest, after[i]-before[i])
	}
	return busiest / float64(calls), nil
}

func (l *clusterLoad) times(ctx context.Context) ([]float64, error) {
	times := make([]float64, len(l.nodes))
	for i, node := range l.nodes {
		var err error
		if times[i], err = cpuTime(ctx, node); err != nil {
			return nil, err
		}
	}
	return times, nil
}

const (
	clusterTasks  = 600
	clusterPhones = 200
	clusterPace   = 100 // a second, which the provider lets through
	clusterWithin = 2 * time.Minute
)

// clusterPools compares how long a pool takes for tasks that a provider holds up, on a cluster and on one Redis. The rules of a task
// have keys in several hash slots.
func clusterPools(ctx context.Context, b *bench) error {
	tasks := clusterTasks
	if b.short {
		tasks = 100
	}
	rule := func(name string, limit throttle.Limit) queue.Rule {
		return queue.Rule{Name: name, Limit: limit, Constant: name}
	}
	phone := queue.Rule{Name: "phone", Limit: throttle.Sliding(1, 500*time.Millisecond), Key: queue.MustJSONKey("$.to")}
	provider, slots := rule("provider", throttle.Sliding(clusterPace, time.Second)), rule("slots", throttle.Concurrent(20, time.Minute))
	for _, c := range []struct {
		what   string
		rules  []queue.Rule
		target float64 // of the time on one Redis
	}{
		{"a phone's limit and a provider's that binds: time for all tasks on 3 masters", []queue.Rule{phone, provider}, 1 / 0.95},
		{"the same with slots: time for all tasks on 3 masters", []queue.Rule{phone, provider, slots}, 1.2},
	} {
		one, many, err := clusterServers(b)
		if err != nil {
			return err
		}
		var measures []func() (float64, error)
		for _, rdb := range []redis.UniversalClient{many, one} {
			measures = append(measures, func() (float64, error) { return workOff(ctx, rdb, c.rules, tasks) })
		}
		figures, err := b.interleave(measures...)
		if err != nil {
			return err
		}
		r := against(c.what, "s", lower, "one Redis", figures[0], figures[1])
		b.row(r.holding(fmt.Sprintf("≤ %.2f x", c.target), r.Ratio <= c.target))
	}
	b.say("Tasks through a pool: %d to %d phones at %v, a provider's limit of %d/1s and, in the last row, `concurrent 20 lease 1m`. "+
		"Each rule has its keys in hash slots of its own.", tasks, clusterPhones, phone.Limit, clusterPace)
	return nil
}

// clusterServers starts one Redis, and a cluster of three masters. They end with the section.
func clusterServers(b *bench) (one, many redis.UniversalClient, err error) {
	dir, err := os.MkdirTemp("", "headway-bench")
	if err != nil {
		return nil, nil, err
	}
	b.onEnd(func() error { return os.RemoveAll(dir) })
	cluster, err := redisserver.LaunchCluster(dir, 3, false)
	if err != nil {
		return nil, nil, err
	}
	b.onEnd(cluster.Close)
	many = redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	b.onEnd(many.Close)
	alone, err := os.MkdirTemp(dir, "one")
	if err != nil {
		return nil, nil, err
	}
	server, err := redisserver.Launch(alone)
	if err != nil {
		return nil, nil, err
	}
	b.onEnd(server.Close)
	one = redis.NewClient(&redis.Options{Addr: server.Addr()})
	b.onEnd(one.Close)
	return one, many, nil
}

// workOff returns how many seconds a pool takes for new tasks to all phones in turns.
func workOff(ctx context.Context, rdb redis.UniversalClient, rules []queue.Rule, tasks int) (seconds float64, err error) {
	policies := []queue.Policy{{Type: taskType, Rules: rules}}
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		return 0, err
	}
	for i := range tasks {
		body := fmt.Appendf(nil, `{"to":%q}`, phoneNumber(i%clusterPhones))
		if _, err := client.Enqueue(ctx, queue.NewTask(taskType, body)); err != nil {
			return 0, err
		}
	}
	var handled atomic.Int64
	done := make(chan time.Time, 1)
	p, err := worker.New(rdb, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if handled.Add(1) == int64(tasks) {
			done <- time.Now()
		}
		return nil
	}), worker.Config{Asynq: asynq.Config{Concurrency: poolConcurrency, LogLevel: asynq.FatalLevel}, Policies: policies})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := p.Start(ctx); err != nil {
		return 0, err
	}
	defer p.Shutdown()
	timeout := time.NewTimer(clusterWithin)
	defer timeout.Stop()
	select {
	case ended := <-done:
		return ended.Sub(began).Seconds(), nil
	case <-timeout.C:
		return 0, fmt.Errorf("%d of %d tasks within %v", handled.Load(), tasks, clusterWithin)
	case <-ctx.Done():
		return 0, errors.Join(ctx.Err(), context.Cause(ctx))
	}
}
