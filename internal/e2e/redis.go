package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// RedisOptions reads host:port or a redis:// URL. The error does not quote it: it may
// hold a password.
func RedisOptions(addr string) (*redis.Options, error) {
	if strings.Contains(addr, "://") {
		opts, err := redis.ParseURL(addr)
		if err != nil {
			return nil, errors.New("want a URL like redis://user:password@host:6379/0")
		}
		return opts, nil
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return nil, errors.New("want host:port, or a URL like redis://host:6379/0")
	}
	return &redis.Options{Addr: addr}, nil
}

// OpenRedis returns a client for the Redis that the options lead to, or without options
// one for an embedded Redis, and what closes both.
func OpenRedis(opts *redis.Options) (*redis.Client, func(), error) {
	stop := func() {}
	if opts == nil {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true) // else nothing in it ever expires
		if err := m.Start(); err != nil {
			return nil, nil, fmt.Errorf("redis: %w", err)
		}
		opts, stop = &redis.Options{Addr: m.Addr()}, m.Close
	}
	rdb := redis.NewClient(opts)
	return rdb, func() {
		_ = rdb.Close()
		stop()
	}, nil
}

// Silence is a logger for go-redis that drops what it writes to stderr by itself, which
// would break a live line. Errors that matter come back from the calls as well.
type Silence struct{}

// Printf drops its arguments.
func (Silence) Printf(context.Context, string, ...any) {}

// DeleteQueue deletes a queue of asynq with its tasks, and what asynq has counted for it.
// A queue that does not exist is fine.
func DeleteQueue(rdb *redis.Client, queue string) error {
	err := asynq.NewInspectorFromRedisClient(rdb).DeleteQueue(queue, true)
	if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	keys := rdb.Scan(ctx, 0, "asynq:{"+queue+"}:*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := rdb.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}
