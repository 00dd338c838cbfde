package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// batchFresh is how old what is known of a batch may be: a pause holds within it.
	batchFresh = 250 * time.Millisecond
	// batchesMax bounds how many batches are known at once.
	batchesMax = 1024
	// pausedWait is how long a task of a paused batch stays away; resuming brings it
	// back.
	pausedWait = time.Hour
	// droppedTTL is how long a task is remembered that was dropped.
	droppedTTL = 5 * time.Minute
)

// batchID names a batch of a queue.
type batchID struct{ queue, id string }

// batches knows what the batches do whose tasks come here. Safe for concurrent use.
type batches struct {
	mu    sync.Mutex
	known map[batchID]batchLook

	// dropped has the keys of tasks that did not run because their batch was cancelled,
	// until asynq has deleted them. Some are never deleted, or by another process.
	dropped *ttlMap[string, struct{}]
}

type batchLook struct {
	state luascripts.BatchState
	at    time.Time
}

func newBatches() *batches {
	return &batches{known: make(map[batchID]batchLook), dropped: newTTLMap[string, struct{}](droppedTTL)}
}

// stateOf is what a batch does, "" when there is none; while Redis is away what was known
// last.
func (a *Adapter) stateOf(ctx context.Context, b batchID) luascripts.BatchState {
	s := a.batches
	now := time.Now()
	s.mu.Lock()
	look := s.known[b]
	s.mu.Unlock()
	if now.Sub(look.at) < batchFresh && look.state != luascripts.BatchCancelled { // what was dropped is lost if it was started again
		return look.state
	}
	state, err := luascripts.StateOfBatch(ctx, a.rdb, a.keys(b.queue), b.id)
	if err != nil {
		return look.state
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= batchesMax {
		clear(s.known)
	}
	s.known[b] = batchLook{state, now}
	return state
}

// errPaused is why a task of a paused batch is put away.
type errPaused struct{}

func (errPaused) Error() string { return "worker: its batch is paused" }

// heldBack says that a task does not run because of what its batch does: err puts it away
// until the batch goes on, and none ends it, for the batch was cancelled. Its places are
// given up.
func (t *attempt) heldBack(ctx context.Context, task *asynq.Task) (back bool, err error) {
	id, _, ok := luascripts.ParseBatchTaskID(t.taskID)
	if !ok {
		return false, nil
	}
	switch t.a.stateOf(ctx, batchID{t.queue, id}) {
	case luascripts.BatchPaused:
		if t.mustStay() {
			return false, nil // an asynq that we do not know would archive it
		}
		t.leavePlaces(ctx, task)
		away := luascripts.BookingRef{Deadline: t.deadline}
		return true, t.deferTo(deferral{wait: t.awayFor(), place: away, cause: errPaused{}}, held{})
	case luascripts.BatchCancelled:
		t.leavePlaces(ctx, task)
		t.a.batches.dropped.put(t.a.keys(t.queue).Task(t.taskID), struct{}{}, time.Now())
		return true, nil
	}
	return false, nil
}

// awayFor is how long a task of a paused batch stays away: one with a deadline hears of
// that.
func (t *attempt) awayFor() time.Duration {
	if t.deadline.IsZero() {
		return pausedWait
	}
	return min(pausedWait, max(0, time.Until(t.deadline))+time.Second)
}

// leavePlaces gives up what a task has in the lines of its policy.
func (t *attempt) leavePlaces(ctx context.Context, task *asynq.Task) {
	p, ok := t.a.policies[task.Type()]
	if !ok {
		return
	}
	demand, err := p.Demand(task)
	if err != nil {
		return
	}
	after, cancel := t.after(ctx)
	defer cancel()
	if promoted, err := p.decide.Cancel(after, demand.Request(t.job)); err == nil {
		t.a.promote(promoted...)
	} // otherwise they fall out of their lines
}

// countBatch counts a task of a batch that has ended. What is not counted here is found
// by who feeds the batch.
func (c *client) countBatch(ctx context.Context, op asynqwire.Op, call asynqwire.Call) {
	var outcome luascripts.Outcome
	switch op {
	case asynqwire.OpDone, asynqwire.OpComplete:
		outcome = luascripts.OutcomeDone
	case asynqwire.OpArchive:
		outcome = luascripts.OutcomeFailed
	default:
		return
	}
	id, element, ok := luascripts.ParseBatchTaskID(call.TaskID)
	if !ok {
		return
	}
	e := ended{batchID{call.Queue, id}, outcome, element}
	if _, dropped := c.a.batches.dropped.take(call.TaskKey, time.Now()); dropped {
		e.outcome = luascripts.OutcomeDropped // at once: the feeder's sweep takes who is gone for done
		c.a.count(ctx, []ended{e})
		return
	}
	if !c.a.counts.add(e) {
		c.a.count(ctx, []ended{e})
	}
}

const (
	// countPause is how long after one call what has ended is gathered for the next.
	countPause = 5 * time.Millisecond
	// countsMost bounds how many wait to be counted; beyond it each is counted by itself.
	countsMost = 10_000
)

// ended is a task of a batch that has ended.
type ended struct {
	batch   batchID
	outcome luascripts.Outcome
	element string
}

// counts gathers the tasks of batches that have ended: the first is counted at once, and
// those that end meanwhile together. Safe for concurrent use.
type counts struct {
	bell chan struct{}

	mu      sync.Mutex
	open    bool // somebody counts what is added
	waiting []ended
}

func newCounts() *counts { return &counts{bell: make(chan struct{}, 1)} }

// begin says that from now on somebody counts.
func (s *counts) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
}

// add gives a task to who counts; false when there is nobody.
func (s *counts) add(e ended) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open || len(s.waiting) >= countsMost {
		return false
	}
	s.waiting = append(s.waiting, e)
	select {
	case s.bell <- struct{}{}:
	default:
	}
	return true
}

// take is all that waits; afterwards more may be added, or not.
func (s *counts) take(open bool) []ended {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.waiting
	s.waiting, s.open = nil, open
	return all
}

// countEnded counts what has ended until ctx does, and then what is left.
func (a *Adapter) countEnded(ctx context.Context) {
	for {
		open := true
		select {
		case <-ctx.Done():
			open = false
		case <-a.counts.bell:
		}
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterTimeout)
		a.count(after, a.counts.take(open))
		cancel()
		if !open {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(countPause):
		}
	}
}

// count counts tasks, those of a batch with one outcome together. What is not counted
// here is found by who feeds the batch.
func (a *Adapter) count(ctx context.Context, all []ended) {
	for len(all) > 0 {
		first := all[0]
		var elements []string
		all = slices.DeleteFunc(all, func(e ended) bool {
			same := e.batch == first.batch && e.outcome == first.outcome && len(elements) < luascripts.BatchMax
			if same {
				elements = append(elements, e.element)
			}
			return same
		})
		if _, _, err := luascripts.BatchCount(ctx, a.rdb, a.keys(first.batch.queue), first.batch.id, first.outcome, elements...); err != nil {
			a.log.Debug("tasks of a batch could not be counted", zap.String("batch", first.batch.id), zap.Error(err))
		}
	}
}
