package worker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/worker"
)

// archivist is the client of an asynq that archives in a way that nobody knows.
type archivist struct {
	redis.UniversalClient
	straight redis.UniversalClient
}

func (c archivist) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	for _, k := range keys {
		if strings.HasSuffix(k, ":archived") {
			return c.straight.EvalSha(ctx, sha, keys, args...)
		}
	}
	return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

func (c archivist) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	for _, k := range keys {
		if strings.HasSuffix(k, ":archived") {
			return c.straight.Eval(ctx, text, keys, args...)
		}
	}
	return c.UniversalClient.Eval(ctx, text, keys, args...)
}

// A throttled task that ends in asynq's archive is not lost in silence: it is counted and
// logged, and from then on such tasks wait in a worker slot.
func TestThrottleThatEndsInTheArchiveIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := policies(phone("sms", time.Hour))
	cfg.Logger = r.log
	a, err := worker.NewAdapter(r.rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv := asynq.NewServerFromRedisClient(archivist{a.Client(), r.rdb}, a.Server(asynq.Config{Concurrency: 4, ShutdownTimeout: 200 * ms}))
	if err := srv.Start(a.Handler(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Stop(); srv.Shutdown(); a.Close() })
	r.take(a.Limiter("sms"), "+1")
	r.enqueue("sms", "first", to("+1"), asynq.MaxRetry(0))
	r.eventually("it is counted", func() bool { return a.Stats().Archived == 1 })
	if !r.is("first", asynq.TaskStateArchived) {
		t.Errorf("the task is %+v, want it archived by this asynq", r.info("first"))
	}
	errors := r.logs.Filter(func(e observer.LoggedEntry) bool {
		return e.Level == zapcore.ErrorLevel && strings.Contains(e.Message, "archived a task that was throttled")
	})
	if errors.Len() != 1 {
		t.Errorf("the log has %d errors about it, want 1", errors.Len())
	}
	r.enqueue("sms", "second", to("+1"), asynq.MaxRetry(0))
	r.eventually("the second one is active", func() bool { return r.is("second", asynq.TaskStateActive) })
	never(t, 300*ms, "the second one left its worker slot", func() bool { return !r.is("second", asynq.TaskStateActive) })
}
