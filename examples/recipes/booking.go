package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Code sends a code that is of no use after five minutes: who can't have it by then
// is told when to ask again.
func Code(ctx context.Context, client *queue.Client, payload []byte) (retry time.Duration, err error) {
	task := queue.NewTask("sms:send", payload, asynq.Unique(5*time.Minute))
	_, err = client.Book(ctx, task, queue.MaxWait(5*time.Minute))
	if late, ok := errors.AsType[*throttle.TooLateError](err); ok {
		return late.Wait, nil // nothing was enqueued
	}
	if errors.Is(err, asynq.ErrDuplicateTask) {
		return 0, nil // the same code is on its way
	}
	return 0, err
}

// Remind enqueues a reminder for each of many, and returns those who get none today.
func Remind(ctx context.Context, client *queue.Client, payloads [][]byte, evening time.Time) (left [][]byte, err error) {
	tasks := make([]*queue.Task, len(payloads))
	for i, p := range payloads {
		tasks[i] = queue.NewTask("sms:send", p, asynq.Deadline(evening))
	}
	for i, r := range client.BookMany(ctx, tasks) {
		switch {
		case errors.Is(r.Err, throttle.ErrTooLate):
			left = append(left, payloads[i])
		case r.Err != nil:
			err = errors.Join(err, r.Err)
		}
	}
	return left, err
}
