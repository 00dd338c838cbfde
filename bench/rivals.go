package main

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ulule "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/headwayq/headway/throttle"
)

// clientOptions are the same for everybody who uses go-redis: its defaults, so
// ten connections per core.
func clientOptions(addr string) *redis.Options { return &redis.Options{Addr: addr} }

// terms are what every contender is told to allow: so many in each window.
type terms struct {
	permits int
	window  time.Duration
}

// sms is a message per minute and phone; never does not bind within a run.
var (
	sms   = terms{1, time.Minute}
	never = terms{1_000_000, time.Second}
)

// String is as a limit of ours is written, without the algorithm.
func (t terms) String() string {
	return strings.TrimPrefix(throttle.Sliding(t.permits, t.window).String(), "sliding ")
}

// contender asks for one permit of a key.
type contender struct {
	name string
	try  func(ctx context.Context, key string) (allowed bool, err error)

	// sends are the commands that come from the client: INFO counts those that a
	// script calls once more under their own names.
	sends []string
}

// maker is a rival, or ourselves, before the limit is known.
type maker func(ctx context.Context, rdb *redis.Client, t terms) (contender, error)

// libraries are the rivals that decide. redis_rate is the one of the targets.
var libraries = []maker{redisRate, throttledV2, ululeV3}

// floors decide nothing: no limiter on Redis with one call each can be faster.
var floors = []maker{plainGet, emptyScript}

// unavailable are rivals that could not be fetched through the Go module proxy.
var unavailable = []string{"github.com/mennanov/limiters", "github.com/redis/rueidis/rueidislimiter"}

func headway(_ context.Context, rdb *redis.Client, t terms) (contender, error) {
	return headwayOf("Headway", rdb, throttle.Sliding(t.permits, t.window))
}

// headwayGCRA is ours by the algorithm of redis_rate.
func headwayGCRA(_ context.Context, rdb *redis.Client, t terms) (contender, error) {
	return headwayOf("Headway, gcra", rdb, throttle.GCRA(t.permits, t.window, t.permits))
}

func headwayOf(name string, rdb *redis.Client, limit throttle.Limit) (contender, error) {
	l, err := throttle.New(rdb, "sms", limit, throttle.Config{})
	if err != nil {
		return contender{}, err
	}
	return contender{name: name, sends: []string{"fcall", "function"}, try: func(ctx context.Context, key string) (bool, error) {
		d, err := l.TryAcquire(ctx, key, 1)
		return d.Granted, err
	}}, nil
}

func redisRate(_ context.Context, rdb *redis.Client, t terms) (contender, error) {
	l, limit := redis_rate.NewLimiter(rdb), redis_rate.Limit{Rate: t.permits, Burst: t.permits, Period: t.window}
	return contender{name: "redis_rate", sends: []string{"evalsha", "eval"}, try: func(ctx context.Context, key string) (bool, error) {
		r, err := l.Allow(ctx, key, limit)
		return err == nil && r.Allowed > 0, err
	}}, nil
}

func throttledV2(_ context.Context, rdb *redis.Client, t terms) (contender, error) {
	store, err := goredisstore.NewCtx(rdb, "throttled:")
	if err != nil {
		return contender{}, err
	}
	// A MaxBurst of 0 is one permit at a time.
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(t.permits, t.window), MaxBurst: t.permits - 1}
	l, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		return contender{}, err
	}
	sends := []string{"time", "get", "setnx", "expire", "eval"} // its script, which calls get too, is for keys that exist
	return contender{name: "throttled", sends: sends, try: func(ctx context.Context, key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}}, nil
}

func ululeV3(_ context.Context, rdb *redis.Client, t terms) (contender, error) {
	store, err := ulule.NewStore(rdb)
	if err != nil {
		return contender{}, err
	}
	l := limiter.New(store, limiter.Rate{Period: t.window, Limit: int64(t.permits)})
	return contender{name: "ulule/limiter", sends: []string{"evalsha", "eval"}, try: func(ctx context.Context, key string) (bool, error) {
		c, err := l.Get(ctx, key)
		return !c.Reached, err
	}}, nil
}

func plainGet(_ context.Context, rdb *redis.Client, _ terms) (contender, error) {
	return contender{name: "GET", sends: []string{"get"}, try: func(ctx context.Context, key string) (bool, error) {
		err := rdb.Get(ctx, key).Err()
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		return err == nil, err
	}}, nil
}

func emptyScript(_ context.Context, rdb *redis.Client, _ terms) (contender, error) {
	script := redis.NewScript("return 1")
	return contender{name: "empty script", sends: []string{"evalsha", "eval"}, try: func(ctx context.Context, key string) (bool, error) {
		err := script.Run(ctx, rdb, []string{key}).Err()
		return err == nil, err
	}}, nil
}

// makeAll makes contenders of one limit.
func makeAll(ctx context.Context, rdb *redis.Client, t terms, makers ...maker) ([]contender, error) {
	var all []contender
	for _, make := range makers {
		c, err := make(ctx, rdb, t)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// versions names the modules of the rivals as they were built in.
func versions() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	wanted := map[string]bool{
		"github.com/redis/go-redis/v9": true, "github.com/hibiken/asynq": true,
		"github.com/go-redis/redis_rate/v10": true, "github.com/throttled/throttled/v2": true, "github.com/ulule/limiter/v3": true,
	}
	var list []string
	for _, m := range info.Deps {
		if wanted[m.Path] {
			list = append(list, m.Path+" "+m.Version)
		}
	}
	return list
}
