package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/redistest"
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

// scriptCall is a call of a script by which asynq ends the task of an id.
type scriptCall struct {
	id   string
	sha  string
	keys []string
	args []any
}

// of is the same call for a task of another id.
func (c scriptCall) of(id string) scriptCall {
	other := scriptCall{id: id, sha: c.sha, args: slices.Clone(c.args)}
	for _, k := range c.keys {
		other.keys = append(other.keys, strings.ReplaceAll(k, c.id, id))
	}
	other.args[0] = id
	return other
}

// ending catches the call by which asynq ends a task.
type ending struct {
	redis.UniversalClient
	caught chan scriptCall
}

func (e ending) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if op, call := asynqwire.Recognise(sha, keys, args); op == asynqwire.OpDone {
		e.caught <- scriptCall{call.TaskID, sha, keys, args}
	}
	return e.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// endOfATask lets asynq run a task, and is the call by which it ends it.
func endOfATask(t *testing.T) scriptCall {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	if _, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("any", nil), asynq.TaskID("the-one")); err != nil {
		t.Fatal(err)
	}
	e := ending{rdb, make(chan scriptCall, 1)}
	srv := asynq.NewServerFromRedisClient(e, asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel})
	if err := srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })); err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	return <-e.caught
}

// While Redis hangs, many tasks have ended whose ends asynq repeats at a shutdown, one after the other. All of
// them together take no longer than one.
func TestShutdownWhileRedisHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		end := endOfATask(t)
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
				call := end.of(fmt.Sprint(i))
				if cmd := c.EvalSha(ended, call.sha, call.keys, call.args...); (cmd.Err() == nil) != rdb.back {
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
		a.freshContextUntil.Store(nil)
		rdb.back = true
		for range 3 {
			repeat(1)
			time.Sleep(time.Minute)
		}
	})
}
