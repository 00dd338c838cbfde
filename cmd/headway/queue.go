package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

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

// backlogEvery is how often the queue is looked at.
const backlogEvery = 250 * time.Millisecond

// backlog knows how many messages are left in the queue, whoever enqueued them.
type backlog struct {
	inspector *asynq.Inspector
	await     bool        // a queue that does not exist is one that is still to come
	complete  atomic.Bool // this process enqueues nothing more
	left      atomic.Int64
}

func newBacklog(rdb redis.UniversalClient, await bool) *backlog {
	return &backlog{inspector: asynq.NewInspectorFromRedisClient(rdb), await: await}
}

// queueState is one look at the queue.
type queueState struct {
	exists   bool
	left     int // pending, active, scheduled or to be retried; deferred ones are among them
	finished int // sends since the queue exists, failed ones included
}

// look reads the state of the queue at one instant.
func (b *backlog) look() (queueState, error) {
	// asynq has no error to be told by when a queue does not exist.
	queues, err := b.inspector.Queues()
	if err != nil || !slices.Contains(queues, queueName) {
		return queueState{}, err
	}
	q, err := b.inspector.GetQueueInfo(queueName)
	if err != nil {
		return queueState{}, err
	}
	s := queueState{exists: true, left: q.Pending + q.Active + q.Scheduled + q.Retry, finished: q.ProcessedTotal}
	b.left.Store(int64(s.left))
	return s, nil
}

// wait looks at the queue until ctx ends, or until drain is true and nothing is
// left: it saw so twice in a row, and nothing was finished in between. One look
// is not enough: where workers keep up with a process that still enqueues, the queue is
// empty now and then.
func (b *backlog) wait(ctx context.Context, drain bool) {
	ticker := time.NewTicker(backlogEvery)
	defer ticker.Stop()
	empty, finished := false, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		complete := b.complete.Load() // before the look: what is enqueued in between counts
		s, err := b.look()
		if err != nil || !complete || s.left > 0 || (b.await && !s.exists) {
			empty = false // Redis may be away: that is no end
			continue
		}
		if drain && empty && s.finished == finished {
			return
		}
		empty, finished = true, s.finished
	}
}
