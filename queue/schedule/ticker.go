package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/schedulescripts"
	"github.com/headwayq/headway/queue"
)

const (
	// tickLook is how often an entry is read although nothing is due. That keeps its record
	// alive, shows other processes that its spec is in use, and corrects a clock that stood
	// still while the machine slept.
	tickLook = 30 * time.Second
	// heldLook is how often it is looked whether the task that a tick waits for has
	// ended.
	heldLook = time.Second
	// tickRetryMax is the longest wait after a failure.
	tickRetryMax = 15 * time.Second
	// recordLife is how long the record of an entry is kept after its last missed tick became
	// too old to be made up.
	recordLife = 31 * 24 * time.Hour
)

// ticker brings the ticks of one entry to Redis, in one process.
type ticker struct {
	*scheduled
	schedule *Schedule

	// As the last answer had it.
	asked time.Time // by our clock; zero when there was none
	reply schedulescripts.TickReply

	made    time.Time // the tick whose task was made last
	message []byte    // that task, as asynq encodes it

	calling chan struct{} // closed when the TaskFunc has returned; nil before the first call

	failures int           // in a row, but for those of the TaskFunc
	asking   time.Time     // the tick for which the TaskFunc was called last
	since    time.Time     // when it was called for that tick first, by our clock
	noTask   int           // how often that tick had no task
	left     time.Duration // how long it had left, at the last failure, until that tick is given up
}

func (t *ticker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-timer.C:
			timer.Reset(t.pass(ctx))
		}
	}
}

// pass does what is due, and returns after what time to come again.
func (t *ticker) pass(ctx context.Context) time.Duration {
	began := t.schedule.now()
	wait, err := t.work(ctx)
	var none *noTaskError
	switch {
	case ctx.Err() != nil:
		return 0
	case err == nil:
		t.failures = 0
		return wait
	case errors.As(err, &none):
		if t.noTask++; t.noTask == 1 {
			t.schedule.log.Warn("a tick has no task yet", zap.String("entry", t.Name), zap.String("error", t.schedule.client.SafeText(none.cause)))
		}
		return min(retryAfter(t.noTask), t.left)
	default:
		t.schedule.reached(began, err)
	}
	t.failures++
	return retryAfter(t.failures)
}

// retryAfter is the wait after so many failures in a row.
func retryAfter(failures int) time.Duration {
	return min(time.Second<<min(failures-1, 10), tickRetryMax)
}

// work is one pass until something fails.
func (t *ticker) work(ctx context.Context) (time.Duration, error) {
	if t.asked.IsZero() || t.schedule.now().Sub(t.asked) >= tickLook {
		if _, err := t.call(ctx, schedulescripts.TickArgs{}); err != nil {
			return 0, err
		}
	}
	if held := t.reply.Held; !held.IsZero() {
		if _, err := t.tick(ctx, dueTick{at: held, by: held}); err != nil {
			return 0, err
		}
	}
	now := t.redisNow()
	for due := t.due(t.reply.From, now); len(due) > 0 && ctx.Err() == nil; {
		next := due[0]
		if !next.at.After(t.reply.From) {
			due = due[1:] // decided by others
			continue
		}
		from := t.reply.From
		code, err := t.tick(ctx, next)
		switch {
		case err != nil:
			return 0, err
		case code == schedulescripts.TickPassed && t.reply.From.Before(from): // Redis lost what was decided: that is due again
			return 0, nil
		case code == schedulescripts.TickPassed && !t.reply.From.Equal(from): // others came before us
		case code == schedulescripts.TickPassed && t.reply.Now.Before(next.at):
			return t.until(next.at), nil
		default:
			due = due[1:]
		}
	}
	wait := tickLook
	if next := t.cron.Next(later(now, t.reply.From)); !next.IsZero() {
		wait = min(wait, t.until(next))
	}
	if !t.reply.Held.IsZero() {
		wait = min(wait, t.schedule.held)
	}
	return wait, nil
}

