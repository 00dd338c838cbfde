package throttle_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// heldScript holds back the first script, which tells that it is there, until it is let go.
type heldScript struct {
	met           atomic.Bool
	entered, goOn chan struct{}
}

func (*heldScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*heldScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *heldScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) && h.met.CompareAndSwap(false, true) {
			close(h.entered)
			<-h.goOn
		}
		return next(ctx, cmd)
	}
}

func reserved(t *testing.T, rdb redis.UniversalClient) *throttle.Reservation {
	t.Helper()
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	granted(t, l)
	v, err := l.Reserve(t.Context(), key, 1)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func granted(t *testing.T, l *throttle.Limiter) throttle.Decision {
	t.Helper()
	d, err := l.TryAcquire(t.Context(), key, 1)
	if err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	return d
}

// While one caller asks Redis, which does not answer, another waits for it no longer than its own context lasts.
func TestSecondCallerHeedsItsOwnContext(t *testing.T) {
	t.Parallel()
	gaveUp := errors.New("gave up")
	for name, prepare := range map[string]func(t *testing.T, rdb redis.UniversalClient) (first, second func(context.Context) error){
		"Take": func(t *testing.T, rdb redis.UniversalClient) (first, second func(context.Context) error) {
			v := reserved(t, rdb)
			take := func(ctx context.Context) error {
				_, err := v.Take(ctx)
				return err
			}
			return take, take
		},
		"Wait beside Take": func(t *testing.T, rdb redis.UniversalClient) (first, second func(context.Context) error) {
			v := reserved(t, rdb)
			return func(ctx context.Context) error {
				_, err := v.Take(ctx)
				return err
			}, v.Wait
		},
		"Cancel beside Take": func(t *testing.T, rdb redis.UniversalClient) (first, second func(context.Context) error) {
			v := reserved(t, rdb)
			return func(ctx context.Context) error {
				_, _ = v.Take(ctx) // it may be granted, or find that it was given up
				return nil
			}, v.Cancel
		},
		"Adjust": func(t *testing.T, rdb redis.UniversalClient) (first, second func(context.Context) error) {
			l := newLimiter(t, rdb, "tokens", throttle.Sliding(3, time.Hour), throttle.Config{})
			charge := l.Policy().Charge(granted(t, l))
			adjust := func(ctx context.Context) error {
				_, err := charge.Adjust(ctx, map[string]int{l.Rule(): 2})
				return err
			}
			return adjust, func(ctx context.Context) error {
				if got := charge.Charged(l.Rule()); got != 2 { // it has no context, so it must not wait
					t.Errorf("Charged = %d while it is adjusted to 2", got)
				}
				return adjust(ctx)
			}
		},
		"release": func(t *testing.T, rdb redis.UniversalClient) (first, second func(context.Context) error) {
			l := newLimiter(t, rdb, "slots", throttle.Concurrent(1, time.Hour), throttle.Config{})
			_, end := l.Policy().Hold(t.Context(), granted(t, l))
			release := func(ctx context.Context) error {
				_, err := end(ctx)
				return err
			}
			return release, release
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			first, second := prepare(t, rdb)
			held := &heldScript{entered: make(chan struct{}), goOn: make(chan struct{})}
			rdb.AddHook(held)
			one, two := make(chan error, 1), make(chan error, 1)
			go func() { one <- first(t.Context()) }()
			<-held.entered
			ctx, cancel := context.WithCancelCause(t.Context())
			waits := &waitedFor{Context: ctx, begun: make(chan struct{})}
			go func() { two <- second(waits) }()
			select {
			case <-waits.begun:
			case <-time.After(10 * time.Second):
				t.Error("the second caller does not wait by its context")
			}
			cancel(gaveUp)
			select {
			case err := <-two:
				if !errors.Is(err, gaveUp) {
					t.Errorf("the second caller got %v, want %v", err, gaveUp)
				}
			case <-time.After(10 * time.Second):
				t.Error("the second caller waits for the first after its context has ended")
			}
			close(held.goOn)
			if err := <-one; err != nil {
				t.Errorf("the first caller got %v", err)
			}
		})
	}
}

// waitedFor is a context that says when somebody begins to wait for its end.
type waitedFor struct {
	context.Context
	once  sync.Once
	begun chan struct{}
}

func (c *waitedFor) Done() <-chan struct{} {
	c.once.Do(func() { close(c.begun) })
	return c.Context.Done()
}
