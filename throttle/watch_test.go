package throttle_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// gets counts the looks at stored limits.
type gets struct{ atomic.Int64 }

func (g *gets) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (g *gets) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (g *gets) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "get" && strings.HasPrefix(cmd.String(), "get hw:limit:") {
				g.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}

// watch sends what a watch yields until ctx ends; the channel is closed then.
func watch(ctx context.Context, l *throttle.Limiter) <-chan throttle.Limit {
	seen := make(chan throttle.Limit)
	go func() {
		defer close(seen)
		for limit, err := range l.WatchLimit(ctx) {
			if err != nil {
				limit = throttle.Limit{}
			}
			select {
			case seen <- limit:
			case <-ctx.Done():
			}
		}
	}()
	return seen
}

func wantNext(t *testing.T, seen <-chan throttle.Limit, want throttle.Limit) {
	t.Helper()
	const within = 5 * time.Second
	select {
	case got := <-seen:
		if got != want {
			t.Errorf("seen %v, want %v", got, want)
		}
	case <-time.After(within):
		t.Errorf("nothing seen in %v, want %v", within, want)
	}
}

func TestWatchLimit(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	code, other := throttle.Sliding(1, time.Minute), throttle.Sliding(2, time.Minute)
	operator := newLimiter(t, srv.Client(t), "sms", code, throttle.Config{})
	rdb := srv.Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	seen := watch(ctx, newLimiter(t, rdb, "sms", code, throttle.Config{}))
	wantNext(t, seen, code)
	if err := operator.SetLimit(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	wantNext(t, seen, other)
	// one that can't be read is told once, and the watch goes on
	rdb.Set(t.Context(), storedKey, "99 nonsense", 0)
	wantNext(t, seen, throttle.Limit{})
	if err := operator.UnsetLimit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantNext(t, seen, code)
	cancel()
	select {
	case _, open := <-seen:
		if open {
			t.Error("it yields after its context ended")
		}
	case <-time.After(5 * time.Second):
		t.Error("it goes on after its context ended")
	}
}

// A subscriber whose messages are lost, with its connection, looks for itself.
func TestWatchLimitWithoutMessages(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	code, other := throttle.Sliding(1, time.Minute), throttle.Sliding(2, time.Minute)
	rdb := srv.Client(t)
	seen := watch(t.Context(), newLimiter(t, deaf{rdb}, "sms", code, throttle.Config{}))
	wantNext(t, seen, code)
	if err := newLimiter(t, rdb, "sms", code, throttle.Config{}).SetLimit(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	wantNext(t, seen, other)
}

// deaf listens to another channel than it is told.
type deaf struct{ redis.UniversalClient }

func (c deaf) Subscribe(ctx context.Context, _ ...string) *redis.PubSub {
	return c.UniversalClient.Subscribe(ctx, "another")
}
