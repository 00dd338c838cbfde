package batch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

// recallEvery is the longest time between two looks for tasks that pools deferred too late.
const recallEvery = time.Minute

// recalls says when to look for what pools deferred that had not heard that a batch
// goes on: most do so within a second, and one that Redis was away from, or that stood
// still, any time later. The looks come ever further apart.
type recalls struct {
	resumed time.Time
	from    time.Time     // that, or when it was heard of when Redis' clock went back behind it
	next    time.Duration // after from
}

func (s *recalls) due(resumed, now time.Time) bool {
	if !resumed.Equal(s.resumed) || now.Before(s.from) {
		*s = recalls{resumed: resumed, from: resumed, next: maintainEvery}
		if now.Before(resumed) {
			s.from = now
		}
	}
	since := now.Sub(s.from)
	return !resumed.IsZero() && since > s.next && since < resumeFor
}

func (s *recalls) looked(now time.Time) {
	since := now.Sub(s.from)
	s.next = since + min(since, recallEvery)
}

// client is a queue.Client, with what all that is done to a batch needs of it.
type client struct{ backend.Client }

// clientOf panics when c is nil.
func clientOf(c *queue.Client) client {
	if c == nil {
		panic("batch: nil client")
	}
	return client{backend.Of(c)}
}

// eachUnfinished goes through the unfinished elements of a batch in portions, in order.
func (c client) eachUnfinished(ctx context.Context, queue, id string, f func([]batchscripts.Element) error) error {
	return batchscripts.EachElement(0, batchscripts.ElementsMax, func(from int64, most int) ([]batchscripts.Element, error) {
		return batchscripts.UnfinishedElements(ctx, c.Redis(), c.Keys(queue), id, from, most)
	}, f)
}

// byBatch is why such a task has its new instant.
var byBatch = queuescripts.WaitReason{Cause: queuescripts.CauseBatch, Rule: queuescripts.SameRule}

// recall brings back, in order, what pools deferred because the batch was paused. It marks no task
// that runs: a hundred marks that are due would keep the pools from what is due behind them.
func (c client) recall(ctx context.Context, queue, id string) error {
	n := 0
	var began time.Time
	err := c.eachUnfinished(ctx, queue, id, func(unfinished []batchscripts.Element) error {
		ids := make([]string, len(unfinished))
		for i, e := range unfinished {
			ids[i] = batchscripts.TaskID(id, e.ID)
		}
		var found []queuescripts.GetTaskReply
		err := luascripts.WhileSlotMoves(ctx, c.Redis(), func() (err error) {
			found, err = queuescripts.GetTasks(ctx, c.Redis(), c.Keys(queue), ids)
			return err
		})
		if err != nil {
			return err
		}
		var tasks []queuescripts.Retiming
		for i, f := range found {
			if !f.PoolsWake || f.Wait.Reason.Cause != queuescripts.CausePaused {
				continue
			}
			if n == 0 {
				began = f.Now
			}
			in := time.Duration(n) * time.Microsecond
			tasks, n = append(tasks, queuescripts.Retiming{ID: ids[i], At: began.Add(in), In: in, Reason: byBatch}), n+1
		}
		if len(tasks) == 0 {
			return nil
		}
		_, err = queuescripts.RetimeEarlier(ctx, c.Redis(), c.Keys(queue), tasks)
		return err
	})
	if err != nil || n == 0 {
		return err
	}
	return queuescripts.Notify(ctx, c.Redis(), c.Keys(queue), 0)
}

// sweep counts what has ended without a pool having said so.
func (c client) sweep(ctx context.Context, queue, id string) error {
	return c.eachUnfinished(ctx, queue, id, func(unfinished []batchscripts.Element) error {
		elements := make([]string, len(unfinished))
		for i, e := range unfinished {
			elements[i] = e.ID
		}
		_, _, _, err := batchscripts.Sweep(ctx, c.Redis(), c.Keys(queue), id, elements)
		return err
	})
}

// drained is what became of a cancelled batch in one round.
type drained struct {
	batchscripts.DropReply
	counted bool // the reply is of a call
	changed int  // elements that are not unfinished any more
	gone    bool // the batch
}

