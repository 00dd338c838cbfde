package queue_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// One SMS per phone number per 60 seconds. A task without a phone number could
// never run, so it is refused before it is enqueued, and before Redis is asked.
func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()

	client, err := queue.NewClient(rdb, queue.Policy{
		Type:  "sms:send",
		Rule:  "sms-per-phone",
		Limit: throttle.Sliding(1, time.Minute),
		Key:   queue.MustJSONKey("$.to"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	task := queue.NewTask("sms:send", []byte(`{"phone":"13612345678"}`), asynq.MaxRetry(3))
	_, err = client.Enqueue(context.Background(), task)
	fmt.Println(err)
	fmt.Println(errors.Is(err, queue.ErrNoKey))
	// Output:
	// queue: task type "sms:send", rule "sms-per-phone": the key function failed: $.to is missing
	// true
}

// A bulk message costs one permit per recipient of its customer's limit.
func ExamplePolicy_Demand() {
	bulk := queue.Policy{
		Type:  "sms:bulk",
		Rule:  "sms-per-customer",
		Limit: throttle.Sliding(1000, time.Hour),
		Key:   queue.MustJSONKey("$.customer.id"),
		Cost:  queue.MustJSONCost("$.recipients"),
	}
	for _, payload := range []string{
		`{"customer":{"id":9007199254740993},"recipients":250}`,
		`{"customer":{"id":9007199254740993},"recipients":0}`,
	} {
		key, cost, err := bulk.Demand(asynq.NewTask("sms:bulk", []byte(payload)))
		fmt.Println(key, cost, err)
	}
	// Output:
	// 9007199254740993 250 <nil>
	//  0 queue: task type "sms:bulk", rule "sms-per-customer": the cost is below 1 permit
}
