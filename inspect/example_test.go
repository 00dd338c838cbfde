package inspect_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Three messages to one phone are booked; somebody asks where the last one is.
func ExampleInspector() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	server.SetTime(time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC))
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	policy := queue.Policy{
		Type:  "sms:send",
		Rules: []queue.Rule{{Name: "sms-per-phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")}},
	}
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{policy}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for _, id := range []string{"a", "b", "c"} {
		task := queue.NewTask("sms:send", []byte(`{"to":"13612345678"}`), asynq.TaskID(id))
		if _, err := client.Book(ctx, task); err != nil {
			fmt.Println(err)
			return
		}
	}

	inspector, err := inspect.New(rdb, inspect.Config{Policies: []queue.Policy{policy}})
	if err != nil {
		fmt.Println(err)
		return
	}
	w, err := inspector.Explain(ctx, "default", "c")
	fmt.Println(w.State, w.Rule, w.At.Sub(w.Now), w.Jobs, err)
	for w, err := range inspector.Line(ctx, "sms-per-phone", "13612345678") {
		fmt.Println(w.ID, w.At.UTC().Format(time.TimeOnly), err)
	}
	// Output:
	// limit sms-per-phone 2m0s 2 <nil>
	// a 08:00:00 <nil>
	// b 08:01:00 <nil>
	// c 08:02:00 <nil>
}
