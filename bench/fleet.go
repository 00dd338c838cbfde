package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// fleet is something that works tasks off. start returns what stops it, and
// tells whether it did its work as it should.
type fleet struct {
	name  string
	start func(addr string, h asynq.Handler) (stop func() error, err error)
}

// neverBinds is one key for all tasks.
func neverBinds() queue.Rule {
	return queue.Rule{Name: "all", Limit: throttle.Sliding(never.permits, never.window), Key: queue.MustJSONKey("$.all")}
}

// easyRules admit every task of this section at once, the first for each phone.
func easyRules() []queue.Rule {
	rule := func(name string, limit throttle.Limit) queue.Rule {
		return queue.Rule{Name: name, Limit: limit, Key: queue.MustJSONKey("$." + name)}
	}
	return []queue.Rule{
		rule("to", throttle.Sliding(1_000, time.Second)),
		rule("tenant", throttle.Bucket(100_000, time.Second, 100_000)),
		rule("provider", throttle.GCRA(100_000, time.Second, 100_000)),
		rule("country", throttle.Fixed(1_000_000, time.Minute)),
		rule("all", throttle.Calendar(1_000_000, throttle.Day, "UTC")),
	}
}

// headwayPool is a pool of ours; with rules, each task asks all of them.
func headwayPool(name string, rules ...queue.Rule) fleet {
	cfg := worker.Config{Asynq: asynq.Config{Concurrency: poolConcurrency, LogLevel: asynq.FatalLevel}}
	if len(rules) > 0 {
		cfg.Policies = []queue.Policy{{Type: taskType, Rules: rules}}
	}
	return fleet{name, func(addr string, h asynq.Handler) (func() error, error) {
		rdb := poolClient(addr)
		p, err := worker.New(rdb, h, cfg)
		if err == nil {
			err = p.Start(context.Background())
		}
		if err != nil {
			return nil, errors.Join(err, rdb.Close())
		}
		return func() error {
			p.Shutdown()
			s := p.Stats()
			return errors.Join(unless(s.Booked+s.Refused == 0, "a rule bound that should not"),
				unless(len(rules) == 0 || s.Granted > 0, "no rule was asked"), rdb.Close())
		}, nil
	}}
}

// bareAsynq is asynq as it comes, with the same concurrency in all.
func bareAsynq(name string, servers int) fleet {
	return fleet{name, func(addr string, h asynq.Handler) (func() error, error) {
		var stops []func()
		stop := func() error {
			var wg sync.WaitGroup
			for _, s := range stops {
				wg.Go(s)
			}
			wg.Wait()
			return nil
		}
		for range servers {
			rdb := poolClient(addr)
			srv := asynq.NewServerFromRedisClient(rdb, asynq.Config{
				Concurrency: poolConcurrency / servers, LogLevel: asynq.FatalLevel,
				TaskCheckInterval: 10 * time.Millisecond, // of an empty queue: it stops sooner
			})
			if err := srv.Start(h); err != nil {
				return nil, errors.Join(err, rdb.Close(), stop())
			}
			stops = append(stops, func() { srv.Shutdown(); _ = rdb.Close() })
		}
		return stop, nil
	}}
}

func poolClient(addr string) *redis.Client {
	o := clientOptions(addr)
	o.PoolSize = poolConnections
	return redis.NewClient(o)
}
