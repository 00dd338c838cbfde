package worker

import (
	"slices"
	"sync"
	"time"
)

const (
	leadDefault = 15 * time.Millisecond
	leadMin     = 3 * time.Millisecond
	leadWindow  = 128 // wake-ups that are looked at
	leadLeast   = 32  // wake-ups before the default is left
)

// lead is how long before its instant a task is woken: as long as it takes from
// the wake-up until the task stands before its rule, in 99 of 100 cases. Later,
// and a permit's time would be lost for good; earlier than InlineWait, and the
// task would be sent away once more.
type lead struct {
	most time.Duration // four fifths of InlineWait

	mu    sync.Mutex
	last  [leadWindow]time.Duration
	count int
	now   time.Duration
}

func newLead(inline time.Duration) *lead {
	most := max(0, inline) * 4 / 5
	return &lead{most: most, now: min(leadDefault, most)}
}

// took notes how long one wake-up took.
func (l *lead) took(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last[l.count%leadWindow] = d
	l.count++
	if l.count < leadLeast || l.count%(leadLeast/2) != 0 {
		return
	}
	seen := slices.Clone(l.last[:min(l.count, leadWindow)])
	slices.Sort(seen)
	l.now = min(max(quantile(seen, 0.99)+time.Millisecond, leadMin), l.most)
}

func (l *lead) get() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}
