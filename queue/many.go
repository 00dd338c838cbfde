package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

// Booked is a task that was enqueued, and the instant at which its limits let it run.
type Booked struct {
	// Info is asynq's. A task that may run now is pending; one that has to wait is
	// scheduled, with NextProcessAt at the instant.
	Info *asynq.TaskInfo
	// At is the instant, by Redis' clock; zero for a task type without a policy and
	// for what was not booked. It may move, in the order of the line: forward when
	// somebody ahead leaves, back when the limit falls or somebody runs late.
	At time.Time
	// Wait is from Redis' answer to At; 0 for a task that may run now.
	Wait time.Duration
	// Rule is the one that the task waits for; empty for a task that may run now.
	Rule string
}

// Result is what became of one task of many. Info is nil when Err is not.
type Result struct {
	Booked
	Err error
}

// Book takes a place in the line of the task's key and enqueues the task so that it is
// woken at the instant of that place: it is dequeued once, and its permits are spent
// then. A task that may run now is enqueued to run now; it has its place too, so that
// none that comes later passes it. While a gate of its policy is closed it has no place
// and starts after the gate has opened: all that wait for it start at the pace of the policy.
//
// When the instant lies behind the task's asynq.Deadline, or further away than
// [MaxWait], the error is a throttle.TooLateError with the instant, which unwraps to
// throttle.ErrTooLate; nothing is enqueued and no place is left. A task that waits for a slot of
// throttle.Concurrent is booked all the same: the instant is the end of a lease, and the slot may be free
// before. Other errors are those
// of [Client.Enqueue]. A task whose type has no policy has no limits to wait for: it is
// enqueued to run now, and Booked.At is zero. ProcessAt, ProcessIn and Group are an [*OptionError]: the limits
// say when the task starts.
//
// The place comes first, and then the task. When that can't be enqueued, because
// another has its id or its lock, or because Redis does not answer, the place is given
// back. Should this process die in between, the place is parked 100 ms after its
// instant: those behind it keep theirs, one permit may go unused. A booking
// is for the rule that binds now, see throttle.Policy: one that waits for its phone has
// no place at the provider, and may have to wait there again.
//
// An asynq server without a pool runs the task too, 5 to 10 s after its instant, and
// without regard for any limit. ctx is for the call.
func (c *Client) Book(ctx context.Context, task *Task, opts ...asynq.Option) (Booked, error) {
	r := c.BookMany(ctx, []*Task{task}, opts...)[0]
	return r.Booked, r.Err
}

// BookMany is [Client.Book] for many tasks with few calls to Redis: for a hundred
// tasks of one queue one to enqueue them, one for each 64 rules of these tasks to book
// them (four of these for a hundred tasks with two rules), and one more for those with
// asynq.TaskID or asynq.Unique. They are booked in their order, and answered in that order; each fails by itself. When Redis
// does not answer, or ctx ends, the tasks that were not yet sent fail with that error.
func (c *Client) BookMany(ctx context.Context, tasks []*Task, opts ...asynq.Option) []Result {
	return c.enqueueAll(ctx, booking, tasks, opts)
}

// EnqueueMany is [Client.Enqueue] for many tasks with few calls to Redis: one for a
// hundred tasks of a queue. They are enqueued in their order, and answered in that
// order; each fails by itself. When Redis does not answer, or ctx ends, the tasks that
// were not yet sent fail with that error. Tasks with asynq.Group go one by one, each in a
// call of its own after all that come before it.
func (c *Client) EnqueueMany(ctx context.Context, tasks []*Task, opts ...asynq.Option) []Result {
	return c.enqueueAll(ctx, enqueueing, tasks, opts)
}

// pendingTask is a task on its way into a queue.
type pendingTask struct {
	*Result
	backend.Task
	typ     string
	options bookingOptions
}