// drain deletes what waits of a cancelled batch, and gives its places back, by what is stored beside the
// tasks, for this client need not be able to find their keys. It does so after the tasks are gone, so
// that no pool redeems what was given to another. Should this process
// die in between, a place is parked when its instant has come.
func (c client) drain(ctx context.Context, queue, typ, id string) (drained, error) {
	var d drained
	err := c.eachUnfinished(ctx, queue, id, func(unfinished []batchscripts.Element) error {
		elements, tasks := make([]string, len(unfinished)), make([]*asynq.Task, len(unfinished))
		for i, e := range unfinished {
			elements[i] = e.ID
		}
		atOnce(len(unfinished), func(i int) { tasks[i] = c.payloadOf(ctx, queue, typ, batchscripts.TaskID(id, elements[i]), false) })
		r, err := batchscripts.Drop(ctx, c.Redis(), c.Keys(queue), id, elements)
		if err != nil {
			return err
		}
		if !r.Cancelled { // this very call may have dropped the last of it, and its answer was lost
			atOnce(len(unfinished), func(i int) {
				if c.payloadOf(ctx, queue, typ, batchscripts.TaskID(id, elements[i]), true) != nil {
					tasks[i] = nil // it is there, in a batch that was started again
				}
			})
			c.Promote(ctx, c.leaveAll(ctx, queue, id, unfinished, tasks))
			return batchscripts.ErrNotFound
		}
		d.DropReply, d.counted, d.gone = r, true, r.Gone
		for i, code := range r.Codes {
			if code != batchscripts.DropRuns {
				d.changed++
			}
			// one that is not unfinished may have been dropped by this very call, whose answer was lost
			if code != batchscripts.Dropped && code != batchscripts.DropFinished {
				tasks[i] = nil
			}
		}
		promoted := make([][]throttle.Promotion, len(unfinished))
		atOnce(len(unfinished), func(i int) {
			job := luascripts.JobID(queue, batchscripts.TaskID(id, elements[i]))
			record, _ := queuescripts.ParseWaitRecord(r.Record[i])
			if booking, ok := c.Booking(record.Booking, job); ok && r.Codes[i] == batchscripts.Dropped && c.Bookable() == nil {
				promoted[i], _ = throttle.ForWorkers.CancelBooking(ctx, booking) // or the place is parked when its instant has come
				return
			}
			promoted[i] = c.leave(ctx, tasks[i], job) // it was pending, with nothing stored beside it
		})
		c.Promote(ctx, slices.Concat(promoted...))
		return nil
	})
	if err == batchscripts.ErrNotFound { //nolint:errorlint // it is our own, from above
		d.gone, err = true, nil
	}
	return d, err
}

// payloadOf is a task that waits, for its keys, or with active also one that a pool has;
// nil when that is not known.
func (c client) payloadOf(ctx context.Context, queue, typ, id string, active bool) *asynq.Task {
	if _, ok := c.Policy(typ); !ok || ctx.Err() != nil { // asynq's inspector takes no context
		return nil
	}
	info, err := asynq.NewInspectorFromRedisClient(c.Redis()).GetTaskInfo(queue, id)
	if err != nil || info.State == asynq.TaskStateActive && !active {
		return nil
	}
	return asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers)
}

// leaveAll gives back the places of tasks of some elements; nil is of none.
func (c client) leaveAll(ctx context.Context, queue, id string, of []batchscripts.Element, tasks []*asynq.Task) []throttle.Promotion {
	promoted := make([][]throttle.Promotion, len(tasks))
	atOnce(len(tasks), func(i int) {
		promoted[i] = c.leave(ctx, tasks[i], luascripts.JobID(queue, batchscripts.TaskID(id, of[i].ID)))
	})
	return slices.Concat(promoted...)
}

// atOnceMax bounds how many calls of one portion are under way.
const atOnceMax = 16

// atOnce calls f for each of n, some at a time: one after another a window behind a slow
// network takes minutes.
func atOnce(n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, atOnceMax) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// leave gives back the places of a task that is gone.
func (c client) leave(ctx context.Context, task *asynq.Task, job string) []throttle.Promotion {
	if task == nil || c.Bookable() != nil {
		return nil
	}
	p, ok := c.Policy(task.Type())
	if !ok {
		return nil
	}
	r, err := p.Request(task, job)
	if err != nil {
		return nil
	}
	promoted, _ := p.Limits.Cancel(ctx, r) // or the place is parked when its instant has come
	return promoted
}

// unbook gives up the places of what waits, and notes in left whose places they were.
func (c client) unbook(ctx context.Context, queue, typ, id string, unfinished []batchscripts.Element, left map[int64]bool) error {
	tasks := c.payloads(ctx, queue, typ, id, unfinished, nil)
	for i, task := range tasks {
		if task != nil {
			left[unfinished[i].Position] = true
		}
	}
	c.leaveAll(ctx, queue, id, unfinished, tasks) // others come when they were told, or earlier
	return ctx.Err()
}

// payloads are the tasks of some elements that wait, and of those at the positions in
// active also when a pool has them; nil for the others.
func (c client) payloads(ctx context.Context, queue, typ, id string, unfinished []batchscripts.Element, active map[int64]bool) []*asynq.Task {
	tasks := make([]*asynq.Task, len(unfinished))
	atOnce(len(unfinished), func(i int) {
		tasks[i] = c.payloadOf(ctx, queue, typ, batchscripts.TaskID(id, unfinished[i].ID), active[unfinished[i].Position])
	})
	return tasks
}

// leaveOut makes nil those that failed, and wait for asynq to try again: they would not
// come when they are told, and hold up those behind them.
func (c client) leaveOut(ctx context.Context, queue, id string, unfinished []batchscripts.Element, tasks []*asynq.Task) {
	atOnce(len(unfinished), func(i int) {
		if tasks[i] == nil {
			return
		}
		f, err := queuescripts.GetTask(ctx, c.Redis(), c.Keys(queue), batchscripts.TaskID(id, unfinished[i].ID))
		if err == nil && f.State == "retry" && !f.PoolsWake {
			tasks[i] = nil
		}
	})
}
