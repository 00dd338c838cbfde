package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/luascripts"
)

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
