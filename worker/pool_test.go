package worker

import (
	"context"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// A waker wakes as many tasks as workers are free: were each server counted with the workers
// of the whole pool, woken tasks would pile up in front of all others.
func TestPoolCountsEachWorkerOnce(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // not called
	t.Cleanup(func() { _ = rdb.Close() })
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	p, err := New(rdb, handler, Config{Servers: 3, Asynq: asynq.Config{Concurrency: 7}})
	if err != nil {
		t.Fatal(err)
	}
	if workers, servers := p.load.workers.Load(), p.load.servers.Load(); workers != 7 || servers != 3 {
		t.Errorf("%d workers of %d servers, want 7 of 3", workers, servers)
	}
}