// enqueueMode is the way in which EnqueueMany or BookMany sends its tasks.
type enqueueMode struct {
	verb          string
	most          int  // how many tasks are held before they are sent
	asynqFallback bool // a task whose script call is not recognised is enqueued by asynq itself
	check         func([]asynq.Option) (bookingOptions, error)
	send          func(*Client, context.Context, []*pendingTask) error // the error is that of a Redis that does not answer
}

var (
	enqueueing = enqueueMode{"enqueue", 10 * queuescripts.EnqueueMax, true, checkEnqueueing, (*Client).put}
	// A process that dies before it enqueues leaves places behind: `most` of them.
	booking = enqueueMode{"book", queuescripts.EnqueueMax, false, checkBooking, (*Client).book}
)

func checkEnqueueing(opts []asynq.Option) (bookingOptions, error) {
	return bookingOptions{}, checkOptions(opts)
}

// enqueueAll enqueues tasks in portions.
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
		case errors.Is(err, asynqwire.ErrUnknownScript) && m.asynqFallback:
			if send(); away != nil { // what comes before it is enqueued before it
				results[i].Err = fmt.Errorf("queue: %s %q: not tried: %w", m.verb, task.typ, away)
				continue
			}
			away = c.putByAsynq(ctx, task, opts, &results[i])
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

