package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/throttle"
)

const (
	// limitsPoll is how often a pool looks whether the limits in force changed.
	limitsPoll = 900 * time.Millisecond
	// replanPortion bounds one step of planning a queue anew; after each step it
	// rests as long as that took.
	replanPortion = 200
	replanRest    = time.Millisecond // at least
	// replanAgain is how long after a change was seen a queue is planned once more: until
	// then another process may have deferred a task by the old limit.
	replanAgain = 1500 * time.Millisecond
	// claimTTL is how soon another pool goes on where one died.
	claimTTL = 5 * time.Second
	// claimRules bounds how many changes are planned at once.
	claimRules = 1000
)

// limitVersions are the versions of the stored limits that a look found, by rule.
type limitVersions map[string]int64

// limitWatch looks at the limits in force of all rules, in one round trip, and leaves
// what it found for each queue in which something is deferred. While nothing is deferred
// it does not look: an admission reads the limits itself.
type limitWatch struct {
	*core
	wakers map[string]*waker
}

func (l *limitWatch) run(ctx context.Context) {
	every(ctx, limitsPoll, func(time.Time) {
		var plan []*waker
		for _, w := range l.wakers {
			if w.hasDeferred() {
				plan = append(plan, w)
			}
		}
		if len(plan) == 0 {
			return
		}
		seen := l.look(ctx)
		for _, w := range plan {
			w.setVersions(seen)
		}
	})
}

func (l *limitWatch) look(ctx context.Context) limitVersions {
	limiters := l.set.Limiters()
	seen := make(limitVersions, len(limiters))
	for i, f := range throttle.ForWorkers.LimitStatuses(ctx, limiters) {
		rule := limiters[i].Rule()
		switch {
		case f.Err == nil:
			seen[rule] = f.Version
		case errors.Is(f.Err, throttle.ErrStoredLimit):
			l.logFew("stored limit "+rule, func() {
				l.log.Error("the stored limit of a rule can't be read: its tasks wait", zap.String("rule", rule), zap.Error(f.Err))
			})
		}
	}
	return seen
}

// hasDeferred says whether something is deferred in the queue. What another process
// deferred is known within [lookMost].
func (w *waker) hasDeferred() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.anyDeferred
}

// setVersions leaves the newest versions for planLoop.
func (w *waker) setVersions(seen limitVersions) {
	select {
	case <-w.limits: // an older look that nobody took
	default:
	}
	select {
	case w.limits <- seen:
	default: // planLoop has put an unfinished one back; the next look comes soon
	}
}

// planLoop plans the queue anew when the limit of a rule has changed: what is
// deferred comes earlier, or later. Without it tasks wake at their old instants, and are
// deferred to the new ones then.
func (w *waker) planLoop(ctx context.Context) {
	planned := make(limitVersions) // as far as we know
	for {
		select {
		case <-ctx.Done():
			return
		case seen := <-w.limits:
			w.plan(ctx, planned, seen)
		}
	}
}

// plan plans the queue anew for the limits that have changed. When another pool has claimed
// that, it tries again after the next look: the other pool may die.
func (w *waker) plan(ctx context.Context, planned, seen limitVersions) {
	rules := seen.changed(planned)
	if len(rules) == 0 || time.Now().Before(w.planAfter) {
		return
	}
	claimed, open, err := queuescripts.ReplanClaim(ctx, w.rdb, w.keys, w.poolName, claimTTL, rules)
	if err != nil {
		w.logAndPause(ctx, "a changed limit can't be planned", err)
		return
	}
	var changed []queuescripts.RuleVersion
	for i, r := range rules {
		if open[i] == 0 {
			planned[r.Rule] = r.Version
		} else {
			changed = append(changed, r)
		}
	}
	if !claimed {
		return
	}
	if !slices.Equal(changed, w.planning) { // else it is tried again
		w.log.Info("a limit has changed: what waits is planned anew", zap.String("queue", w.queue), zap.Any("rules", changed))
		w.planning = changed
	}
	again := time.Now().Add(replanAgain)
	if !w.walk(ctx, changed) || !w.rest(ctx, time.Until(again), changed) || !w.walk(ctx, changed) {
		if !time.Now().Before(w.planAfter) { // else nobody tries again before the claim has run out
			w.release(ctx)
		}
		return
	}
	if ok, err := queuescripts.ReplanDone(ctx, w.rdb, w.keys, w.poolName, changed); err != nil || !ok {
		return // the next look begins anew, or finds that another has done it
	}
	for _, r := range changed {
		planned[r.Rule] = r.Version
	}
}

// release gives the claim back: another pool need not wait for its end.
func (w *waker) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterTimeout)
	defer cancel()
	_, _ = queuescripts.ReplanDone(ctx, w.rdb, w.keys, w.poolName, nil)
}

// changed are the rules of which another version is planned, or none known.
func (v limitVersions) changed(planned limitVersions) []queuescripts.RuleVersion {
	var out []queuescripts.RuleVersion
	for rule, version := range v {
		if old, known := planned[rule]; (!known || old != version) && len(out) < claimRules {
			out = append(out, queuescripts.RuleVersion{Rule: rule, Version: version})
		}
	}
	slices.SortFunc(out, func(a, b queuescripts.RuleVersion) int { return strings.Compare(a.Rule, b.Rule) })
	return out
}

