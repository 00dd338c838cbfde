package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

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
