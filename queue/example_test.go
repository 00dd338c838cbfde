package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
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

	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{{
		Type: "sms:send",
		Rules: []queue.Rule{
			{Name: "sms-per-phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
		},
	}}})
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

// A bulk message costs one permit per recipient of its customer's limit, and is
// one call to the provider.
func ExamplePolicy_Demand() {
	bulk := queue.Policy{
		Type: "sms:bulk",
		Rules: []queue.Rule{
			{
				Name:  "sms-per-customer",
				Limit: throttle.Sliding(1000, time.Hour),
				Key:   queue.MustJSONKey("$.customer.id"),
				Cost:  queue.MustJSONCost("$.recipients"),
			},
			{Name: "provider", Limit: throttle.GCRA(100, time.Second, 20), Constant: "acme"},
		},
	}
	for _, payload := range []string{
		`{"customer":{"id":9007199254740993},"recipients":250}`,
		`{"customer":{"id":9007199254740993},"recipients":0}`,
	} {
		demand, err := bulk.Demand(asynq.NewTask("sms:bulk", []byte(payload)))
		fmt.Println(demand.Costs, err)
	}
	// Output:
	// [250 permits 1 permits] <nil>
	// [] queue: task type "sms:bulk", rule "sms-per-customer": the cost is below 1 permit
}

// A policy file says what each task type needs of rules that it defines once.
func ExampleReadPolicies() {
	const file = `
rules:
  phone-minute: {limit: 1/60s, key: $.to}
  phone-day:    {limit: 10/24h, key: $.to}
  provider:     {limit: gcra 100/1s burst 100, key: =acme}
policies:
  sms:send: {rules: [phone-minute, phone-day, provider]}
  sms:code: {rules: [phone-minute, provider], charge: success}
`
	policies, err := queue.ReadPolicies("policies.yaml", strings.NewReader(file))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range policies {
		demand, err := p.Demand(asynq.NewTask(p.Type, []byte(`{"to":"+15550100"}`)))
		fmt.Println(p.Type, "pays for", p.Charge, demand.Costs, err)
	}
	// Output:
	// sms:send pays for every attempt [1 permits 1 permits 1 permits] <nil>
	// sms:code pays for success [1 permits 1 permits] <nil>
}

// A file's faults come all at once, in the order of lines.
func ExampleFileError() {
	const file = `
rules:
  phone: {limit: 1/60x, key: $.to}
  spare: {limit: 10/24h, key: $.to}
policies:
  sms:send: {rules: [phone, provider]}
`
	_, err := queue.ReadPolicies("policies.yaml", strings.NewReader(file))
	fmt.Println(err)
	// Output:
	// queue: policy file "policies.yaml", line 3, column 18: throttle: invalid limit: "1/60x": window "60x", want a duration such as 60s, 1h30m or 7d; right is for example "1/60s"
	// queue: policy file "policies.yaml", line 4, column 3: rule "spare": no policy lists it
	// queue: policy file "policies.yaml", line 6, column 29: no rule "provider" in this file
}

// Three messages to one phone: one goes now, one in a minute, and the third would come
// later than its sender waits for.
func ExampleClient_Book() {
	server := miniredis.NewMiniRedis() // yours is a Redis that your pools are on
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	server.SetTime(time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC))
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{{
		Type:  "sms:send",
		Rules: []queue.Rule{{Name: "sms-per-phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")}},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		task := queue.NewTask("sms:send", []byte(`{"to":"13612345678"}`))
		b, err := client.Book(context.Background(), task, queue.MaxWait(90*time.Second))
		if err != nil {
			fmt.Println(err, errors.Is(err, throttle.ErrTooLate))
			continue
		}
		fmt.Printf("%v, %v, waits %v for %q\n", b.Info.State, b.At.UTC().Format(time.TimeOnly), b.Wait, b.Rule)
	}
	// Output:
	// pending, 08:00:00, waits 0s for ""
	// scheduled, 08:01:00, waits 1m0s for "sms-per-phone"
	// queue: book "sms:send": throttle: rule "sms-per-phone" admits in 2m0s at the earliest, only 1m30s are left true
}

// Each of many fails by itself, and all are answered in their order.
func ExampleClient_BookMany() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{{
		Type:  "sms:send",
		Rules: []queue.Rule{{Name: "sms-per-phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")}},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	tasks := []*queue.Task{
		queue.NewTask("sms:send", []byte(`{"to":"13612345678"}`), asynq.TaskID("order-1")),
		queue.NewTask("sms:send", []byte(`{"phone":"13612345678"}`), asynq.TaskID("order-2")),
		queue.NewTask("sms:send", []byte(`{"to":"13612345678"}`), asynq.TaskID("order-1")),
	}
	for i, r := range client.BookMany(context.Background(), tasks) {
		switch {
		case errors.Is(r.Err, asynq.ErrTaskIDConflict):
			fmt.Println(i, "is enqueued already")
		case r.Err != nil:
			fmt.Println(i, r.Err)
		default:
			fmt.Println(i, r.Info.ID, r.Info.State)
		}
	}
	// Output:
	// 0 order-1 pending
	// 1 queue: task type "sms:send", rule "sms-per-phone": the key function failed: $.to is missing
	// 2 is enqueued already
}
