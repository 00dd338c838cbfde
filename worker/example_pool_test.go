package worker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// perPhone is a policy of one SMS a minute to each phone.
func perPhone() []queue.Policy {
	return []queue.Policy{{Type: "sms:send", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
	}}}
}

// embedded is a Redis in this process, in place of redis.NewClient with your address.
func embedded() (*redis.Client, func()) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { _ = rdb.Close(); m.Close() }
}

// All faults of a configuration are told at once, before anything runs.
func ExampleNew() {
	rdb, end := embedded()
	defer end()
	_, err := worker.New(rdb, asynq.NewServeMux(), worker.Config{
		Policies: perPhone(),
		Asynq:    asynq.Config{Queues: map[string]int{"critical": 0}},
	})
	fmt.Println(err)
	pool, err := worker.New(rdb, asynq.NewServeMux(), worker.Config{
		Policies: perPhone(),
		Asynq:    asynq.Config{Concurrency: 10, Queues: map[string]int{"critical": 6, "default": 1}},
	})
	fmt.Println(pool.Limiter("phone").Limit(), err)
	// Output:
	// worker: invalid configuration: Asynq.Queues: queue "critical" has priority 0, want at least 1
	// sliding 1/1m <nil>
}

// Of two messages to one phone the second waits for its minute, and holds no worker meanwhile.
// A program that serves would give Run the context of main: SIGTERM ends Run too.
func ExamplePool_Run() {
	rdb, end := embedded()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	mux := asynq.NewServeMux()
	mux.HandleFunc("sms:send", func(_ context.Context, task *asynq.Task) error {
		fmt.Println("sent", string(task.Payload()))
		return nil
	})
	pool, err := worker.New(rdb, mux, worker.Config{
		Policies: perPhone(), Asynq: asynq.Config{Concurrency: 1, LogLevel: asynq.ErrorLevel},
		Observer: event.Observer{Deferred: func(_ context.Context, d event.Deferred) {
			fmt.Println("deferred by", d.Rule)
			stop()
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := asynq.NewClientFromRedisClient(rdb)
	for range 2 {
		if _, err := client.Enqueue(asynq.NewTask("sms:send", []byte(`{"to":"+15550100"}`))); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("ended:", pool.Run(ctx))
	// Output:
	// sent {"to":"+15550100"}
	// deferred by phone
	// ended: <nil>
}

// A provider refuses a message before it does anything: the permits of the attempt go back.
func ExampleNotCharged() {
	errInvalid := errors.New("400 not a phone number")
	handler := func(context.Context, *asynq.Task) error {
		return worker.NotCharged(errInvalid) // a failure as any other, which has spent nothing
	}
	err := handler(context.Background(), nil)
	fmt.Println(err, errors.Is(err, errInvalid))
	// Output: 400 not a phone number true
}
