package queue

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
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
// none that comes later passes it. While a gate of its policy is shut it has no place
// and starts when the gate opens.
//
// When the instant lies behind the task's asynq.Deadline, or further away than
// [MaxWait], the error is a throttle.TooLateError with the instant, which unwraps to
// throttle.ErrTooLate; nothing is enqueued and no place is left. Other errors are those
// of [Client.Enqueue]. ProcessAt, ProcessIn and Group are an [*OptionError]: the limits
// say when the task starts.
//
// The place comes first, and then the task. When that can't be enqueued, because
// another has its id or its lock, or because Redis does not answer, the place is given
// back. Should this process die in between, the place falls out of the line 100 ms
// after its instant: those behind it keep theirs, one permit may go unused. A booking
// is for the rule that binds now, see throttle.Policy: one that waits for its phone has
// no place at the provider, and may have to wait there again.
//
// An asynq server without a pool runs the task too, up to 5 s after its instant, and
// without regard for any limit. ctx is for the call.
func (c *Client) Book(ctx context.Context, task *Task, opts ...asynq.Option) (Booked, error) {
	r := c.BookMany(ctx, []*Task{task}, opts...)[0]
	return r.Booked, r.Err
}

// BookMany is [Client.Book] for many tasks with few calls to Redis: for a hundred
// tasks of one queue one to enqueue them, one for each 64 of them and rule to book
// them, and one more for those with asynq.TaskID or asynq.Unique. They are
// booked in their order, and answered in that order; each fails by itself. When Redis
// does not answer, or ctx ends, the tasks that were not yet sent fail with that error.
func (c *Client) BookMany(ctx context.Context, tasks []*Task, opts ...asynq.Option) []Result {
	return c.enqueueAll(ctx, booking, tasks, opts)
}

// EnqueueMany is [Client.Enqueue] for many tasks with few calls to Redis: one for a
// hundred tasks of a queue. They are enqueued in their order, and answered in that
// order; each fails by itself. When Redis does not answer, or ctx ends, the tasks that
// were not yet sent fail with that error. Tasks with asynq.Group go one by one.
func (c *Client) EnqueueMany(ctx context.Context, tasks []*Task, opts ...asynq.Option) []Result {
	return c.enqueueAll(ctx, enqueueing, tasks, opts)
}
