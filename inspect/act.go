package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// ErrNotWaiting says that a task can't be changed, because it is not there, runs, or has
// ended.
var ErrNotWaiting = errors.New("inspect: the task does not wait")

// ErrInvalidReason says that a change does not tell who makes it, or why.
var ErrInvalidReason = errors.New("inspect: invalid reason")

// Reason is who changes something, and why. It is kept in the audit list, so it must
// not contain personal data of others. Both are required.
type Reason struct {
	Who string // 1 to 128 bytes of one line, such as a user's name
	Why string // 1 to 512 bytes of one line
}

// pauseMax is the longest time for which a key can be closed.
const pauseMax = 366 * 24 * time.Hour

const (
	whoMax = 128
	whyMax = 512
)

// validate returns all that is wrong with a reason, joined.
func (r Reason) validate() error {
	var errs []error
	for _, f := range []struct {
		name, text string
		most       int
	}{{"Who", r.Who, whoMax}, {"Why", r.Why, whyMax}} {
		switch {
		case strings.TrimSpace(f.text) == "":
			errs = append(errs, fmt.Errorf("%w: %s is empty, and every change is noted with it", ErrInvalidReason, f.name))
		case len(f.text) > f.most:
			errs = append(errs, fmt.Errorf("%w: %s has %d bytes, want at most %d", ErrInvalidReason, f.name, len(f.text), f.most))
		case !utf8.ValidString(f.text) || strings.ContainsFunc(f.text, unicode.IsControl):
			errs = append(errs, fmt.Errorf("%w: %s must be one line of text", ErrInvalidReason, f.name))
		}
	}
	return errors.Join(errs...)
}

// Action is what a change did.
type Action string

// The actions of the audit list.
const (
	ActionClose       Action = "close"       // a key or a rule, until Until
	ActionOpen        Action = "open"        // a key or a rule
	ActionSetLimit    Action = "set limit"   // Value is stored for a rule, for ever or until Until
	ActionUnsetLimit  Action = "unset limit" // the limit in code counts again
	ActionPauseQueue  Action = "pause queue"
	ActionResumeQueue Action = "resume queue"
	ActionCancel      Action = "cancel"  // Task, or all that waits on a key
	ActionFront       Action = "front"   // Task, or all that waits on a key, goes to the front
	ActionRunNow      Action = "run now" // Task, in spite of its rules
)