// redisNow is what Redis' clock shows, as far as we know.
func (t *ticker) redisNow() time.Time {
	return t.reply.Now.Add(t.schedule.now().Sub(t.asked))
}

func (t *ticker) until(at time.Time) time.Duration { return max(0, at.Sub(t.redisNow())) }

// tick has one tick decided, and returns what the script did.
func (t *ticker) tick(ctx context.Context, due dueTick) (int64, error) {
	args := schedulescripts.TickArgs{At: due.at, By: due.by, ID: t.taskID(due.at)}
	err := t.prepare(ctx, due, args.ID)
	switch {
	case err == nil:
		args.Message = t.message
	case !neverRuns(err):
		if t.left = t.leftFor(err, due); t.left > 0 {
			return 0, err
		}
	}
	held := t.reply.Held
	code, failed := t.call(ctx, args)
	if failed != nil {
		return 0, failed
	}
	if code == schedulescripts.TickHeld && held.Equal(due.at) {
		return code, nil // it was held before, and goes on to be
	}
	if code == schedulescripts.TickGivenUp {
		t.schedule.log.Error("a tick is given up: it has no task that could run", zap.String("entry", t.Name),
			zap.Time("tick", due.at), zap.String("error", t.reasonOf(err)))
	}
	if f, outcome := t.schedule.cfg.TickFunc, outcomes[code]; f != nil && outcome != "" {
		f(Tick{Entry: t.Name, At: due.at.In(t.location()), TaskID: args.ID, Outcome: outcome})
	}
	return code, nil
}

var outcomes = map[int64]Outcome{
	schedulescripts.TickEnqueued: OutcomeEnqueued,
	schedulescripts.TickSkipped:  OutcomeSkipped,
	schedulescripts.TickHeld:     OutcomeHeld,
	schedulescripts.TickGivenUp:  OutcomeGivenUp,
}

// call runs the script and keeps its answer.
func (t *ticker) call(ctx context.Context, a schedulescripts.TickArgs) (int64, error) {
	before := t.schedule.now()
	life := recordLife + t.MissedWithin
	if next := t.cron.Next(before); !next.IsZero() {
		life += next.Sub(before)
	}
	a.Spec, a.Life, a.From, a.Overlap = t.spec, life, t.reply.From, t.Overlap.script()
	reply, err := schedulescripts.Tick(ctx, t.schedule.client.Redis(), t.keys, t.Name, a)
	if err != nil {
		return 0, fmt.Errorf("schedule: entry %q: %w", t.Name, err)
	}
	t.reply, t.asked = reply, t.schedule.now()
	t.schedule.reached(before, nil)
	return reply.Code, nil
}

func (o Overlap) script() schedulescripts.TickOverlap {
	switch o {
	case OverlapSkip:
		return schedulescripts.TickIsSkipped
	case OverlapQueueOne:
		return schedulescripts.TickIsHeld
	}
	return schedulescripts.TickRuns
}

// dueTick is a tick that is to be done, and the instant before which that has to be.
type dueTick struct{ at, by time.Time }

