package worker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

// check asks for the current instants of what is due and may have moved, re-times what
// has, and returns what is to be woken.
func (w *waker) check(ctx context.Context, ready []dueTask, lead time.Duration, now time.Time) []dueTask {
	index, places := w.toRecheck(ready, now)
	w.a.counters.wakeChecks.Add(int64(len(places)))
	var moved []luascripts.Retiming
	var from []int // their indices in ready
	var rules []string
	var waits []time.Duration
	order := make([]instant, len(ready))
	for i, t := range ready {
		order[i] = instant{i, t.At, 0}
	}
	for n, now := range throttle.Refresh(ctx, w.a.rdb, places) {
		t := ready[index[n]]
		w.a.hint(now.Promoted...)
		if now.Known {
			order[index[n]] = instant{index[n], now.At, now.Before}
		}
		wait := now.At.Sub(now.Now)
		late := !t.place.Deadline.IsZero() && wait > time.Until(t.place.Deadline)
		// a booking that is gone, or that comes too late: the task has to hear it
		if now.Err != nil || !now.Known || late || wait <= lead+moveLeast {
			if now.Known {
				w.a.trust.confirm(places[n])
			}
			continue
		}
		w.a.trust.invalidate(places[n].Policy, places[n].IDs, now.Rule)
		anys := t.Pool == luascripts.PoolMark{} // it is ours by this look alone
		moved = append(moved, luascripts.Retiming{ID: t.ID, At: now.At, Any: anys || w.a.forLease(now.Rule, wait), For: t.For})
		from = append(from, index[n])
		rules = append(rules, now.Rule)
		waits = append(waits, wait)
	}
	moves := w.retime(ctx, ready, moved, from, rules, waits)
	slices.SortStableFunc(order, func(a, b instant) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.before, b.before))
	})
	wake := ready[:0:0]
	for _, o := range order {
		if !moves[o.index] {
			wake = append(wake, ready[o.index])
		}
	}
	return wake
}

// instant orders due tasks: jobs of one key may have the same instant, and go
// in the order of their line.
type instant struct {
	index  int
	at     time.Time
	before int
}

// retime moves bookings to their new instants, and answers which of the ready
// tasks are not to be woken now. One that is not deferred any more stays for
// wake.lua, which clears its entry.
func (w *waker) retime(ctx context.Context, ready []dueTask, moved []luascripts.Retiming, from []int, rules []string, waits []time.Duration) map[int]bool {
	moves := make(map[int]bool)
	if len(moved) == 0 {
		return moves
	}
	codes, err := luascripts.Retime(ctx, w.a.rdb, w.keys, false, moved)
	if err != nil {
		w.a.failed(ctx, "due tasks can't be re-timed", err)
	}
	for n, code := range codes {
		if err == nil && code == 0 {
			continue
		}
		moves[from[n]] = true
		if err == nil {
			w.moved(moved[n], rules[n], ready[from[n]].At)
			w.expect(waits[n])
		}
	}
	return moves
}

// moved notes that a task waits until another instant than it was told.
func (w *waker) moved(r luascripts.Retiming, rule string, from time.Time) {
	w.a.counters.moved.Add(1)
	w.a.counters.rules.add(rule, 0, r.At.Sub(from))
	w.a.observe(Event{Kind: EventMoved, Queue: w.queue, Task: r.ID, Rule: rule, At: r.At})
}

// wake moves tasks to the head of pending and lets servers fetch them. It answers
// what became of each, nothing when Redis did not answer, and how many were woken.
func (w *waker) wake(ctx context.Context, tasks []dueTask, began time.Time) (codes []int64, woken int) {
	if len(tasks) == 0 {
		return nil, 0
	}
	due := make([]luascripts.DueTask, len(tasks))
	free := int(w.a.workers.Load() - w.a.running.Load())
	w.mu.Lock()
	scarce := free < len(tasks) || w.blocked // or more are due than there is room for
	for i, t := range tasks {
		due[i] = t.DueTask
		w.onWay[t.ID] = began // before they can arrive; the look is part of the way
	}
	w.mu.Unlock()
	codes, err := luascripts.Wake(ctx, w.a.rdb, w.keys, due, time.Now(), scarce)
	w.mu.Lock()
	for i := range due {
		if err == nil && codes[i] == luascripts.Woken {
			woken++
			continue
		}
		delete(w.onWay, due[i].ID)
	}
	w.mu.Unlock()
	if err != nil {
		w.a.failed(ctx, "due tasks can't be woken", err)
		return nil, 0
	}
	w.a.counters.wakes.Add(int64(woken))
	w.a.ring(woken)
	if w.a.cfg.Observer != nil {
		for i, code := range codes {
			if code == luascripts.Woken {
				w.a.observe(Event{Kind: EventWoken, Queue: w.queue, Task: due[i].ID, Rule: tasks[i].place.Rules.Policy(), At: tasks[i].At})
			}
		}
	}
	return codes, woken
}

// wakeOffered wakes those to whom a lease was offered without another look at what is
// due: until they have it nobody does. Who could be woken is taken out of turns; the
// others are re-timed like everybody.
func (w *waker) wakeOffered(ctx context.Context, turns map[string]throttle.Promotion) {
	var tasks []dueTask
	for id, t := range turns {
		if t.Offered {
			tasks = append(tasks, dueTask{DueTask: luascripts.DueTask{ID: id, At: t.At}})
		}
	}
	if len(tasks) == 0 {
		return
	}
	began := time.Now()
	if room, _ := w.room(began, len(tasks)); room < len(tasks) {
		tasks = tasks[:room]
	}
	codes, _ := w.wake(ctx, tasks, began)
	for i, code := range codes {
		if code == luascripts.Woken {
			delete(turns, tasks[i].ID)
		}
	}
}

// placeOf is the booking of a deferred task, when it has one and its rules are known.
func (w *waker) placeOf(t dueTask) (throttle.BookingRef, bool) {
	p := w.a.policyOf(t.place.Rules)
	if !t.known || p == nil {
		return throttle.BookingRef{}, false
	}
	ids, costs, ok := t.place.Rules.Read()
	return throttle.BookingRef{Policy: p, IDs: ids, Costs: costs, Job: luascripts.JobID(w.queue, t.ID)}, ok
}

// giveUp frees the places of tasks that somebody ended while they waited.
func (w *waker) giveUp(ctx context.Context, tasks []dueTask) {
	for _, t := range tasks {
		p, ok := w.placeOf(t)
		if !ok {
			continue
		}
		turns, err := p.Leave(ctx)
		if err != nil {
			w.a.failed(ctx, "a place in a line can't be given up", err)
			return
		}
		w.a.hint(turns...)
	}
}