// Audit returns changes, the newest first, without the first skip. The list holds the
// last 1000 changes, for 90 days after the last. A page has at most 250.
func (i *Inspector) Audit(ctx context.Context, skip, most int) ([]Change, error) {
	if most < 1 || most > pageMax || skip < 0 {
		return nil, fmt.Errorf("%w: %d entries behind %d, want 1 to %d behind 0 or more", ErrInvalidCursor, most, skip, pageMax)
	}
	entries, err := auditEntries(ctx, i.rdb, i.cfg.Prefix, skip, most)
	if err != nil {
		return nil, away("audit", err)
	}
	changes := make([]Change, 0, len(entries))
	for _, text := range entries {
		var c Change
		if json.Unmarshal([]byte(text), &c) != nil {
			c = Change{Action: "unknown", Value: "an entry of another version"}
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// change notes a change in the audit list and makes it.
func (i *Inspector) change(ctx context.Context, r Reason, c Change, do func() error) error {
	if err := r.validate(); err != nil {
		return err
	}
	now, err := luascripts.Now(ctx, i.rdb)
	if err != nil {
		return away("read Redis' clock", err)
	}
	c.At, c.Who, c.Why = now, r.Who, r.Why
	if !c.Until.IsZero() { // it was a duration from the zero time
		c.Until = now.Add(c.Until.Sub(time.Time{}))
	}
	if err := i.note(ctx, c); err != nil {
		return fmt.Errorf("inspect: nothing was changed: %w", err)
	}
	err = do()
	if err != nil {
		c.Failed = err.Error() // our errors contain no key
		if noted := i.note(context.WithoutCancel(ctx), c); noted != nil {
			return errors.Join(err, noted)
		}
	}
	return err
}

// in is an instant that counts from the moment of a change.
func in(d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return time.Time{}.Add(d)
}

func (i *Inspector) note(ctx context.Context, c Change) error {
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("write the audit list: %w", err)
	}
	if err := appendAudit(ctx, i.rdb, i.cfg.Prefix, text); err != nil {
		return fmt.Errorf("%w: %w", throttle.ErrUnavailable, err)
	}
	return nil
}

// limiter is that of a rule of the policies.
func (i *Inspector) limiter(rule string) (*throttle.Limiter, error) {
	if l := i.set.Limiter(rule); l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("%w: no policy here has a limit named %q", queue.ErrInvalidPolicy, clip(rule))
}

// CloseKey lets nothing through on a key of a rule for d from now on, 1 ms to 366 days. It
// returns the instant from which the key is open; a key that is closed for longer stays so.
func (i *Inspector) CloseKey(ctx context.Context, rule, key string, d time.Duration, r Reason) (until time.Time, err error) {
	l, err := i.limiter(rule)
	if err != nil {
		return time.Time{}, err
	}
	id, err := i.id(ctx, l, key)
	if err != nil {
		return time.Time{}, err
	}
	err = i.change(ctx, r, Change{Action: ActionClose, Rule: rule, Key: id, Until: in(d), BeforeUntil: keyClosed(ctx, l, id)}, func() error {
		until, err = throttle.ForWorkers.Close(ctx, l, id, d)
		return err
	})
	return until, err
}

// OpenKey ends a closing of a key before its time. Pools plan the tasks that wait anew,
// which takes about a second.
func (i *Inspector) OpenKey(ctx context.Context, rule, key string, r Reason) error {
	l, err := i.limiter(rule)
	if err != nil {
		return err
	}
	id, err := i.id(ctx, l, key)
	if err != nil {
		return err
	}
	return i.change(ctx, r, Change{Action: ActionOpen, Rule: rule, Key: id, BeforeUntil: keyClosed(ctx, l, id)}, func() error {
		promoted, err := throttle.ForWorkers.Open(ctx, l, id)
		promotion.Move(ctx, i.rdb, i.cfg.Prefix, i.set, promoted...)
		return err
	})
}

// CloseRule is [Inspector.CloseKey] for all keys of a rule.
func (i *Inspector) CloseRule(ctx context.Context, rule string, d time.Duration, r Reason) (until time.Time, err error) {
	l, err := i.limiter(rule)
	if err != nil {
		return time.Time{}, err
	}
	err = i.change(ctx, r, Change{Action: ActionClose, Rule: rule, Until: in(d), BeforeUntil: l.LimitStatus(ctx).Closed}, func() error {
		until, err = l.CloseRule(ctx, d)
		return err
	})
	return until, err
}

// OpenRule ends a closing of a rule before its time; keys that are closed stay closed.
func (i *Inspector) OpenRule(ctx context.Context, rule string, r Reason) error {
	l, err := i.limiter(rule)
	if err != nil {
		return err
	}
	return i.change(ctx, r, Change{Action: ActionOpen, Rule: rule, BeforeUntil: l.LimitStatus(ctx).Closed}, func() error { return l.OpenRule(ctx) })
}

// SetLimit stores a limit for a rule. It goes before the limit in code, in all processes
// within a second: for d, at least 1 s, or with d of 0 until it is set anew or unset.
func (i *Inspector) SetLimit(ctx context.Context, rule string, limit throttle.Limit, d time.Duration, r Reason) error {
	l, err := i.limiter(rule)
	if err != nil {
		return err
	}
	c := Change{Action: ActionSetLimit, Rule: rule, Value: limit.String(), Until: in(d)}
	i.noteStored(ctx, l, &c)
	return i.change(ctx, r, c, func() error {
		_, err := l.SetLimit(ctx, limit, throttle.SetLimitOptions{For: d})
		return err
	})
}

// UnsetLimit takes the stored limit of a rule away, so that the one in code counts again.
func (i *Inspector) UnsetLimit(ctx context.Context, rule string, r Reason) error {
	l, err := i.limiter(rule)
	if err != nil {
		return err
	}
	c := Change{Action: ActionUnsetLimit, Rule: rule}
	i.noteStored(ctx, l, &c)
	return i.change(ctx, r, c, func() error { return l.UnsetLimit(ctx) })
}

// noteStored notes the limit that is stored for a rule as what a change replaces, and until when
// it would have counted. It notes nothing when none is stored, or one that can't be read. A limit
// without an end has no instant.
func (i *Inspector) noteStored(ctx context.Context, l *throttle.Limiter, c *Change) {
	s := l.LimitStatus(ctx)
	if !s.Stored || s.Err != nil {
		return
	}
	c.Before, c.BeforeFile = s.Limit.String(), s.Replaced != nil
	if left := i.rdb.PTTL(ctx, limitscripts.StoredLimitKey(i.cfg.Prefix, l.Rule())).Val(); left > 0 {
		if now, err := luascripts.Now(ctx, i.rdb); err == nil {
			c.BeforeUntil = now.Add(left)
		}
	}
}

// keyClosed is until when a key is closed by itself; zero when it is not, and when that can't be read.
func keyClosed(ctx context.Context, l *throttle.Limiter, id string) time.Time {
	s, _ := throttle.ForWorkers.Peek(ctx, l, id, 1, 0, false)
	return s.OwnClosed
}

// PauseKey is [Inspector.CloseKey] for the longest time, 366 days.
func (i *Inspector) PauseKey(ctx context.Context, rule, key string, r Reason) error {
	_, err := i.CloseKey(ctx, rule, key, pauseMax, r)
	return err
}

// ErrPaused says that a queue is paused already, and ErrNotPaused that a queue to resume is
// not paused: there is nothing to do.
var (
	ErrPaused    = errors.New("inspect: the queue is paused already: there is nothing to do")
	ErrNotPaused = errors.New("inspect: the queue is not paused: there is nothing to do")
)

// PauseQueue lets workers take nothing more from a queue. What waits keeps its places, and
// is late when its instants pass. A queue that is paused already is [ErrPaused].
func (i *Inspector) PauseQueue(ctx context.Context, queue string, r Reason) error {
	return i.change(ctx, r, Change{Action: ActionPauseQueue, Queue: queue}, func() error {
		return pauseFault(i.asynq.PauseQueue(queue), "already paused", ErrPaused)
	})
}

// ResumeQueue ends a pause. A queue that is not paused is [ErrNotPaused].
func (i *Inspector) ResumeQueue(ctx context.Context, queue string, r Reason) error {
	return i.change(ctx, r, Change{Action: ActionResumeQueue, Queue: queue}, func() error {
		return pauseFault(i.asynq.UnpauseQueue(queue), "not paused", ErrNotPaused)
	})
}

// pauseFault is what asynq's error means, which only its text says: nothing to do where it
// has said, and otherwise that Redis does not answer.
func pauseFault(err error, said string, nothing error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), said):
		return nothing
	}
	return away("pause or resume a queue", err)
}