// walk goes once through all deferred tasks, in portions and in the order of their instants.
// It returns false when it did not come to the end: the claim is lost, Redis is away, or a
// limit has changed again. It returns false at the end, too, when the master of some tasks' keys did not answer: their
// old instants can be a day away, and nobody else would move them.
func (w *waker) walk(ctx context.Context, rules []queuescripts.RuleVersion) bool {
	var from, last time.Time
	var unanswered error
	for skip := 0; ; {
		began := time.Now()
		claimed, _, err := queuescripts.ReplanClaim(ctx, w.rdb, w.keys, w.poolName, claimTTL, rules)
		if err != nil || !claimed {
			return false
		}
		r, err := queuescripts.ScanDeferred(ctx, w.rdb, w.keys, from, skip, replanPortion)
		if err != nil {
			w.logAndPause(ctx, "the due index can't be read", err)
			return false
		}
		if last.IsZero() {
			last = r.Last // what is behind it was moved there, to its new instant
		}
		if len(r.Tasks) == 0 || r.Tasks[0].At.After(last) {
			if unanswered != nil {
				w.logFew("replan", func() { w.log.Warn("the bookings of some deferred tasks can't be read", zap.Error(unanswered)) })
				w.planAfter = time.Now().Add(claimTTL)
			}
			return unanswered == nil
		}
		moved, err := w.replan(ctx, r, rules)
		switch {
		case isUnanswered(err):
			unanswered = err
		case err != nil:
			w.logAndPause(ctx, "deferred tasks can't be re-timed", err)
			return false
		}
		for _, t := range r.Tasks {
			if !t.At.Equal(from) {
				from, skip = t.At, 0
			}
			if !moved[t.ID] {
				skip++ // the next portion begins with this instant, behind this task
			}
		}
		if !w.rest(ctx, max(replanRest, time.Since(began)), rules) {
			return false
		}
	}
}

// rest waits d between two steps; false when a limit has changed again.
func (w *waker) rest(ctx context.Context, d time.Duration, rules []queuescripts.RuleVersion) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
			return true
		case seen := <-w.limits:
			again := slices.ContainsFunc(rules, func(r queuescripts.RuleVersion) bool {
				version, known := seen[r.Rule]
				return known && version != r.Version
			})
			if again {
				w.setVersions(seen)
				return false
			}
		}
	}
}

// isUnanswered says that Redis did not say how a booking stands. One that it refuses to read is no such error: it would refuse again.
func isUnanswered(err error) bool {
	return errors.Is(err, throttle.ErrUnavailable) && !throttle.ForWorkers.Answered(err)
}

// replan moves the tasks of one portion that wait under a changed rule to
// their new instants, and returns who moved. After an error that [isUnanswered] the others have moved.
func (w *waker) replan(ctx context.Context, r queuescripts.ScanDeferredReply, rules []queuescripts.RuleVersion) (moved map[string]bool, err error) {
	var bookings []throttle.BookingRef
	var tasks []dueTask
	for _, d := range r.Tasks {
		t := dueTask{DueTask: d}
		t.record, t.known = queuescripts.ParseWaitRecord(d.Record)
		p, ok := w.bookingOf(t)
		if ok && slices.ContainsFunc(rules, func(r queuescripts.RuleVersion) bool { return t.record.Booking.Has(r.Rule) }) {
			tasks = append(tasks, t)
			bookings = append(bookings, p)
		}
	}
	var retimings []queuescripts.Retiming
	var rule []string
	var was []time.Time
	for n, now := range throttle.ForWorkers.Refresh(ctx, w.rdb, bookings) {
		t := tasks[n]
		w.promotions.add(now.Promoted...)
		at, in := now.At, now.At.Sub(now.Now)
		late := now.Known && !t.record.Deadline.IsZero() && in > time.Until(t.record.Deadline)
		switch {
		case late && w.forLease(now.Rule, in): // it may come earlier, and asks once more before its deadline
			continue
		case errors.Is(now.Err, throttle.ErrExceedsLimit), late:
			at, in = r.Now, 0 // its admission fails it
		case isUnanswered(now.Err):
			err = now.Err
			continue
		case now.Err != nil || !now.Known:
			continue
		}
		if at.Sub(t.At).Abs() > moveLeast {
			retimings = append(retimings, queuescripts.Retiming{ID: t.ID, At: at, In: in, Any: w.forLease(now.Rule, in), Record: t.Record,
				Reason: queuescripts.WaitReasonOf(queuescripts.CauseChange, t.record.Booking, now.Rule)})
			rule, was = append(rule, now.Rule), append(was, t.At)
		}
	}
	if len(retimings) == 0 {
		return nil, err
	}
	codes, failed := queuescripts.Retime(ctx, w.rdb, w.keys, retimings)
	if failed != nil {
		return nil, failed
	}
	moved = make(map[string]bool)
	for n, code := range codes {
		if code != queuescripts.Retimed {
			continue // it is not deferred any more
		}
		moved[retimings[n].ID] = true
		w.moved(ctx, retimings[n], rule[n], was[n])
	}
	w.mu.Lock()
	w.adopts = time.Now().Add(lookMost) // by then the pools that deferred them have looked
	w.mu.Unlock()
	w.ring()
	return moved, err
}
