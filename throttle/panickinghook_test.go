package throttle_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// panickingHook panics once at a command of a context that says so, or lets all fail.
type panickingHook struct{ panics, fails atomic.Bool }

type mayPanic struct{}

func (h *panickingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *panickingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := h.hit(ctx); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}

func (h *panickingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.hit(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (h *panickingHook) hit(ctx context.Context) error {
	if ctx.Value(mayPanic{}) != nil && h.panics.CompareAndSwap(true, false) {
		panic("a hook")
	}
	if h.fails.Load() {
		return &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	return nil
}

// caught says that f panicked.
func caught(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

// TestHookThatPanics: a caller whose client panics, which a worker or a web server survives, leaves
// nothing behind that others wait for.
func TestHookThatPanics(t *testing.T) {
	t.Parallel()
	t.Run("while it reads the limit", func(t *testing.T) {
		t.Parallel()
		rdb, h := redistest.Client(t), new(panickingHook)
		rdb.AddHook(h)
		l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
		h.panics.Store(true)
		if !caught(func() { _, _ = l.Peek(context.WithValue(t.Context(), mayPanic{}, true), key, 1) }) {
			t.Fatal("nothing panicked")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := l.Peek(ctx, key, 1); err != nil {
			t.Errorf("Peek = %v", err)
		}
	})
	t.Run("while it finds out whether Redis is back", func(t *testing.T) {
		t.Parallel()
		rdb, h := redistest.Client(t), new(panickingHook)
		rdb.AddHook(h)
		l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailOpen})
		ask := func(ctx context.Context) throttle.Decision {
			d, err := l.TryAcquire(ctx, key, 1)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		h.fails.Store(true)
		if d := ask(t.Context()); d.Fallback != throttle.FailOpen {
			t.Fatalf("decided by %v, want %v", d.Fallback, throttle.FailOpen)
		}
		h.fails.Store(false)
		h.panics.Store(true)
		for end := time.Now().Add(10 * time.Second); !caught(func() { ask(context.WithValue(t.Context(), mayPanic{}, true)) }); {
			if time.Now().After(end) {
				t.Fatal("nobody asked Redis again")
			}
			time.Sleep(10 * time.Millisecond)
		}
		for end := time.Now().Add(10 * time.Second); ask(t.Context()).Fallback != throttle.FailClosed; {
			if time.Now().After(end) {
				t.Fatal("Redis is not asked any more")
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}
