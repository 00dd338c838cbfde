package worker

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// hanging is a Redis that answers nothing: each call fails when its time is over.
type hanging struct {
	redis.UniversalClient
	back bool // it answers again
}

func (h *hanging) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	if h.back {
		return redis.NewCmdResult("OK", nil)
	}
	select {
	case <-time.After(3 * time.Second):
	case <-ctx.Done():
	}
	return redis.NewCmdResult(nil, context.DeadlineExceeded)
}

func (*hanging) HGet(context.Context, string, string) *redis.StringCmd {
	return redis.NewStringResult("", context.DeadlineExceeded)
}

// While Redis hangs, many tasks have ended whose ends asynq repeats at a shutdown, one after the other. All of
// them together take no longer than one.
func TestShutdownWhileRedisHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb := &hanging{}
		a, err := NewAdapter(rdb, Config{Asynq: asynq.Config{Concurrency: 1}})
		if err != nil {
			t.Fatal(err)
		}
		c := &client{UniversalClient: rdb, a: a}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		repeat := func(n int) time.Duration {
			t.Helper()
			began := time.Now()
			for i := range n {
				id, p := fmt.Sprint(i), "asynq:{default}:"
				keys := []string{p + "active", p + "lease", p + "t:" + id, p + "processed:2026-01-02", p + "processed"}
				if cmd := c.EvalSha(ended, "1241eaa1c73409baaf1fea0c08d203a4911bda15", keys, id, int64(1), int64(2)); (cmd.Err() == nil) != rdb.back {
					t.Errorf("call %d = %v, and Redis answers: %v", i, cmd.Err(), rdb.back)
				}
			}
			return time.Since(began)
		}
		if took := repeat(3); took != 9*time.Second {
			t.Errorf("three calls took %v, want that each waits for an answer", took)
		}
		close(a.stop)
		if took := repeat(100); took > freshContextTimeout+time.Second {
			t.Errorf("a hundred calls at a shutdown took %v, want %v at most", took, freshContextTimeout)
		}
		// What is used up is the time without an answer.
		a.freshContextUntil.Store(0)
		rdb.back = true
		for range 3 {
			repeat(1)
			time.Sleep(time.Minute)
		}
	})
}
