package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// cutOff is a network that answers nothing while it is on. Armed, it lets the next script through that ends a task, and loses the answer
// and all that comes after it.
type cutOff struct{ armed, on atomic.Bool }

var errCutOff = errors.New("connection reset by the test")

func (c *cutOff) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *cutOff) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return c.pass(func() error { return next(ctx, cmd) }, cmd)
	}
}

func (c *cutOff) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return c.pass(func() error { return next(ctx, cmds) }, cmds...)
	}
}

func (c *cutOff) pass(next func() error, cmds ...redis.Cmder) error {
	if c.on.Load() {
		time.Sleep(time.Second) // of the bubble: asynq asks again at once
	} else {
		ends := slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return strings.Contains(fmt.Sprint(cmd.Args()), ":processed") })
		err := next()
		if !ends || err != nil || !c.armed.CompareAndSwap(true, false) {
			return err
		}
		c.on.Store(true)
	}
	for _, cmd := range cmds {
		cmd.SetErr(errCutOff)
	}
	return errCutOff
}

// A pool has finished a task, Redis knows it, and the pool is cut off before it hears so. A task of the same id is enqueued anew,
// and runs in another process when the pool is back. The pool does not end it, also when that process has died: it runs once more.
func TestVirtualFinishedTaskIsNotTheNextOneOfItsID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, _ := mini(t, 3)
		a, b, user := clients[0], clients[1], clients[2]
		var cutA, cutB cutOff
		a.AddHook(&cutA)
		b.AddHook(&cutB)
		var seconds atomic.Int32
		cfg := worker.Config{Unlimited: worker.UnlimitedAllow}
		cfg.Asynq.Concurrency = 1
		started(t, a, asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
			if string(task.Payload()) == "second" {
				seconds.Add(1)
				return nil
			}
			cutA.armed.Store(true)
			return nil
		}), cfg)
		anew := func(payload string) {
			t.Helper()
			enqueue(t, user, queue.NewTask("any", []byte(payload), asynq.TaskID("x"), asynq.MaxRetry(3)))
		}
		state := func() string { return user.HGet(t.Context(), "asynq:{default}:t:x", "state").Val() }
		time.Sleep(time.Second)
		anew("first")
		time.Sleep(2 * time.Second)
		if !cutA.on.Load() || state() != "" {
			t.Fatalf("cut off: %v, and the first task is %q, want that it is gone", cutA.on.Load(), state())
		}
		anew("second")
		srv := asynq.NewServerFromRedisClient(b, asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel})
		if err := srv.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			<-ctx.Done()
			return ctx.Err()
		})); err != nil {
			t.Fatal(err)
		}
		time.Sleep(45 * time.Second)
		cutA.on.Store(false)
		time.Sleep(6 * time.Minute)
		if state() != "active" {
			t.Errorf("the second task is %q while it runs, want active", state())
		}
		cutB.on.Store(true) // as if its process had died
		time.Sleep(4 * time.Minute)
		if n := seconds.Load(); n != 1 || state() != "" {
			t.Errorf("the second task ran %d times after its process had died, and is %q, want once and gone", n, state())
		}
		cutB.on.Store(false)
		srv.Shutdown()
	})
}

// A pool has finished a task, and the answer is lost. It hears later that the task is not there. A task of the same id and payload
// is enqueued anew, and the process that runs it dies. The pool, which is asked next, runs it.
func TestVirtualTaskOfAFinishedIDRunsAfterItsProcessDied(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]time.Duration{
		"asynq repeats its end":     3 * time.Second,
		"asynq has given up by now": 45 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { finishedIDAnew(t, away) })
		})
	}
}

func finishedIDAnew(t *testing.T, away time.Duration) {
	t.Helper()
	clients, _ := mini(t, 3)
	a, b, user := clients[0], clients[1], clients[2]
	var cutA, cutB cutOff
	a.AddHook(&cutA)
	b.AddHook(&cutB)
	var runs atomic.Int32
	cfg := worker.Config{Unlimited: worker.UnlimitedAllow}
	cfg.Asynq.Concurrency = 1
	started(t, a, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if runs.Add(1) == 1 {
			cutA.armed.Store(true)
		}
		return nil
	}), cfg)
	anew := func() {
		t.Helper()
		enqueue(t, user, queue.NewTask("any", []byte("the same"), asynq.TaskID("x"), asynq.MaxRetry(3)))
	}
	state := func() string { return user.HGet(t.Context(), "asynq:{default}:t:x", "state").Val() }
	anew()
	time.Sleep(away)
	if !cutA.on.Load() || state() != "" {
		t.Fatalf("cut off: %v, and the first task is %q, want that it is gone", cutA.on.Load(), state())
	}
	cutA.on.Store(false)
	time.Sleep(15 * time.Second)
	cutA.on.Store(true) // so that the other process gets the task
	anew()
	srv := asynq.NewServerFromRedisClient(b, asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel})
	if err := srv.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		<-ctx.Done()
		return ctx.Err()
	})); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	if state() != "active" {
		t.Fatalf("the second task is %q, want active in the other process", state())
	}
	cutB.on.Store(true) // as if that process had died
	cutA.on.Store(false)
	time.Sleep(3*time.Minute + 30*time.Second) // less than a pool remembers what it has finished
	if n := runs.Load(); n != 2 || state() != "" {
		t.Errorf("the pool ran %d tasks of the id, and the second is %q, want both, and gone", n, state())
	}
	cutB.on.Store(false)
	srv.Shutdown()
}
