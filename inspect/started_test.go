package inspect

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// Since when a task runs is in asynq's list of servers. Who may not read that list is told the rest.
func TestExplainOfAnActiveTask(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Own())
	rdb := s.Client(t)
	goOn := make(chan struct{})
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel})
	began := time.Now().Add(-time.Second)
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { <-goOn; return nil })); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(goOn); server.Shutdown() })
	if _, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("sms", nil, asynq.TaskID("a"))); err != nil {
		t.Fatal(err)
	}
	explain := func(rdb *redis.Client) Explanation {
		t.Helper()
		i, err := New(rdb, Config{})
		if err != nil {
			t.Fatal(err)
		}
		e, err := i.Explain(t.Context(), "default", "a")
		if err != nil {
			t.Fatalf("Explain = %v", err)
		}
		return e
	}
	var e Explanation
	for end := time.Now().Add(30 * time.Second); e.Started.IsZero(); time.Sleep(50 * time.Millisecond) { // asynq says it every 5 s
		if e = explain(rdb); time.Now().After(end) {
			t.Fatalf("Explain = %+v, want since when it runs", e)
		}
	}
	if e.State != StateActive || e.Started.Before(began) || e.Started.After(time.Now()) {
		t.Errorf("Explain = %+v, want that it runs since %v", e, began)
	}
	if err := rdb.Do(t.Context(), "acl", "setuser", "viewer", "on", ">secret", "~*", "&*", "+@all", "-zremrangebyscore").Err(); err != nil {
		t.Fatal(err)
	}
	o := s.ClientOptions()
	o.Username, o.Password = "viewer", "secret"
	viewer := redis.NewClient(o)
	defer viewer.Close()
	if e = explain(viewer); e.State != StateActive || !e.Started.IsZero() {
		t.Errorf("Explain of a viewer = %+v, want that it runs, and not since when", e)
	}
}
