package prove

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue"
)

const (
	queueName     = "headway-prove"
	onceRetention = 24 * time.Hour
)

// enqueueing is how far an enqueue came.
type enqueueing struct {
	fresh int // enqueued by us
	there int // with -once: enqueued before, waiting, sent or failed since
}

// enqueue enqueues messages, which have ids, in their order and one after the
// other: a phone's messages then go out in the order of the file, but for those that
// different workers fetch in the same moment. With once a message that is there
// already is left as it is. It stops at the first error, with what came before
// it enqueued.
func enqueue(ctx context.Context, client *queue.Client, msgs []e2e.Message, once bool) (enqueueing, error) {
	var done enqueueing
	for i, m := range msgs {
		payload, err := m.Encode()
		if err != nil {
			return done, fmt.Errorf("enqueued %d of %d: %w", i, len(msgs), err)
		}
		opts := []asynq.Option{asynq.Queue(queueName), asynq.TaskID(m.ID)}
		if once {
			opts = append(opts, asynq.Retention(onceRetention))
		}
		_, err = client.Enqueue(ctx, queue.NewTask(e2e.TaskType, payload, opts...))
		switch {
		case err == nil:
			done.fresh++
		case !errors.Is(err, asynq.ErrTaskIDConflict):
			return done, fmt.Errorf("enqueued %d of %d: %w", i, len(msgs), err)
		case once:
			done.there++
		default:
			done.fresh++ // a random id is there only if Redis took it and the answer was lost
		}
	}
	return done, nil
}