// putByAsynq leaves one task to asynq. The error is that of a Redis that does not answer.
func (c *Client) putByAsynq(ctx context.Context, task *Task, opts []asynq.Option, r *Result) (away error) {
	r.Info, r.Err = c.Enqueue(ctx, task, opts...)
	if r.Err == nil || errors.Is(r.Err, asynq.ErrTaskIDConflict) || errors.Is(r.Err, asynq.ErrDuplicateTask) {
		return nil
	}
	return unanswered(c.rdb.Ping(ctx).Err()) // asynq passes an error of Redis on as text, which tells too little
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

// prepare checks a task by its policy, and lets asynq make its message.
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
	demand, limited, err := c.demand(ctx, asynqs)
	if err != nil {
		return nil, err
	}
	r, info, err := c.compose(ctx, asynqs, opts...)
	if err != nil {
		return nil, fmt.Errorf("queue: %s %q: %w", m.verb, e.typ, err)
	}
	e.Queue, e.Message, e.Info = r.Queue, r.Task, info
	e.Message.Token = uint64(throttle.NewToken())
	if limited {
		e.Policy, e.Request = c.policies[task.typ].limits, demand.Request(luascripts.JobID(e.Queue, e.Message.ID))
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
			n := min(len(rest), queuescripts.EnqueueMax)
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
	tasks := make([]queuescripts.EnqueueTask, len(entries))
	for i, e := range entries {
		tasks[i] = e.Message
	}
	codes, err := queuescripts.Enqueue(ctx, c.rdb, c.keys(queue), uint64(throttle.NewToken()), tasks)
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

// registerQueue adds a queue to asynq's list of queues, once.
func (c *Client) registerQueue(ctx context.Context, queue string) error {
	if _, named := c.named.Load(queue); named {
		return nil
	}
	if err := queuescripts.NameQueue(ctx, c.rdb, queue); err != nil {
		return err
	}
	c.named.Store(queue, true)
	return nil
}

// unanswered is the error of a Redis that does not answer, nil for one that it
// answered: then it makes sense to ask for the next tasks.
func unanswered(err error) error {
	if rediserr.Of(err).Answered() {
		return nil
	}
	return err
}

func (c *Client) keys(queue string) queuescripts.QueueKeys {
	return queuescripts.NewQueueKeys(c.cfg.Prefix, queue)
}

// cancelUnusedFor bounds the calls that give back the places of a portion, a call each: a
// hundred take more than a second when Redis or this process is very busy.
const cancelUnusedFor = 5 * time.Second

// errPerClient is about a throttle.Config in which nothing can be booked.
var errPerClient = fmt.Errorf("%w: with PerClient each pool has lines of its own, in which nobody else can book", throttle.ErrInvalidConfig)

// book takes places, enqueues the tasks to be woken at their instants, and gives the
// places back of those that can't be enqueued.
func (c *Client) book(ctx context.Context, entries []*pendingTask) (away error) {
	if away = c.findOthers(ctx, entries); away == nil {
		away = c.bookAll(ctx, entries)
	}
	if away != nil { // some may have their places: they are given back
		for _, e := range entries {
			if e.Err == nil {
				e.Err = fmt.Errorf("not tried: %w", away)
			}
		}
	}
	if err := c.put(ctx, entries); away == nil {
		away = err
	}
	c.cancelUnused(ctx, entries)
	return away
}

// findOthers fails the tasks that exist already: a job has one place, and to give it
// back would take it from the other.
func (c *Client) findOthers(ctx context.Context, entries []*pendingTask) (away error) {
	var named []*pendingTask
	var candidates []queuescripts.Candidate
	for _, e := range entries {
		if e.options.named {
			named = append(named, e)
			candidates = append(candidates, queuescripts.Candidate{Queue: c.keys(e.Queue), ID: e.Message.ID, Unique: e.Message.Unique})
		}
	}
	codes, err := queuescripts.Refusals(ctx, c.rdb, candidates)
	if err != nil {
		failAll(named, err)
		return unanswered(err)
	}
	for i, e := range named {
		e.Err = backend.Refusal(codes[i])
	}
	return nil
}

// bookAll books for all that have not failed and have a policy.
func (c *Client) bookAll(ctx context.Context, entries []*pendingTask) (away error) {
	var requests []throttle.BookRequest
	var who []*pendingTask
	for _, e := range entries {
		switch {
		case e.Err != nil || e.Policy == nil:
			continue
		case c.cfg.PerClient:
			e.Err = errPerClient
			continue
		}
		e.Request.MaxWait = e.Longest()
		requests = append(requests, throttle.BookRequest{Policy: e.Policy, Request: e.Request})
		who = append(who, e)
	}
	var promoted []throttle.Promotion
	for i, b := range throttle.ForWorkers.BookMany(ctx, c.rdb, requests) {
		promoted = append(promoted, b.Promoted...)
		e := who[i]
		if e.Err = b.Err; b.Err != nil {
			// whether it has a place is not known
			e.Own = errors.Is(b.Err, throttle.ErrUnavailable)
			if e.Own && !throttle.ForWorkers.Answered(b.Err) {
				away = b.Err
			}
			continue
		}
		e.Own = !e.options.id || b.Promised.IsZero()
		e.Task.Booked(b.Decision)
	}
	promotion.Move(ctx, c.rdb, c.cfg.Prefix, c.set, promoted...)
	return away
}

// cancelUnused gives back the places of tasks that were not enqueued. What can't be given
// back now is parked when its instant has come: others pass it.
func (c *Client) cancelUnused(ctx context.Context, entries []*pendingTask) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelUnusedFor)
	defer cancel()
	var promoted []throttle.Promotion
	for _, e := range entries {
		if ctx.Err() != nil {
			break
		}
		if e.Err == nil || !e.Own || c.shared(ctx, e) {
			continue
		}
		next, err := e.Policy.Cancel(ctx, e.Request)
		promoted = append(promoted, next...)
		if err != nil && !luascripts.Sharded(c.rdb) && !throttle.ForWorkers.Answered(err) {
			break // the one server does not answer; of a Cluster that of another key may
		}
	}
	promotion.Move(ctx, c.rdb, c.cfg.Prefix, c.set, promoted...)
}

// shared says that another call enqueued a task of this id between our look for it
// and our own try: it stands in the same place, if it was booked. Where it has the same lock, too, the
// lock is what we were refused for.
func (c *Client) shared(ctx context.Context, e *pendingTask) bool {
	if !e.options.id || !errors.Is(e.Err, asynq.ErrTaskIDConflict) && !errors.Is(e.Err, asynq.ErrDuplicateTask) {
		return false
	}
	written, err := queuescripts.WrittenByHeadway(ctx, c.rdb, c.keys(e.Queue), e.Message.ID)
	return written || err != nil // at worst the place is left: it is parked when its instant has come
}
