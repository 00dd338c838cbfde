package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

// pendingTask is a task on its way into a queue.
type pendingTask struct {
	*Result
	backend.Task
	typ     string
	options bookingOptions
}

// enqueueMode is how many tasks are enqueued.
type enqueueMode struct {
	verb  string
	most  int  // so many tasks are held before they are sent
	alone bool // what can't be caught is enqueued by asynq itself
	check func([]asynq.Option) (bookingOptions, error)
	send  func(*Client, context.Context, []*pendingTask) error // the error is that of a Redis that does not answer
}

var (
	enqueueing = enqueueMode{"enqueue", 10 * luascripts.EnqueueMax, true, checkEnqueueing, (*Client).put}
	// so many places does a process leave behind that dies before it enqueues
	booking = enqueueMode{"book", luascripts.EnqueueMax, false, checkBooking, (*Client).book}
)

func checkEnqueueing(opts []asynq.Option) (bookingOptions, error) {
	return bookingOptions{}, checkOptions(opts)
}

// many enqueues tasks in portions.
func (c *Client) enqueueAll(ctx context.Context, m enqueueMode, tasks []*Task, opts []asynq.Option) []Result {
	results := make([]Result, len(tasks))
	var portion []*pendingTask
	var away error
	send := func() {
		if away == nil {
			away = context.Cause(ctx)
		}
		switch {
		case away == nil && len(portion) > 0:
			away = m.send(c, ctx, portion)
		case away != nil:
			failAll(portion, fmt.Errorf("not tried: %w", away))
		}
		for _, e := range portion {
			if e.Err != nil {
				e.Result.Booked, e.Err = Booked{}, fmt.Errorf("queue: %s %q: %w", m.verb, e.typ, e.Err)
			}
		}
		portion = portion[:0]
	}
	for i, task := range tasks {
		e, err := c.prepare(ctx, m, task, opts)
		switch {
		case errors.Is(err, asynqwire.ErrUnknownScript) && m.alone && away != nil:
			results[i].Err = fmt.Errorf("queue: %s %q: not tried: %w", m.verb, task.typ, away)
			continue
		case errors.Is(err, asynqwire.ErrUnknownScript) && m.alone:
			results[i].Info, results[i].Err = c.Enqueue(ctx, task, opts...)
			continue
		case err != nil:
			results[i].Err = err
			continue
		}
		if len(portion) == m.most || clashes(portion, e) {
			send()
		}
		e.Result = &results[i]
		portion = append(portion, e)
	}
	send()
	return results
}

// failAll notes why tasks are not enqueued.
func failAll(entries []*pendingTask, err error) {
	for _, e := range entries {
		e.Err = err
	}
}

// clashes says that a task to be booked may be one of the portion over again: it has to
// be looked for when that is enqueued, or it would share the other's place.
func clashes(portion []*pendingTask, e *pendingTask) bool {
	if !e.options.named {
		return false
	}
	for _, other := range portion {
		if other.Queue == e.Queue && (other.Message.ID == e.Message.ID || e.Message.Unique != "" && other.Message.Unique == e.Message.Unique) {
			return true
		}
	}
	return false
}

// prepare holds a task against its policy, and lets asynq make its message.
func (c *Client) prepare(ctx context.Context, m enqueueMode, task *Task, opts []asynq.Option) (*pendingTask, error) {
	if task == nil {
		return nil, fmt.Errorf("queue: %s: no task", m.verb)
	}
	options, err := m.check(task.with(opts))
	if err != nil {
		return nil, err
	}
	e := &pendingTask{Task: backend.Task{MaxWait: options.maxWait}, typ: task.typ, options: options}
	asynqs := task.asynqTask()
	p, limited := c.policies[task.typ]
	var demand Demand
	if limited {
		if demand, err = p.demand(ctx, asynqs); err != nil {
			return nil, err
		}
	}
	r, info, err := c.compose(ctx, asynqs, opts...)
	if err != nil {
		return nil, fmt.Errorf("queue: %s %q: %w", m.verb, e.typ, err)
	}
	e.Queue, e.Message, e.Info = r.Queue, r.Task, info
	e.Message.Token = uint64(throttle.NewToken())
	if limited {
		e.Policy, e.Request = p.decide, demand.Request(luascripts.JobID(e.Queue, e.Message.ID))
	}
	return e, nil
}

// compose lets asynq make the message of a task, and enqueues nothing.
func (c *Client) compose(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (asynqwire.Recording, *asynq.TaskInfo, error) {
	var r asynqwire.Recording
	info, err := c.composer.EnqueueContext(asynqwire.Record(ctx, &r), task, opts...)
	if r.Unknown {
		err = asynqwire.ErrUnknownScript // asynq wraps an error of Redis as text
	}
	return r, info, err
}

// put enqueues all that have not failed yet, in their order.
func (c *Client) put(ctx context.Context, entries []*pendingTask) (away error) {
	var queues []string
	byQueue := make(map[string][]*pendingTask)
	for _, e := range entries {
		if e.Err != nil {
			continue
		}
		if byQueue[e.Queue] == nil {
			queues = append(queues, e.Queue)
		}
		byQueue[e.Queue] = append(byQueue[e.Queue], e)
	}
	for _, queue := range queues {
		for rest := byQueue[queue]; len(rest) > 0; {
			n := min(len(rest), luascripts.EnqueueMax)
			if away == nil {
				away = c.putInto(ctx, queue, rest[:n])
			} else {
				failAll(rest[:n], fmt.Errorf("not tried: %w", away))
			}
			rest = rest[n:]
		}
	}
	return away
}

// putInto is one script call.
func (c *Client) putInto(ctx context.Context, queue string, entries []*pendingTask) (away error) {
	if err := c.registerQueue(ctx, queue); err != nil {
		failAll(entries, err)
		return unanswered(err)
	}
	tasks := make([]luascripts.EnqueueTask, len(entries))
	for i, e := range entries {
		tasks[i] = e.Message
	}
	codes, err := luascripts.Enqueue(ctx, c.rdb, c.keys(queue), uint64(throttle.NewToken()), tasks)
	if err != nil {
		failAll(entries, err)
		return unanswered(err)
	}
	for i, e := range entries {
		if e.Err = backend.Refusal(codes[i]); e.Err == nil {
			e.Result.Booked = Booked{Info: e.Info, At: e.At, Wait: e.Wait, Rule: e.Rule}
		}
	}
	return nil
}

// registerQueue has a queue in asynq's list of them.
func (c *Client) registerQueue(ctx context.Context, queue string) error {
	if _, named := c.named.Load(queue); named {
		return nil
	}
	if err := luascripts.NameQueue(ctx, c.rdb, queue); err != nil {
		return err
	}
	c.named.Store(queue, true)
	return nil
}

// unanswered is the error of a Redis that does not answer, nil for one that it
// answered: then it makes sense to ask for the next tasks.
func unanswered(err error) error {
	if _, answered := errors.AsType[redis.Error](err); answered {
		return nil
	}
	return err
}

func (c *Client) keys(queue string) luascripts.QueueKeys {
	return luascripts.NewQueueKeys(c.cfg.Prefix, queue)
}