// Mask hides most of a key, for people who need not know it: at most half of its
// characters are left, and no more than seven. A hashed key is shown as it is.
func Mask(key string) string {
	if strings.HasPrefix(key, "#") || key == "" {
		return key
	}
	all := []rune(key)
	shown := min(len(all)/2, 7)
	head := shown * 3 / 7
	return string(all[:head]) + "…" + string(all[len(all)-(shown-head):])
}

// scanPortion is how many deferred tasks a script looks at.
const scanPortion = 1000

// OnKey yields the tasks of a queue that wait and need permits of a rule on a key, whichever
// of their rules holds them up, in the order of their instants. [Inspector.Line] has only
// those that wait for this rule. A task that has no place yet is not among them: one that a closed gate, a
// paused batch or an outage holds, or that waits for its ProcessAt. It reads all that waits on the queue, in
// portions. After an error nothing follows.
func (i *Inspector) OnKey(ctx context.Context, queue, rule, key string) iter.Seq2[WaitingTask, error] {
	return func(yield func(WaitingTask, error) bool) {
		for w, err := range i.onKey(ctx, queue, rule, key) {
			if err != nil {
				yield(WaitingTask{}, err)
				return
			}
			at := WaitingTask{Queue: queue, ID: w.task.ID, At: w.task.At, Rules: strings.Split(w.rules.Policy(), "+")}
			if !yield(at, nil) {
				return
			}
		}
	}
}

// onKeyTask is a deferred task and in whose lines it stands.
type onKeyTask struct {
	task  queuescripts.DueTask
	rules queuescripts.StoredBooking
}

