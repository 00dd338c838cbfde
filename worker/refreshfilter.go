package worker

import (
	"slices"
	"sync"
	"time"

	"github.com/headwayq/headway/throttle"
)

const (
	// confirmAfter is how many bookings in a row have to stay where they were before the
	// next ones of that policy, or on that key, are woken without a check.
	confirmAfter = 64
	// doubtsMax bounds the keys that are remembered because a booking there moved; beyond
	// it all are checked anew.
	doubtsMax = 4096
	// lateAfter is how late a task has to be to be checked in any case. Pools that keep up
	// are never so far behind.
	lateAfter = 500 * time.Millisecond
)

// refreshFilter skips the check before a wake-up for bookings that rarely move: a check
// costs a call to Redis, and a task that is woken in vain costs an admission. After a
// booking moves, its policy and its key are checked until [confirmAfter] bookings in a row
// have not moved. It is safe for concurrent use.
type refreshFilter struct {
	mu     sync.Mutex
	stayed map[string]int  // by policy, up to confirmAfter
	doubts map[lineKey]int // how many are yet to stay there
}

// lineKey is a line: of a rule, or of a policy by its narrowest key.
type lineKey struct{ name, id string }

func newRefreshFilter() *refreshFilter {
	return &refreshFilter{stayed: make(map[string]int), doubts: make(map[lineKey]int)}
}

// isConfirmed says that a booking has not moved, as far as can be said without a call. A
// booking that waits for a lease moves whenever the lease is renewed, so it never is.
func (f *refreshFilter) isConfirmed(p throttle.BookingRef) bool {
	rules := p.Policy.Rules()
	if slices.ContainsFunc(rules, func(l *throttle.Limiter) bool { return throttle.ForWorkers.LimitLastKnown(l).IsConcurrent() }) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stayed[p.Policy.String()] < confirmAfter {
		return false
	}
	if len(f.doubts) == 0 {
		return true
	}
	for i, l := range rules {
		if f.doubts[lineKey{l.Rule(), p.IDs[i]}] > 0 {
			return false
		}
	}
	return true
}

// confirm notes that a booking need not have been asked about: its task is woken all the same. The booking was
// where it was promised, or had moved behind the task's deadline, so that its admission refuses the task.
func (f *refreshFilter) confirm(p throttle.BookingRef) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := p.Policy.String()
	f.stayed[name] = min(f.stayed[name]+1, confirmAfter)
	if len(f.doubts) == 0 {
		return
	}
	for i, l := range p.Policy.Rules() {
		key := lineKey{l.Rule(), p.IDs[i]}
		if f.doubts[key]--; f.doubts[key] <= 0 {
			delete(f.doubts, key)
		}
	}
}

// invalidate notes that a rule moved a booking to a later instant. ids are its keys, by rule.
func (f *refreshFilter) invalidate(p *throttle.Policy, ids []string, rule string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stayed[p.String()] = 0
	if len(f.doubts) >= doubtsMax {
		clear(f.doubts)
		clear(f.stayed)
	}
	for i, l := range p.Rules() {
		if l.Rule() == rule {
			f.doubts[lineKey{rule, ids[i]}] = confirmAfter
		}
	}
}

// toRefresh returns the indices and the bookings of the tasks that are to be checked before
// they are woken. Where several tasks of one narrowest key have the same instant, all of
// that key are checked: the answers put them in the order of their line. Late tasks are
// checked, too.
func (w *waker) toRefresh(ready []dueTask, now time.Time) (index []int, bookings []throttle.BookingRef) {
	type at struct {
		key lineKey
		at  time.Time
	}
	seen, tied := make(map[at]bool, len(ready)), make(map[lineKey]bool)
	all, keys := make([]throttle.BookingRef, len(ready)), make([]lineKey, len(ready))
	for i, t := range ready {
		var ok bool
		if all[i], ok = w.bookingOf(t); !ok {
			continue
		}
		keys[i] = lineKey{t.record.Booking.Policy(), all[i].IDs[0]}
		when := at{keys[i], t.At}
		tied[keys[i]] = tied[keys[i]] || seen[when]
		seen[when] = true
	}
	for i, p := range all {
		if p.Policy != nil && (tied[keys[i]] || now.Sub(ready[i].At) > lateAfter || !w.refreshes.isConfirmed(p)) {
			index, bookings = append(index, i), append(bookings, p)
		}
	}
	return index, bookings
}
