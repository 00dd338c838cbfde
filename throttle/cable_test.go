package throttle_test

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// cable is a hook that a test can pull: no script reaches Redis then. It counts
// those that try.
type cable struct {
	pulled atomic.Bool
	deaf   atomic.Bool // they reach it, and their answers are lost
	tries  atomic.Int64
	hang   atomic.Int64 // nanoseconds until a pulled one fails
	fault  error        // what a pulled one fails with; nil for errPulled
	looks  atomic.Bool  // pulled too: the pipelines that read the limit
}

var errPulled = errors.New("cable: pulled")

func (c *cable) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *cable) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !c.looks.Load() || !c.pulled.Load() {
			return next(ctx, cmds)
		}
		time.Sleep(time.Duration(c.hang.Load()))
		for _, cmd := range cmds {
			cmd.SetErr(errPulled)
		}
		return errPulled
	}
}

func (c *cable) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.tries.Add(1)
		if c.deaf.Load() {
			_ = next(ctx, cmd)
			cmd.SetErr(errPulled)
			return errPulled
		}
		if !c.pulled.Load() {
			return next(ctx, cmd)
		}
		if hang := time.Duration(c.hang.Load()); hang > 0 {
			select {
			case <-time.After(hang):
			case <-ctx.Done():
				cmd.SetErr(ctx.Err())
				return ctx.Err()
			}
		}
		err := cmp.Or(c.fault, errPulled)
		cmd.SetErr(err)
		return err
	}
}

// pulled runs f in a bubble with a limiter whose Redis is away.
func pulled(t *testing.T, limit throttle.Limit, cfg throttle.Config, f func(t *testing.T, l *throttle.Limiter, c *cable)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		c := &cable{}
		rdb.AddHook(c)
		l := newLimiter(t, rdb, "sms", limit, cfg)
		if _, err := l.TryAcquire(t.Context(), "other", 1); err != nil { // the script is known
			t.Fatal(err)
		}
		c.pulled.Store(true)
		f(t, l, c)
		time.Sleep(2 * time.Second) // what is taken back in the background
	})
}

func mustTry(t *testing.T, l *throttle.Limiter, granted bool, by throttle.FailureMode) throttle.Decision {
	t.Helper()
	d, err := l.TryAcquire(t.Context(), key, 1)
	if err != nil || d.Granted != granted || d.Fallback != by {
		t.Errorf("TryAcquire = %v, %v, want granted = %v by %v", d, err, granted, by)
	}
	return d
}