func (i *Inspector) onKey(ctx context.Context, queue, rule, key string) iter.Seq2[onKeyTask, error] {
	return func(yield func(onKeyTask, error) bool) {
		l, err := i.limiter(rule)
		if err != nil {
			yield(onKeyTask{}, err)
			return
		}
		id, err := i.id(ctx, l, key)
		if err != nil {
			yield(onKeyTask{}, err)
			return
		}
		from, skip := time.Time{}, 0
		for {
			r, err := queuescripts.ScanDeferred(ctx, i.rdb, i.keys(queue), from, skip, scanPortion)
			if err != nil {
				yield(onKeyTask{}, away("list what waits", err))
				return
			}
			for _, t := range r.Tasks {
				record, _ := queuescripts.ParseWaitRecord(t.Record)
				if onRule(record.Booking, rule, id) && !yield(onKeyTask{t, record.Booking}, nil) {
					return
				}
				if !t.At.Equal(from) {
					from, skip = t.At, 0
				}
				skip++
			}
			if len(r.Tasks) < scanPortion {
				return
			}
		}
	}
}

// onRule says that a booking is for a rule on the key of an id.
func onRule(booked queuescripts.StoredBooking, rule, id string) bool {
	ids, _, ok := booked.Read()
	n := slices.Index(strings.Split(booked.Policy(), "+"), rule)
	return ok && n >= 0 && ids[n] == id
}

// Cancel deletes a task that does not run, and gives its places up. One that runs, or is not
// there, is [ErrNotWaiting].
func (i *Inspector) Cancel(ctx context.Context, queue, id string, r Reason) error {
	return i.change(ctx, r, Change{Action: ActionCancel, Queue: queue, Task: id}, func() error {
		f, err := queuescripts.GetTask(ctx, i.rdb, i.keys(queue), id)
		if err != nil {
			return away("find a task", err)
		}
		record, _ := queuescripts.ParseWaitRecord(f.Record)
		return i.cancel(ctx, queue, onKeyTask{queuescripts.DueTask{ID: id, At: f.At, Record: f.Record}, record.Booking})
	})
}

// CancelKey deletes all tasks of a queue that [Inspector.OnKey] lists, and gives their places
// up. It returns how many; with an error, how many before it. One that begins to run
// meanwhile is left alone.
func (i *Inspector) CancelKey(ctx context.Context, queue, rule, key string, r Reason) (cancelled int, err error) {
	return i.eachOnKey(ctx, ActionCancel, queue, rule, key, r, func(all []onKeyTask, counted func(error) error) error {
		for _, w := range slices.Backward(all) { // from the end of the line: a task that is cancelled promotes only those behind it
			if err := ctx.Err(); err != nil { // asynq's part of a cancellation takes no context
				return away("cancel what waits on a key", err)
			}
			if err := counted(i.cancel(ctx, queue, w)); err != nil {
				return err
			}
		}
		return nil
	})
}

// tidyFor bounds what is tidied after a task was deleted.
const tidyFor = 2 * time.Second

// cancel deletes a task, and gives its places up.
func (i *Inspector) cancel(ctx context.Context, queue string, w onKeyTask) error {
	ref, booked := i.ref(ctx, queue, w) // while the task is there, which has its keys
	err := i.asynq.DeleteTask(queue, w.task.ID)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return fmt.Errorf("%w: it is not there", ErrNotWaiting)
	case err != nil && strings.Contains(err.Error(), "in active state"):
		return fmt.Errorf("%w: it runs", ErrNotWaiting)
	case err != nil:
		return away("delete a task", err)
	}
	// What follows is tidying: a pool that sweeps the queue does the same. It is done for a task that is deleted,
	// whoever stops the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyFor)
	defer cancel()
	_, _ = queuescripts.Wake(ctx, i.rdb, i.keys(queue), []queuescripts.DueTask{w.task}, time.Now(), false)
	if booked {
		promoted, _ := throttle.ForWorkers.CancelBooking(ctx, ref)
		promotion.Move(ctx, i.rdb, i.cfg.Prefix, i.set, promoted...)
	}
	return nil
}

// ref is the booking of a task by rules that are known here.
func (i *Inspector) ref(ctx context.Context, queue string, w onKeyTask) (throttle.BookingRef, bool) {
	b, ok := i.set.Booking(w.rules, luascripts.JobID(queue, w.task.ID))
	if !ok || i.cfg.PerClient {
		return b, false
	}
	i.meet(ctx, queue, w.task.ID, b)
	return b, true
}

