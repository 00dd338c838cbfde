package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/batchscripts"
)

const (
	// batchFresh is for how long a batch's state is not read again: a pause takes effect within it.
	batchFresh = 250 * time.Millisecond
	// batchesMax bounds how many batches are known at once.
	batchesMax = 1024
	// pausedWait is how long a task of a paused batch is deferred. It comes back when the
	// batch is resumed.
	pausedWait = time.Hour
	// droppedTTL is how long a task is remembered that was dropped.
	droppedTTL = 5 * time.Minute
)

// batchID names a batch of a queue.
type batchID struct{ queue, id string }

// batches knows the states of the batches whose tasks run here. Safe for concurrent use.
type batches struct {
	*core

	mu    sync.Mutex
	known map[batchID]batchLook

	// dropped has the keys of tasks that did not run because their batch was cancelled,
	// until asynq has deleted them. Some are never deleted, or by another process.
	dropped *ttlMap[string, struct{}]
}

type batchLook struct {
	state batchscripts.State
	at    time.Time
}

// fresh says that a look is still good enough. A pause and a cancel are looked up each time: a
// batch that was paused may go on by now, and one that was cancelled may have been started again.
func (l batchLook) fresh(now time.Time) bool {
	return now.Sub(l.at) < batchFresh && l.state != batchscripts.Paused && l.state != batchscripts.Cancelled
}

func newBatches(c *core) *batches {
	return &batches{core: c, known: make(map[batchID]batchLook), dropped: newTTLMap[string, struct{}](droppedTTL)}
}

// state is what a batch does, "" when there is none. While Redis is away it is what was
// known last.
func (s *batches) state(ctx context.Context, b batchID) batchscripts.State {
	now := time.Now()
	s.mu.Lock()
	look := s.known[b]
	s.mu.Unlock()
	if look.fresh(now) {
		return look.state
	}
	state, err := batchscripts.StateOf(ctx, s.rdb, s.keys(b.queue), b.id)
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

// countEnd counts a task whose end asynq has written, if it is one of a batch. dropped says
// that it did not run. What is not counted here is found by the feeder of the batch.
func (s *batchCounts) countEnd(ctx context.Context, op asynqwire.Op, call asynqwire.Call, dropped func() bool) {
	var outcome batchscripts.Outcome
	switch op {
	case asynqwire.OpDone, asynqwire.OpComplete:
		outcome = batchscripts.OutcomeDone
	case asynqwire.OpArchive:
		outcome = batchscripts.OutcomeFailed
	default:
		return
	}
	id, element, ok := batchscripts.ParseTaskID(call.TaskID)
	if !ok {
		return
	}
	e := ended{batchID{call.Queue, id}, outcome, element}
	if dropped() {
		if op == asynqwire.OpComplete { // first: when the last is counted the batch may be started again
			s.deleteUnrun(call)
		}
		e.outcome = batchscripts.OutcomeDropped // at once: the feeder's sweep takes a task that is gone for done
		s.count(ctx, []ended{e})
		return
	}
	if !s.add(e) {
		s.count(ctx, []ended{e})
	}
}

// deleteUnrun deletes a task with an asynq.Retention that was dropped: asynq keeps it as completed, though it did
// not run, and its element would be refused when the batch is started again.
func (s *batchCounts) deleteUnrun(call asynqwire.Call) {
	if err := asynq.NewInspectorFromRedisClient(s.rdb).DeleteTask(call.Queue, call.TaskID); err != nil {
		s.log.Debug("a task of a cancelled batch is kept as completed", zap.String("task", call.TaskID), zap.Error(err))
	}
}

const (
	// countPause is the pause between two calls, in which ended tasks are gathered.
	countPause = 5 * time.Millisecond
	// countsMost bounds how many wait to be counted; beyond it each is counted by itself.
	countsMost = 10_000
)

// ended is a task of a batch that has ended.
type ended struct {
	batch   batchID
	outcome batchscripts.Outcome
	element string
}

// batchCounts gathers the tasks of batches that have ended: the first is counted at once, and
// those that end meanwhile together. Safe for concurrent use.
type batchCounts struct {
	*core
	bell chan struct{}

	mu      sync.Mutex
	open    bool // run counts what is added
	waiting []ended
}

func newBatchCounts(c *core) *batchCounts {
	return &batchCounts{core: c, bell: make(chan struct{}, 1)}
}

// begin says that from now on run counts.
func (s *batchCounts) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
}

// add leaves a task for run; false when it does not run.
func (s *batchCounts) add(e ended) bool {
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
func (s *batchCounts) take(open bool) []ended {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.waiting
	s.waiting, s.open = nil, open
	return all
}

// run counts what has ended until ctx does, and then what is left.
func (s *batchCounts) run(ctx context.Context) {
	for {
		open := true
		select {
		case <-ctx.Done():
			open = false
		case <-s.bell:
		}
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterTimeout)
		s.count(after, s.take(open))
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
// here is found by the feeder of the batch.
func (s *batchCounts) count(ctx context.Context, all []ended) {
	for len(all) > 0 {
		first := all[0]
		var elements []string
		all = slices.DeleteFunc(all, func(e ended) bool {
			same := e.batch == first.batch && e.outcome == first.outcome && len(elements) < batchscripts.ElementsMax
			if same {
				elements = append(elements, e.element)
			}
			return same
		})
		if _, _, err := batchscripts.Count(ctx, s.rdb, s.keys(first.batch.queue), first.batch.id, first.outcome, elements...); err != nil {
			s.log.Debug("tasks of a batch could not be counted", zap.String("batch", first.batch.id), zap.Error(err))
		}
	}
}
