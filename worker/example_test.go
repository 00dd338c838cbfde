package worker_test

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// A provider answers that it takes no more for half a minute.
func ExampleRetryAfterFrom() {
	resp := &http.Response{Header: http.Header{"Retry-After": {"30"}}}
	if wait, ok := worker.RetryAfterFrom(resp, time.Hour); ok {
		err := worker.RetryAfter(errors.New("429 Too Many Requests"), wait)
		fmt.Println(err) // what the handler returns
	}
	// Output: worker: postponed for 30s: 429 Too Many Requests
}

// A configuration tells all its faults at once.
func ExampleConfig_Validate() {
	to := queue.MustJSONKey("$.to")
	err := worker.Config{
		Unlimited: worker.UnlimitedRefuse,
		Policies: []queue.Policy{
			{Type: "sms:*", Rules: []queue.Rule{{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: to}}},
			{Type: "mail", Rules: []queue.Rule{{Name: "mailbox", Limit: throttle.Sliding(0, time.Minute), Key: to}}},
		},
	}.Validate()
	fmt.Println(errors.Is(err, queue.ErrInvalidPolicy), errors.Is(err, throttle.ErrInvalidLimit))
	// Output: true true
}
