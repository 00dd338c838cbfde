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
	if workers, servers := p.adapter.load.workers.Load(), p.adapter.load.servers.Load(); workers != 7 || servers != 3 {
		t.Errorf("%d workers of %d servers, want 7 of 3", workers, servers)
	}
}

// What is nil is named at once, also within an interface.
func TestNewNamesWhatIsNil(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // not called
	t.Cleanup(func() { _ = rdb.Close() })
	for name, tc := range map[string]struct {
		rdb     redis.UniversalClient
		handler asynq.Handler
		want    string
	}{
		"no client":           {nil, asynq.NewServeMux(), "worker: nil Redis client"},
		"a nil Client":        {(*redis.Client)(nil), asynq.NewServeMux(), "worker: nil Redis client"},
		"a nil ClusterClient": {(*redis.ClusterClient)(nil), asynq.NewServeMux(), "worker: nil Redis client"},
		"no handler":          {rdb, nil, "worker: nil handler"},
		"a nil ServeMux":      {rdb, (*asynq.ServeMux)(nil), "worker: nil handler"},
		"a nil function":      {rdb, asynq.HandlerFunc(nil), "worker: nil handler"},
	} {
		func() {
			defer func() {
				if got := recover(); got != tc.want {
					t.Errorf("New with %s panics with %v, want %q", name, got, tc.want)
				}
			}()
			_, _ = New(tc.rdb, tc.handler, Config{})
		}()
	}
}