// due are the ticks after from that are to be done at now, in their order. What
// is not among them and not later than now was missed, and is skipped.
func (e *scheduled) due(from, now time.Time) []dueTick {
	var (
		late   = now.Add(-e.LateMax) // up to then ticks are missed
		life   = e.LateMax
		onTime = e.cron.between(later(from, late), now)
		missed []time.Time
	)
	if e.Missed != MissedSkip {
		life = e.MissedWithin
	}
	if oldest := later(from, now.Add(-e.MissedWithin)); oldest.Before(late) {
		switch {
		case e.Missed == MissedRunAll:
			missed = e.cron.Latest(oldest, late, e.MissedMax)
		case e.Missed == MissedRunOnce && len(onTime) == 0:
			missed = e.cron.Latest(oldest, late, 1)
		}
	}
	var due []dueTick
	for _, at := range append(missed, onTime...) {
		due = append(due, dueTick{at, at.Add(life)})
	}
	return due
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// location is the zone in which the entry's ticks are told.
func (e *scheduled) location() *time.Location {
	if e.cron.zone == nil {
		return time.UTC
	}
	return e.cron.zone
}

// noTaskError is that a TaskFunc failed.
type noTaskError struct{ cause error }

func (e *noTaskError) Error() string { return "schedule: the task function failed" }
func (e *noTaskError) Unwrap() error { return e.cause }

var (
	errNoTask    = errors.New("schedule: the task function returned no task")
	errStillBusy = errors.New("schedule: the task function has not returned from an earlier call")
)

// panicError is that a TaskFunc panicked. The value is not in its text: it may have
// personal data.
type panicError struct{ value any }

func (e *panicError) Error() string { return "schedule: the task function panicked" }

// prepare makes the task of a tick, unless that is the one that was made last: it
// may be asked for each second.
func (t *ticker) prepare(ctx context.Context, due dueTick, id string) error {
	if t.made.Equal(due.at) {
		return nil
	}
	task := t.Task
	if task == nil {
		var err error
		if task, err = t.askForTask(ctx, due); err != nil {
			return &noTaskError{err}
		}
		if err := checkTask(t.schedule.client, task); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	at := asynqTask(task)
	if err := t.schedule.client.Check(ctx, at); err != nil {
		return err
	}
	composed, err := t.schedule.client.Compose(ctx, at, asynq.Queue(t.Queue), asynq.TaskID(id))
	switch {
	case err == nil:
		err = t.schedule.client.RegisterQueue(ctx, t.Queue)
	case ctx.Err() == nil && !errors.Is(err, asynqwire.ErrUnknownScript):
		err = fmt.Errorf("%w: asynq can't write the task: %w", ErrInvalid, err) // it asked no Redis
	}
	if err != nil {
		return fmt.Errorf("schedule: entry %q: %w", t.Name, err)
	}
	t.made, t.message = due.at, composed.Message
	return nil
}

// askForTask calls the TaskFunc, and leaves one alone that does not heed its context:
// the other ticks of the schedule, a reload and the end of Run do not wait for it. While
// it has not returned it is not called again.
func (t *ticker) askForTask(ctx context.Context, due dueTick) (*queue.Task, error) {
	tick := due.at
	if !t.asking.Equal(tick) {
		t.asking, t.since, t.noTask = tick, t.schedule.now(), 0
	}
	select {
	case <-t.calling:
	default:
		if t.calling != nil {
			return nil, errStillBusy
		}
	}
	type answer struct {
		task *queue.Task
		err  error
	}
	var (
		answered = make(chan answer, 1)
		returned = make(chan struct{})
	)
	t.calling = returned
	ctx, cancel := context.WithTimeout(ctx, max(t.LateMax/20, min(t.LateMax/2, t.untilMissed(due))))
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
	if _, ok := errors.AsType[*queue.DemandError](err); ok {
		return true
	}
	return errors.Is(err, ErrInvalid) || errors.Is(err, asynqwire.ErrUnknownScript)
}

// leftFor is how long a tick may still have no task: for half of LateMax, and not so long that it would be
// missed before it is given up.
func (t *ticker) leftFor(err error, due dueTick) time.Duration {
	if _, ok := errors.AsType[*noTaskError](err); !ok {
		return t.LateMax // it is Redis that fails
	}
	return min(t.untilMissed(due), t.LateMax/2-t.schedule.now().Sub(t.since))
}

// untilMissed is how long a tick can wait for its task, and still be given up before it is missed. One
// that is held is never missed.
func (t *ticker) untilMissed(due dueTick) time.Duration {
	if !due.by.After(due.at) {
		return t.LateMax
	}
	return due.by.Sub(t.redisNow()) - t.LateMax/10
}

// reasonOf is the text of an error without what a TaskFunc put into its own.
func (t *ticker) reasonOf(err error) string {
	if none, ok := errors.AsType[*noTaskError](err); ok {
		return "the task function failed: " + t.schedule.client.SafeText(none.cause)
	}
	return err.Error()
}
