package inspect

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// A queue is there when asynq knows it, when it is paused, and when a pool or a server of asynq serves it. What a
// feeder fills need not be served.
func TestServedQueues(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Own())
	rdb := s.Client(t)
	if err := rdb.SAdd(t.Context(), "asynq:queues", "known").Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), "asynq:{paused}:paused", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	runs(t, rdb, "1", `{"kind":"pool","queues":{"pooled":1}}`)
	runs(t, rdb, "2", `{"kind":"feeder","queues":{"fed":1}}`)
	plain := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 1, Queues: map[string]int{"plain": 1}, LogLevel: asynq.FatalLevel})
	if err := plain.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plain.Shutdown)
	i, err := New(rdb, Config{})
	if err != nil {
		t.Fatal(err)
	}
	var served Served
	for end := time.Now().Add(30 * time.Second); !served.Queues["plain"]; time.Sleep(10 * time.Millisecond) {
		if served, err = i.ServedQueues(t.Context()); err != nil || time.Now().After(end) {
			t.Fatalf("ServedQueues = %+v, %v, want asynq's server in it", served, err)
		}
	}
	if !served.Queues["pooled"] || len(served.Queues) != 2 || served.Unlisted != 0 || served.AsynqErr != nil {
		t.Errorf("ServedQueues = %+v, want the queue of the pool and that of asynq's server", served)
	}
	for queue, want := range map[string]bool{"known": true, "paused": true, "pooled": true, "plain": true, "fed": false, "nowhere": false} {
		if got, err := i.HasQueue(t.Context(), queue); got != want || err != nil {
			t.Errorf("HasQueue(%s) = %v, %v, want %v", queue, got, err, want)
		}
	}

	if err := rdb.Do(t.Context(), "acl", "setuser", "viewer", "on", ">secret", "~*", "&*", "+@all", "-zremrangebyscore").Err(); err != nil {
		t.Fatal(err)
	}
	o := s.ClientOptions()
	o.Username, o.Password = "viewer", "secret"
	viewer := redis.NewClient(o)
	defer viewer.Close()
	if i, err = New(viewer, Config{}); err != nil {
		t.Fatal(err)
	}
	if served, err = i.ServedQueues(t.Context()); err != nil || !served.Queues["pooled"] || !errors.Is(served.AsynqErr, throttle.ErrUnavailable) {
		t.Errorf("ServedQueues of a viewer = %+v, %v, want that of the pool, and that asynq's list can't be read", served, err)
	}
	if there, err := i.HasQueue(t.Context(), "nowhere"); there || !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("HasQueue of a viewer = %v, %v, want that it is not known", there, err)
	}
	for n := range 600 {
		runs(t, rdb, fmt.Sprint("many", n), `{"kind":"pool"}`)
	}
	if there, err := i.HasQueue(t.Context(), "nowhere"); !there || err != nil {
		t.Errorf("HasQueue while not all processes are listed = %v, %v, want that it may be there", there, err)
	}
}
