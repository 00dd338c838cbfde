package main

import (
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// openRedis returns a client for the Redis that the options lead to, or without
// options one for an embedded Redis, and what closes both.
func openRedis(opts *redis.Options) (redis.UniversalClient, func(), error) {
	if opts != nil {
		rdb := redis.NewClient(opts)
		return rdb, func() { _ = rdb.Close() }, nil
	}
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // else nothing in it ever expires
	if err := m.Start(); err != nil {
		return nil, nil, fmt.Errorf("redis: %w", err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		m.Close()
	}, nil
}
