package recipes

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// Ask pays for the tokens that a question took, and not for those it asked for.
func Ask(model func(context.Context, []byte) (used int, err error)) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		used, err := model(ctx, task.Payload())
		if err != nil {
			return err // what was asked for stays charged
		}
		if err := worker.Adjust(ctx, used); err != nil { // of the rules with a cost: tokens
			log.Println(err) // the answer counts all the same
		}
		return nil
	}
}

// Send does not pay when nobody was reached.
func Send(post func(context.Context, []byte) error) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		err := post(ctx, task.Payload())
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return worker.NotCharged(err) // nobody was reached
		}
		return err // it may have been sent
	}
}

// Post heeds what its provider says of the next time.
func Post(post func(context.Context, []byte) (*http.Response, error)) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		resp, err := post(ctx, task.Payload())
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		wait, ok := worker.RetryAfterFrom(resp, time.Hour)
		switch err := fmt.Errorf("provider: %s", resp.Status); {
		case ok && resp.StatusCode == http.StatusTooManyRequests: // this phone, too early
			return worker.RetryAfter(err, wait)
		case ok && resp.StatusCode == http.StatusServiceUnavailable: // all of it is down
			return &worker.RetryAfterError{Err: err, After: wait, Rule: "provider"}
		case resp.StatusCode >= 300:
			return err
		}
		return nil
	}
}

// Export writes to something that must not see two writers at a time.
func Export(write func(ctx context.Context, fence int64) error) asynq.HandlerFunc {
	return func(ctx context.Context, _ *asynq.Task) error {
		grant, _ := worker.GrantFrom(ctx)
		err := write(ctx, grant.Fence) // whoever is written to refuses a lower fence than it saw
		if cause := context.Cause(ctx); errors.Is(cause, throttle.ErrLeaseLost) {
			return cause // another may be writing
		}
		return err
	}
}
