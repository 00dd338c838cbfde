package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/throttle"
)

// scanPortion is how many deferred tasks a script looks at.
const scanPortion = 1000

// OnKey yields the tasks of a queue that wait and need permits of a rule on a key, whichever
// of their rules holds them up, in the order of their instants. [Inspector.Line] has only
// those that wait for this rule. It reads all that waits on the queue, in portions. After an
// error nothing follows.
func (i *Inspector) OnKey(ctx context.Context, queue, rule, key string) iter.Seq2[Waiting, error] {
	return func(yield func(Waiting, error) bool) {
		for w, err := range i.onKey(ctx, queue, rule, key) {
			if err != nil {
				yield(Waiting{}, err)
				return
			}
			at := Waiting{Queue: queue, ID: w.task.ID, At: w.task.At, Rules: strings.Split(w.rules.Policy(), "+")}
			if !yield(at, nil) {
				return
			}
		}
	}
}

// onKeyTask is a deferred task and in whose lines it stands.
type onKeyTask struct {
	task  luascripts.DueTask
	rules luascripts.BookedRules
}

func (i *Inspector) onKey(ctx context.Context, queue, rule, key string) iter.Seq2[onKeyTask, error] {
	return func(yield func(onKeyTask, error) bool) {
		l, err := i.limiter(rule)
		if err != nil {
			yield(onKeyTask{}, err)
			return
		}
		id, from, skip := l.ID(key), time.Time{}, 0
		for {
			r, err := luascripts.ScanDeferred(ctx, i.rdb, i.keys(queue), from, skip, scanPortion, false)
			if err != nil {
				yield(onKeyTask{}, away("list what waits", err))
				return
			}
			for _, t := range r.Tasks {
				place, _ := luascripts.ParseBookingRef(t.For)
				if onRule(place.Rules, rule, id) && !yield(onKeyTask{t, place.Rules}, nil) {
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
func onRule(booked luascripts.BookedRules, rule, id string) bool {
	ids, _, ok := booked.Read()
	n := slices.Index(strings.Split(booked.Policy(), "+"), rule)
	return ok && n >= 0 && ids[n] == id
}

// Cancel deletes a task that does not run, and gives its places up. One that runs, or is not
// there, is [ErrNotWaiting].
func (i *Inspector) Cancel(ctx context.Context, queue, id string, r Reason) error {
	return i.change(ctx, r, Change{Action: ActionCancel, Queue: queue, Task: id}, func() error {
		f, err := luascripts.GetTask(ctx, i.rdb, i.keys(queue), id)
		if err != nil {
			return away("find a task", err)
		}
		place, _ := luascripts.ParseBookingRef(f.For)
		return i.cancel(ctx, queue, onKeyTask{luascripts.DueTask{ID: id, At: f.At, For: f.For}, place.Rules})
	})
}

// CancelKey deletes all tasks of a queue that [Inspector.OnKey] lists, and gives their places
// up. It returns how many; with an error, how many before it. One that begins to run
// meanwhile is left alone.
func (i *Inspector) CancelKey(ctx context.Context, queue, rule, key string, r Reason) (cancelled int, err error) {
	return i.eachOnKey(ctx, ActionCancel, queue, rule, key, r, func(all []onKeyTask, cancelled func(error) error) error {
		for _, w := range slices.Backward(all) { // from the end of the line: so nobody is promoted who is cancelled next
			if err := cancelled(i.cancel(ctx, queue, w)); err != nil {
				return err
			}
		}
		return nil
	})
}

// cancel deletes a task, and gives its places up.
func (i *Inspector) cancel(ctx context.Context, queue string, w onKeyTask) error {
	err := i.asynq.DeleteTask(queue, w.task.ID)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return fmt.Errorf("%w: it is not there", ErrNotWaiting)
	case err != nil && strings.Contains(err.Error(), "in active state"):
		return fmt.Errorf("%w: it runs", ErrNotWaiting)
	case err != nil:
		return away("delete a task", err)
	}
	// What follows is tidying: a pool that sweeps the queue does the same.
	_, _ = luascripts.Wake(ctx, i.rdb, i.keys(queue), []luascripts.DueTask{w.task}, time.Now(), false)
	if ref, ok := i.ref(queue, w); ok {
		promoted, err := throttle.ForWorkers.Leave(ctx, ref)
		if err == nil {
			promotion.Move(ctx, i.rdb, i.cfg.Prefix, i.set, promoted...)
		}
	}
	return nil
}

// ref is the booking of a task by rules that are known here.
func (i *Inspector) ref(queue string, w onKeyTask) (throttle.BookingRef, bool) {
	policy := i.set.Lookup(w.rules.Policy())
	ids, costs, ok := w.rules.Read()
	return throttle.BookingRef{Policy: policy, IDs: ids, Costs: costs, Job: luascripts.JobID(queue, w.task.ID)}, ok && policy != nil && !i.cfg.PerClient
}

// Front gives a task the first place in the line in which it stands. The others of that line
// come later by its permits. A task without a place is [ErrNotWaiting].
func (i *Inspector) Front(ctx context.Context, queue, id string, r Reason) error {
	return i.change(ctx, r, Change{Action: ActionFront, Queue: queue, Task: id}, func() error {
		f, err := luascripts.GetTask(ctx, i.rdb, i.keys(queue), id)
		if err != nil {
			return away("find a task", err)
		}
		place, _ := luascripts.ParseBookingRef(f.For)
		return i.front(ctx, queue, onKeyTask{luascripts.DueTask{ID: id, At: f.At, For: f.For}, place.Rules})
	})
}

// FrontKey is [Inspector.Front] for all tasks of a queue that [Inspector.OnKey] lists. They
// keep their order among each other. It returns how many; with an error, how many before it.
// It does some 300 tasks a second.
func (i *Inspector) FrontKey(ctx context.Context, queue, rule, key string, r Reason) (moved int, err error) {
	return i.eachOnKey(ctx, ActionFront, queue, rule, key, r, func(all []onKeyTask, moved func(error) error) error {
		// Who goes to the front of a closed line stands behind those who went there before it
		// in the same closing, and else before them: see close.lua.
		var closed, open []onKeyTask
		for _, w := range all {
			ref, ok := i.ref(queue, w)
			if !ok {
				continue
			}
			s, err := throttle.ForWorkers.Lookup(ctx, ref)
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
			if err := moved(i.front(ctx, queue, w)); err != nil {
				return err
			}
		}
		for _, w := range slices.Backward(open) {
			if err := moved(i.front(ctx, queue, w)); err != nil {
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
	ref, ok := i.ref(queue, w)
	if !ok {
		return fmt.Errorf("%w: it has no place in a line that is known here", ErrNotWaiting)
	}
	s, err := throttle.ForWorkers.Lookup(ctx, ref)
	if err != nil {
		return fmt.Errorf("inspect: find the place of a task: %w", err)
	}
	if !s.Known {
		return fmt.Errorf("%w: it has no place in a line", ErrNotWaiting)
	}
	promoted, err := throttle.ForWorkers.First(ctx, ref, s.Rule)
	if err != nil {
		return fmt.Errorf("inspect: move a task to the front: %w", err)
	}
	if s, err = throttle.ForWorkers.Lookup(ctx, ref); err != nil {
		return fmt.Errorf("inspect: find the place of a task: %w", err)
	}
	promoted = append(promoted, throttle.Promotion{Job: ref.Job, At: s.At, Wait: max(0, s.At.Sub(s.Now))})
	promotion.Move(ctx, i.rdb, i.cfg.Prefix, i.set, promoted...)
	return nil
}

// eachOnKey notes a change, lists the tasks on a key, and lets do act on them. What is done
// moves the others, so they are listed before. counted counts a task of which do says that it
// is done, and passes over one that does not wait any more.
func (i *Inspector) eachOnKey(ctx context.Context, what Action, queue, rule, key string, r Reason, do func(all []onKeyTask, counted func(error) error) error) (done int, err error) {
	l, err := i.limiter(rule)
	if err != nil {
		return 0, err
	}
	counted := func(err error) error {
		if err == nil {
			done++
		} else if errors.Is(err, ErrNotWaiting) {
			err = nil
		}
		return err
	}
	err = i.change(ctx, r, Change{Action: what, Rule: rule, Key: l.ID(key), Queue: queue}, func() error {
		var all []onKeyTask
		for w, err := range i.onKey(ctx, queue, rule, key) {
			if err != nil {
				return err
			}
			all = append(all, w)
		}
		return do(all, counted)
	})
	return done, err
}