// RunNow lets a task that waits run at once, in spite of its rules: no limit, gate or pause of its batch
// holds it up. It spends no permits, and those behind it in its lines move up. That breaks the limits on
// purpose, once: pools count it as forced, and a later attempt of the task asks its rules again. What the handler acquires itself is limited as ever.
//
// The task goes to the front of its queue, where a free worker takes it. One that is pending already keeps its
// place there. A paused queue stays paused. A task that runs, has ended, or is not there is [ErrNotWaiting].
func (i *Inspector) RunNow(ctx context.Context, queue, id string, r Reason) error {
	return i.change(ctx, r, Change{Action: ActionRunNow, Queue: queue, Task: id}, func() error {
		status, err := queuescripts.RunNow(ctx, i.rdb, i.keys(queue), id, time.Now())
		switch {
		case err != nil:
			return away("let a task run", err)
		case status == queuescripts.RunNowActive:
			return fmt.Errorf("%w: it runs", ErrNotWaiting)
		case status == queuescripts.RunNowDeleted:
			return fmt.Errorf("%w: it is not there", ErrNotWaiting)
		case status == queuescripts.RunNowGrouped:
			return fmt.Errorf("%w for its rules: asynq gathers it with others of its group", ErrNotWaiting)
		case status == queuescripts.RunNowEnded:
			return fmt.Errorf("%w: it was completed or archived", ErrNotWaiting)
		}
		return nil
	})
}

// Front gives a task the first place in the line in which it stands. The others of that line
// come later by its permits. A task without a place is [ErrNotWaiting].
func (i *Inspector) Front(ctx context.Context, queue, id string, r Reason) error {
	return i.change(ctx, r, Change{Action: ActionFront, Queue: queue, Task: id}, func() error {
		f, err := queuescripts.GetTask(ctx, i.rdb, i.keys(queue), id)
		if err != nil {
			return away("find a task", err)
		}
		record, _ := queuescripts.ParseWaitRecord(f.Record)
		return i.front(ctx, queue, onKeyTask{queuescripts.DueTask{ID: id, At: f.At, Record: f.Record}, record.Booking})
	})
}

// FrontKey is [Inspector.Front] for all tasks of a queue that [Inspector.OnKey] lists. They
// keep their order among each other. It returns how many; with an error, how many before it.
// It does some 300 tasks a second.
func (i *Inspector) FrontKey(ctx context.Context, queue, rule, key string, r Reason) (moved int, err error) {
	return i.eachOnKey(ctx, ActionFront, queue, rule, key, r, func(all []onKeyTask, counted func(error) error) error {
		// In a line that is closed, a task that goes to the front stands behind those that went
		// there before it. In an open line it stands before them. See close.lua.
		var closed, open []onKeyTask
		for _, w := range all {
			ref, ok := i.ref(ctx, queue, w)
			if !ok {
				continue
			}
			s, err := throttle.ForWorkers.Lookup(ctx, ref, false)
			switch {
			case err != nil:
				return fmt.Errorf("inspect: find the place of a task: %w", err)
			case s.Closed.IsZero():
				open = append(open, w)
			default:
				closed = append(closed, w)
			}
		}
		for _, w := range closed {
			if err := counted(i.front(ctx, queue, w)); err != nil {
				return err
			}
		}
		for _, w := range slices.Backward(open) {
			if err := counted(i.front(ctx, queue, w)); err != nil {
				return err
			}
			time.Sleep(frontPause)
		}
		return nil
	})
}

// frontPause is longer than a line is closed for each task that goes to its front.
const frontPause = 2 * time.Millisecond

// front gives a task the first place in its line, and moves it to its new instant.
func (i *Inspector) front(ctx context.Context, queue string, w onKeyTask) error {
	ref, ok := i.ref(ctx, queue, w)
	if !ok {
		return fmt.Errorf("%w: it has no place in a line that is known here", ErrNotWaiting)
	}
	s, err := throttle.ForWorkers.Lookup(ctx, ref, false)
	if err != nil {
		return fmt.Errorf("inspect: find the place of a task: %w", err)
	}
	if !s.Known {
		return fmt.Errorf("%w: it has no place in a line", ErrNotWaiting)
	}
	promoted, err := throttle.ForWorkers.First(ctx, ref, s.Rule)
	defer func() { promotion.Move(ctx, i.rdb, i.cfg.Prefix, i.set, promoted...) }() // also beside an error
	if err != nil {
		return fmt.Errorf("inspect: move a task to the front: %w", err)
	}
	if s, err = throttle.ForWorkers.Lookup(ctx, ref, false); err != nil {
		return fmt.Errorf("inspect: find the place of a task: %w", err)
	}
	promoted = append(promoted, throttle.Promotion{Job: ref.Job, At: s.At, Wait: max(0, s.At.Sub(s.Now))})
	return nil
}

