package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
	"github.com/headwayq/headway/throttle"
)

// failover measures what it costs that a failover breaks no limit.
func failover(ctx context.Context, b *bench) error {
	lasts := time.Second
	if b.short {
		lasts = 50 * time.Millisecond
	}
	dir, err := os.MkdirTemp("", "headway-bench")
	if err != nil {
		return err
	}
	b.onEnd(func() error { return os.RemoveAll(dir) })
	servers, err := redisserver.LaunchWatched(dir)
	if err != nil {
		return err
	}
	b.onEnd(servers.Close)
	master, err := servers.Master(ctx)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(clientOptions(master.Addr()))
	b.onEnd(rdb.Close)

	ways := []struct {
		name string
		cfg  throttle.Config
	}{
		{"neither", throttle.Config{}},
		{"HoldAfterFailover", throttle.Config{HoldAfterFailover: true}},
		{"Replicas 1", throttle.Config{Replicas: 1}},
		{"Replicas 2", throttle.Config{Replicas: 2}},
	}
	limiters := make([]*throttle.Limiter, len(ways))
	for i, w := range ways {
		if limiters[i], err = throttle.New(rdb, fmt.Sprint("rule", i), throttle.Sliding(never.permits, never.window), w.cfg); err != nil {
			return err
		}
		if err := limiters[i].Acquire(ctx, "all", 1); err != nil { // a server that has just begun is held
			return err
		}
	}
	for _, goroutines := range []int{1, 128} {
		var measures []func() (float64, error)
		for _, l := range limiters {
			measures = append(measures, func() (float64, error) {
				return drive(ctx, goroutines, lasts, 0, func(ctx context.Context, i int64) error {
					d, err := l.TryAcquire(ctx, "all", 1)
					if err == nil && !d.Granted {
						err = fmt.Errorf("call %d was not granted", i)
					}
					return err
				})
			})
		}
		figures, err := b.interleave(measures...)
		if err != nil {
			return err
		}
		for i, w := range ways[1:] {
			b.row(against(acquireCase{goroutines, 1, true}.String()+", "+w.name, "/s", higher, ways[0].name, figures[i+1], figures[0]))
		}
	}
	b.say("A master with two replicas on the same machine, a limit of %v. With Replicas a grant waits until so many replicas have it.", never)
	return nil
}
