package e2e

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// backlogEvery is how often the queue is looked at.
const backlogEvery = 250 * time.Millisecond

// Backlog knows how many messages are left in the queue, whoever enqueued them. It is safe
// for concurrent use.
type Backlog struct {
	inspector *asynq.Inspector
	queue     string
	await     bool        // a queue that does not exist is one that is still to come
	complete  atomic.Bool // this process enqueues nothing more
	left      atomic.Int64
}

// NewBacklog looks at a queue. With await one that does not exist is still to come.
func NewBacklog(rdb redis.UniversalClient, queue string, await bool) *Backlog {
	return &Backlog{inspector: asynq.NewInspectorFromRedisClient(rdb), queue: queue, await: await}
}

// QueueState is one look at the queue.
type QueueState struct {
	Exists   bool
	Left     int // pending, active, scheduled or to be retried; deferred ones are among them
	Finished int // sends since the queue exists, failed ones included
}

// Look reads the state of the queue at one instant.
func (b *Backlog) Look() (QueueState, error) {
	// asynq has no error to be told by when a queue does not exist.
	queues, err := b.inspector.Queues()
	if err != nil || !slices.Contains(queues, b.queue) {
		return QueueState{}, err
	}
	q, err := b.inspector.GetQueueInfo(b.queue)
	if err != nil {
		return QueueState{}, err
	}
	s := QueueState{Exists: true, Left: q.Pending + q.Active + q.Scheduled + q.Retry, Finished: q.ProcessedTotal}
	b.left.Store(int64(s.Left))
	return s, nil
}

// Left is how many were left at the last look.
func (b *Backlog) Left() int { return int(b.left.Load()) }

// Complete says that this process enqueues nothing more.
func (b *Backlog) Complete() { b.complete.Store(true) }

// Wait looks at the queue until ctx ends, or until drain is true and nothing is
// left: it saw so twice in a row, and nothing was finished in between. One look
// is not enough: where workers keep up with a process that still enqueues, the queue is
// empty now and then.
func (b *Backlog) Wait(ctx context.Context, drain bool) {
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
		s, err := b.Look()
		if err != nil || !complete || s.Left > 0 || (b.await && !s.Exists) {
			empty = false // Redis may be away: that is no end
			continue
		}
		if drain && empty && s.Finished == finished {
			return
		}
		empty, finished = true, s.Finished
	}
}