// eachOnKey notes a change, lists the tasks on a key, and lets do act on them. What is done
// moves the others, so they are listed before. counted counts a task of which do says that it
// is done, and passes over one that does not wait any more.
func (i *Inspector) eachOnKey(ctx context.Context, what Action, queue, rule, key string, r Reason,
	do func(all []onKeyTask, counted func(error) error) error) (done int, err error) {
	l, err := i.limiter(rule)
	if err != nil {
		return 0, err
	}
	counted := func(failed error) error {
		switch {
		case failed == nil:
			done++
		case errors.Is(failed, ErrNotWaiting):
			return nil
		}
		return failed
	}
	id, err := i.id(ctx, l, key)
	if err != nil {
		return 0, err
	}
	err = i.change(ctx, r, Change{Action: what, Rule: rule, Key: id, Queue: queue}, func() error {
		var all []onKeyTask
		for w, failed := range i.onKey(ctx, queue, rule, key) {
			if failed != nil {
				return failed
			}
			all = append(all, w)
		}
		return do(all, counted)
	})
	return done, err
}

// batchChange notes a change of a batch and makes it.
func (i *Inspector) batchChange(ctx context.Context, c Change, r Reason, do func(*batch.Control) error) error {
	control, err := i.control()
	if err != nil {
		return err
	}
	return i.change(ctx, r, c, func() error { return do(control) })
}

// PauseBatch stops a batch within a second, see [batch.Control.Pause].
func (i *Inspector) PauseBatch(ctx context.Context, queue, id string, r Reason) error {
	c := Change{Action: ActionPauseBatch, Queue: queue, Batch: id}
	return i.batchChange(ctx, c, r, func(control *batch.Control) error { return control.Pause(ctx, queue, id) })
}

// ResumeBatch lets a paused batch go on, see [batch.Control.Resume].
func (i *Inspector) ResumeBatch(ctx context.Context, queue, id string, r Reason) error {
	c := Change{Action: ActionResumeBatch, Queue: queue, Batch: id}
	return i.batchChange(ctx, c, r, func(control *batch.Control) error { return control.Resume(ctx, queue, id) })
}

// CancelBatch ends a batch for good, see [batch.Control.Cancel].
func (i *Inspector) CancelBatch(ctx context.Context, queue, id string, r Reason) error {
	return i.batchChange(ctx, Change{Action: ActionCancelBatch, Queue: queue, Batch: id}, r, func(control *batch.Control) error {
		_, err := control.Cancel(ctx, queue, id)
		return err
	})
}

// progress is a batch before it is changed.
func (i *Inspector) progress(ctx context.Context, queue, id string) (batch.Progress, error) {
	control, err := i.control()
	if err != nil {
		return batch.Progress{}, err
	}
	p, err := control.Progress(ctx, queue, id)
	if err != nil {
		return p, fmt.Errorf("inspect: read a batch: %w", err)
	}
	return p, nil
}

// SetPace changes how fast the elements of a batch are enqueued; the zero Pace is no bound.
func (i *Inspector) SetPace(ctx context.Context, queue, id string, pace batch.Pace, r Reason) error {
	before, err := i.progress(ctx, queue, id)
	if err != nil {
		return err
	}
	c := Change{Action: ActionSetPace, Queue: queue, Batch: id, Value: pace.String(), Before: before.Pace.String()}
	return i.batchChange(ctx, c, r, func(control *batch.Control) error { return control.SetPace(ctx, queue, id, pace) })
}

// SetWeight changes how much of its window a batch uses, 1 to 100 percent.
func (i *Inspector) SetWeight(ctx context.Context, queue, id string, percent int, r Reason) error {
	before, err := i.progress(ctx, queue, id)
	if err != nil {
		return err
	}
	c := Change{Action: ActionSetWeight, Queue: queue, Batch: id, Value: fmt.Sprintf("%d%%", percent), Before: fmt.Sprintf("%d%%", before.Weight)}
	return i.batchChange(ctx, c, r, func(control *batch.Control) error { return control.SetWeight(ctx, queue, id, percent) })
}
