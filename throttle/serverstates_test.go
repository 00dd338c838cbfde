package throttle_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// While a server says that it can't serve now, a limit grants nothing and charges nothing. When it can again, the limit goes on.
func TestServerThatCannotServeNow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string // how its answer begins
		opts  []redistest.Option
		enter func(ctx context.Context, rdb *redis.Client) error // returns when the server answers so, or will soon
		leave func(ctx context.Context, rdb *redis.Client) error
	}{
		{
			"READONLY", nil,
			func(ctx context.Context, rdb *redis.Client) error { return rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err() },
			func(ctx context.Context, rdb *redis.Client) error { return rdb.ReplicaOf(ctx, "NO", "ONE").Err() },
		},
		{
			"BUSY", []redistest.Option{redistest.Arg("busy-reply-threshold", "1")},
			func(ctx context.Context, rdb *redis.Client) error {
				go rdb.Eval(ctx, "while true do end", nil)
				return nil
			},
			func(ctx context.Context, rdb *redis.Client) error { return rdb.ScriptKill(ctx).Err() },
		},
		{
			"LOADING", []redistest.Option{
				redistest.Arg("enable-debug-command", "yes"), redistest.Arg("loading-process-events-interval-bytes", "1024"),
				redistest.Arg("rdbcompression", "no"),
			},
			func(ctx context.Context, rdb *redis.Client) error {
				pipe := rdb.Pipeline()
				for i := range 100 {
					pipe.Set(ctx, strconv.Itoa(i), strings.Repeat("x", 2048), 0)
				}
				pipe.Save(ctx)
				pipe.ConfigSet(ctx, "key-load-delay", "200000") // µs
				if _, err := pipe.Exec(ctx); err != nil {
					return err
				}
				go rdb.Do(ctx, "debug", "reload", "nosave")
				return nil
			},
			func(ctx context.Context, rdb *redis.Client) error {
				return errors.Join(rdb.ConfigSet(ctx, "key-load-delay", "0").Err(), rdb.Ping(ctx).Err())
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, append(c.opts, redistest.Own())...)
			operator := server.Client(t)
			opts := server.ClientOptions()
			opts.MaxRetries = -1 // what go-redis repeats by itself is not what this is about
			rdb := redis.NewClient(opts)
			t.Cleanup(func() { _ = rdb.Close() })
			l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
			if _, err := l.TryAcquire(t.Context(), "another key", 1); err != nil { // the library is there
				t.Fatal(err)
			}

			if err := c.enter(t.Context(), operator); err != nil {
				t.Fatal(err)
			}
			answersWith(t, rdb, c.name)
			_, err := l.TryAcquire(t.Context(), key, 1)
			if !errors.Is(err, throttle.ErrUnavailable) || !strings.Contains(err.Error(), c.name) {
				t.Errorf("TryAcquire = %v, want %v with %s", err, throttle.ErrUnavailable, c.name)
			}
			if err := l.Acquire(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("Acquire = %v, want %v", err, throttle.ErrUnavailable)
			}
			noKey(t, err)

			eventually(t, "the server is told to serve again", func() bool { return c.leave(t.Context(), operator) == nil })
			var first throttle.Decision
			eventually(t, "the server serves again", func() bool {
				first, err = l.TryAcquire(t.Context(), key, 1)
				return err == nil
			})
			if !first.Granted {
				t.Fatalf("TryAcquire = %+v, %v, want it granted: nothing was charged meanwhile", first, err)
			}
			if second, err := l.TryAcquire(t.Context(), key, 1); err != nil || second.Granted {
				t.Errorf("TryAcquire = %+v, %v, want it refused", second, err)
			}
		})
	}
}

// answersWith waits until calls of a function are answered so.
func answersWith(t *testing.T, rdb *redis.Client, word string) {
	t.Helper()
	eventually(t, "the server answers "+word, func() bool {
		_, err := limitscripts.Acquire(t.Context(), rdb, limitscripts.AcquireArgs{
			Rules: []limitscripts.RuleCall{{
				LimitKeys: limitscripts.NewLimitKeys("hw", "probe", "probe"),
				Numbers:   limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1000, Window: time.Minute}, Cost: 1,
			}},
			Token: 1,
		})
		return err != nil && strings.Contains(err.Error(), word)
	})
}
