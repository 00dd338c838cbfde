// Command quickstart sends three messages to one phone, one per minute, with
// the least code there is. It wants a Redis on localhost:6379, or at $REDIS.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: cmp.Or(os.Getenv("REDIS"), "localhost:6379")})
	defer rdb.Close()

	// One SMS per phone number in any 60 seconds; the number is in the payload.
	perPhone := queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
	}}

	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{perPhone}})
	if err != nil {
		return err
	}
	for i := range 3 {
		payload := fmt.Appendf(nil, `{"to":"+15550100","text":"message %d"}`, i+1)
		if _, err := client.Enqueue(ctx, queue.NewTask("sms", payload)); err != nil {
			return err
		}
	}
	send := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		log.Println("sending", id) // here you would call your gateway
		return nil
	})
	pool, err := worker.New(rdb, send, worker.Config{Policies: []queue.Policy{perPhone}})
	if err != nil {
		return err
	}
	return pool.Run(ctx) // until Ctrl-C or SIGTERM
}
