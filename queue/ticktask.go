package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue/internal/backend"
)

// noTaskError is that a TaskFunc failed.
type noTaskError struct{ cause error }

func (e *noTaskError) Error() string { return "queue: the task function failed" }
func (e *noTaskError) Unwrap() error { return e.cause }

var (
	errNoTask    = errors.New("queue: the task function returned no task")
	errStillBusy = errors.New("queue: the task function has not returned from an earlier call")
)

// panicError is that a TaskFunc panicked. The value is not in its text: it may have
// personal data.
type panicError struct{ value any }

func (e *panicError) Error() string { return "queue: the task function panicked" }

// prepare makes the task of a tick, unless that is the one that was made last: it
// may be asked for each second.
func (t *ticker) prepare(ctx context.Context, tick time.Time, id string) error {
	if t.made.Equal(tick) {
		return nil
	}
	task := t.Task
	if task == nil {
		var err error
		if task, err = t.askForTask(ctx, tick); err != nil {
			return &noTaskError{err}
		}
		if err := t.schedule.client.checkTick(task); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidEntry, err)
		}
	}
	at := task.asynqTask()
	if err := t.schedule.client.check(ctx, at); err != nil {
		return err
	}
	var r recording
	_, err := t.schedule.client.composer.EnqueueContext(record(ctx, &r), at, asynq.Queue(t.Queue), asynq.TaskID(id))
	if r.uncaught {
		err = backend.ErrUnknownScript // asynq wraps an error of Redis as text
	}
	if err == nil {
		err = t.schedule.client.registerQueue(ctx, t.Queue)
	}
	if err != nil {
		return fmt.Errorf("queue: entry %q: %w", t.Name, err)
	}
	t.made, t.message = tick, r.task.Message
	return nil
}

// askForTask calls the TaskFunc, and leaves one alone that does not heed its context:
// the other ticks of the schedule, a reload and the end of Run do not wait for it. While
// it has not returned it is not called again.
func (t *ticker) askForTask(ctx context.Context, tick time.Time) (*Task, error) {
	if !t.asking.Equal(tick) {
		t.asking, t.since = tick, t.schedule.now()
	}
	select {
	case <-t.calling:
	default:
		if t.calling != nil {
			return nil, errStillBusy
		}
	}
	type answer struct {
		task *Task
		err  error
	}
	var (
		answered = make(chan answer, 1)
		returned = make(chan struct{})
	)
	t.calling = returned
	ctx, cancel := context.WithTimeout(ctx, t.LateMax/2)
	defer cancel()
	go func() {
		defer close(returned)
		defer func() {
			if v := recover(); v != nil {
				answered <- answer{err: &panicError{v}}
			}
		}()
		task, err := t.TaskFunc(ctx, tick.In(t.location()))
		if err == nil && task == nil {
			err = errNoTask
		}
		answered <- answer{task, err}
	}()
	select {
	case a := <-answered:
		return a.task, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// neverRuns says whether a task would fail in the same way if it was made again.
func neverRuns(err error) bool {
	if _, ok := errors.AsType[*DemandError](err); ok {
		return true
	}
	return errors.Is(err, ErrInvalidEntry) || errors.Is(err, backend.ErrUnknownScript)
}

// failedFor is for how long a tick has had no task.
func (t *ticker) failedFor(err error) time.Duration {
	if _, ok := errors.AsType[*noTaskError](err); !ok {
		return 0
	}
	return t.schedule.now().Sub(t.since)
}

// reasonOf is the text of an error without what a TaskFunc put into its own.
func reasonOf(err error) string {
	if none, ok := errors.AsType[*noTaskError](err); ok {
		return "the task function failed: " + safeText(none.cause)
	}
	return err.Error()
}
