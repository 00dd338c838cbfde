// Package backend is what a queue.Client does for the packages beside it, queue/batch
// and queue/schedule, which enqueue in ways of their own. Users do not see it.
package backend

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/throttle"
)

// Of returns the backend of a *queue.Client. Package queue sets it: as a method it would
// be one of the users' too.
var Of func(client any) Client

// Client is what package queue implements. It is safe for concurrent use.
type Client interface {
	Redis() redis.UniversalClient
	Keys(queue string) queuescripts.QueueKeys
	Prefix() string // of all keys

	// Bookable returns why nothing can be booked with the client's throttle.Config, or nil.
	Bookable() error

	// Shadow says that no task is refused for its key or cost.
	Shadow() bool

	// Policy returns the policy of a task type, if it has one.
	Policy(typ string) (Policy, bool)

	// Booking is the booking that was stored beside a task, if its rules are known.
	Booking(stored queuescripts.StoredBooking, job string) (throttle.BookingRef, bool)

	// Check returns why a task could never run under its policy. It may ask Redis.
	Check(ctx context.Context, task *asynq.Task) error

	// CheckOptions returns the options that asynq would alter or drop.
	CheckOptions(opts []asynq.Option) error

	// Compose lets asynq make the message of a task, and enqueues nothing.
	Compose(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (queuescripts.EnqueueTask, error)

	// Prepare checks a task that is to be booked, and composes it.
	Prepare(ctx context.Context, typ string, payload []byte, opts []asynq.Option) (*Task, error)

	// RegisterQueue has a queue in asynq's list of them.
	RegisterQueue(ctx context.Context, queue string) error

	// Promote re-times the tasks that may come earlier than they were told, and tells
	// the pools. Without it they come at the instants that they were told.
	Promote(ctx context.Context, promoted []throttle.Promotion)

	// SafeText describes an error of a user's function without quoting it.
	SafeText(err error) string
}

// Policy is the policy of a task type, ready to decide.
type Policy struct {
	Limiters []*throttle.Limiter // of the rules with limits, in their order
	Limits   *throttle.Policy    // by all of them

	// Request is what a task asks of them under the name of a job. It does not ask Redis.
	Request func(task *asynq.Task, job string) (throttle.Request, error)
}

// Task is a task on its way into a queue.
type Task struct {
	Queue   string
	Message queuescripts.EnqueueTask
	Info    *asynq.TaskInfo  // as asynq would answer it
	Policy  *throttle.Policy // nil when the task's type has none
	Request throttle.Request
	MaxWait time.Duration // as in throttle.Request
	Own     bool          // it got a booking that it did not have before

	// Of its booking: the instant, how long that is from now, and the rule that it waits
	// for. All are zero before it is booked; Wait and Rule are for a task that may run now.
	At   time.Time
	Wait time.Duration
	Rule string
}

// Longest is how long the task may wait, as in [throttle.Request].
func (t *Task) Longest() time.Duration {
	longest := t.MaxWait
	if deadline := t.Info.Deadline; !deadline.IsZero() {
		left := time.Until(deadline)
		if left <= 0 {
			return -1
		}
		if longest == 0 || left < longest {
			longest = left
		}
	}
	return longest
}

// Booked notes when the task may run, and has it woken then. It may be booked again.
func (t *Task) Booked(d throttle.Decision) {
	t.At, t.Wait, t.Rule = d.At, 0, ""
	t.Message.At, t.Message.Start, t.Message.Record = time.Time{}, time.Time{}, ""
	t.Info.State, t.Info.NextProcessAt = asynq.TaskStatePending, time.Time{}
	if d.Granted || !d.Gated && !d.At.After(d.Now) {
		return
	}
	t.Wait, t.Rule = d.At.Sub(d.Now), d.Rule
	ref, cause := queuescripts.WaitRecord{Deadline: t.Info.Deadline}, queuescripts.CauseGate
	if !d.Gated {
		cause = queuescripts.CauseBooked
		booked := throttle.ForWorkers.Ref(t.Policy, d.Request)
		ref.Booking = queuescripts.NewStoredBooking(t.Policy.String(), booked.Costs, booked.IDs)
	}
	t.Message.At, t.Message.Start, t.Message.Record = d.At, d.Start(), ref.Text()
	t.Message.Reason = queuescripts.WaitReasonOf(cause, ref.Booking, d.Rule)
	t.Info.State, t.Info.NextProcessAt = asynq.TaskStateScheduled, d.At
}

// Refusal is asynq's own error for what kept a task out of a queue.
func Refusal(code int64) error {
	switch code {
	case queuescripts.Enqueued:
		return nil
	case queuescripts.Duplicate:
		return asynq.ErrDuplicateTask
	}
	return asynq.ErrTaskIDConflict
}
