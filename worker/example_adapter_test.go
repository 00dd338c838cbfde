package worker_test

import (
	"context"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// A whole program that runs a server of asynq's own under a limit.
func ExampleAdapter() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()

	mux := asynq.NewServeMux()
	mux.HandleFunc("sms:send", func(context.Context, *asynq.Task) error {
		return nil // here you would call your gateway
	})
	a, err := worker.NewAdapter(rdb, worker.Config{Policies: []queue.Policy{{Type: "sms:send", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
	}}}})
	if err != nil {
		log.Fatal(err)
	}
	srv := asynq.NewServerFromRedisClient(a.Client(), a.Server(asynq.Config{Concurrency: 10, Queues: map[string]int{"critical": 6, "default": 1}}))
	if err := a.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if err := srv.Start(a.Handler(mux)); err != nil {
		log.Fatal(err)
	}
	<-ctx.Done()
	a.Stop() // no more tasks are fetched; those that wait in a worker go back
	srv.Shutdown()
	a.Close()
}
