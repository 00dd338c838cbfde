package worker

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/throttle"
)

const (
	// wakeBatch bounds how many due tasks one look lists, beside those that can't be woken.
	wakeBatch = 100
	// lookLeast is the least time between two looks while tasks are due, or workers become
	// free, one close behind the other. A look then looks that much further ahead, so that
	// several tasks are woken together.
	lookLeast = 3 * time.Millisecond
	// lookWorker times the number of workers replaces lookLeast where it is shorter: where workers are few.
	lookWorker = 100 * time.Microsecond
	// lookMost is the longest time between two looks at the due index. A task that another
	// process deferred before it died is found within it.
	lookMost = time.Second
	// soonAhead is how far ahead a task is due soon. An idle server may have begun a wait of up to
	// 3/2 idlePollTop before it heard of the task, and a look hears of it up to lookMost late.
	soonAhead = lookMost + 3*idlePollTop/2
	// othersOverdue is how long overdue a task has to be before a pool wakes what another pool
	// should have woken. If all pools checked each task at its instant, the load would be
	// multiplied by their number.
	othersOverdue = 25 * time.Millisecond
	// moveLeast is by how much a booking must have moved for its task to be re-timed.
	moveLeast = time.Millisecond
	// movedFar is how far ahead a booking must have moved to be asked about once more.
	movedFar = 100 * time.Millisecond
	// wokenFor is how long a woken task counts as on its way to this pool while workers are free. It is
	// fetched at once, so if it does not arrive here another pool has taken it.
	wokenFor = 25 * time.Millisecond
	// wokenForBusy is the same while all workers are busy: then the task waits for one of them.
	wokenForBusy = time.Second
	// activeFor is how long after its instant a task may still be running before its due
	// entry is dropped. If it is deferred later, that writes a new entry.
	activeFor   = 2 * time.Second
	activePause = 2 * time.Millisecond // the first; doubled each time
	// notYetPause is the pause after Redis found a hundred woken tasks waiting.
	notYetPause = 100 * time.Millisecond
	// movedPause is the pause between two looks when the first found more tasks than there
	// was room for, and some had moved or were woken by another pool. Without a pause an
	// entry that can't be re-timed would make the waker spin.
	movedPause = 2 * time.Millisecond
)

// waker wakes the deferred tasks of one queue: it sleeps until the first entry
// of the due index is due, checks the bookings of what is due, re-times what
// has moved, and moves the rest to the front of pending, in order, as many as workers
// are free and some more.
type waker struct {
	*core
	promotions *promotions
	refreshes  *refreshFilter
	fetcher    *fetcher

	queue string
	keys  queuescripts.QueueKeys
	bell  chan struct{}

	limits    chan limitVersions         // the newest look at the limits in force
	planning  []queuescripts.RuleVersion // the changes of which the log was told last
	planAfter time.Time                  // a queue of which some bookings could not be read is not planned again before

	mu            sync.Mutex
	next          time.Time            // local: when it will look again
	looking       bool                 // it may have its answer about the due index already
	blocked       bool                 // it waits for a free worker
	onWay         map[string]time.Time // woken, not yet arrived
	pauses        int                  // looks in a row that found an active task
	adopts        time.Time            // local: until then it wakes what others deferred as its own
	anyDeferred   bool                 // something is deferred, as far as is known
	soonUntil     time.Time            // local: until then what is due soon, or was just now, may be woken by any pool
	newlyDeferred bool                 // a task was deferred since the last look began
	dense         bool                 // tasks come due in quick succession
}

func newWaker(c *core, queue string, p *promotions, r *refreshFilter, f *fetcher) *waker {
	return &waker{core: c, promotions: p, refreshes: r, fetcher: f, queue: queue, keys: c.keys(queue), bell: make(chan struct{}, 1),
		limits: make(chan limitVersions, 1), onWay: make(map[string]time.Time)}
}

// expect says that a task is due in d: the next look comes in time for it.
func (w *waker) expect(d time.Duration) {
	now := time.Now()
	at := now.Add(d - w.lead.get())
	w.mu.Lock()
	w.anyDeferred, w.newlyDeferred = true, true
	w.noteDueSoonLocked(now, d)
	early := at.Before(w.next)
	if early {
		w.next = at
	}
	looking := w.looking
	w.mu.Unlock()
	if early && !looking {
		w.ring()
	}
}

// workerFreed says that a worker has become free.
func (w *waker) workerFreed() {
	w.mu.Lock()
	blocked := w.blocked
	w.blocked = false
	w.mu.Unlock()
	if blocked {
		w.ring()
	}
}

// arrived says that a task has reached its admission. It returns when this waker woke it,
// and zero if it did not.
func (w *waker) arrived(id string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.onWay[id]
	delete(w.onWay, id)
	return at
}

func (w *waker) ring() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// roomFor says how many tasks may be woken now by a look that wants to wake so many: as many as workers are
// free, and some that are fetched as soon as the next ones become free, less those on their way. Woken tasks
// go before all others in the queue, so waking more would starve those. There is no room once this pool
// fetches no more: other pools wake what is due.
//
// It has a side effect: it notes whether the waker is blocked, because the room is below want. Then the next worker
// that becomes free rings the waker; without that it looks `again` later.
func (w *waker) roomFor(now time.Time, want int) (room int, again time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock() // over all of it: a worker that becomes free meanwhile finds blocked set
	if !w.fetches() {
		return 0, lookMost
	}
	free := w.load.free()
	again = wokenForBusy
	if free > 0 {
		again = max(wokenFor, 2*w.lead.get())
	}
	for id, at := range w.onWay {
		if now.Sub(at) >= again {
			delete(w.onWay, id)
		}
	}
	room = free + w.load.ahead() - len(w.onWay)
	w.blocked = room < want
	return min(max(0, room), wakeBatch), again
}

func (w *waker) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		w.looking, w.next, w.newlyDeferred = true, time.Now().Add(lookMost), false
		w.mu.Unlock()
		began, wait := w.look(ctx)
		w.mu.Lock()
		if at := began.Add(wait); at.Before(w.next) {
			w.next = at // unless a task that was deferred during the look comes before
		}
		w.looking = false
		t := time.NewTimer(time.Until(w.next))
		w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-w.bell:
			w.restBetweenLooks(ctx, began)
		case <-t.C:
		}
		t.Stop()
	}
}

// restBetweenLooks waits, while tasks come due in quick succession, until lookRest after the last look began.
func (w *waker) restBetweenLooks(ctx context.Context, began time.Time) {
	w.mu.Lock()
	dense := w.dense
	w.mu.Unlock()
	rest := time.Until(began.Add(w.lookRest()))
	if !dense || rest <= 0 {
		return
	}
	t := time.NewTimer(rest)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// look handles what is due. It returns when it began, and how long after that the next look
// is needed. Counted from the beginning, a slow round trip makes the next look too early,
// which costs another look, and never too late.
func (w *waker) look(ctx context.Context) (began time.Time, wait time.Duration) {
	lead := w.lookAhead()
	began = time.Now()
	most, _ := w.roomFor(began, 0) // 0: which tasks are due is read next
	free := max(0, most-w.load.ahead())
	due, err := queuescripts.Due(ctx, w.rdb, w.keys, queuescripts.DueArgs{Lead: lead, Room: most, Free: free, Pool: w.poolMark, Others: w.wakesOthersAfter()})
	if err != nil {
		w.logAndPause(ctx, "the due index can't be read", err)
		return time.Now(), lookMost
	}
	w.sawAnswer(ctx)
	w.found(due)
	wait = lookMost
	if !due.Again.IsZero() {
		wait = min(wait, due.Again.Sub(due.Now))
	}
	b := w.split(due, &wait)
	cleared := len(b.stuck) > 0
	if len(b.ended) > 0 {
		cleared = w.clearEnded(ctx, b.ended, began) || cleared
	}
	for _, t := range b.stuck {
		_ = queuescripts.Forget(ctx, w.rdb, w.keys, t.ID, t.Record)
	}
	if cleared && len(due.Tasks) >= wakeBatch {
		wait = min(wait, movedPause) // they may be all that the look listed, and others are due behind them
	}
	ready := len(b.ready)
	want := ready
	if due.More {
		want++
	}
	want = min(want, wakeBatch)
	room, again := w.roomFor(time.Now(), want)
	if room < want {
		// the others are woken when a worker becomes free here, or by another pool when
		// they are overdue
		b.ready = b.ready[:min(room, ready)]
		wait = again
	} else if due.More {
		wait = 0
	}
	if len(b.ready) > 0 {
		codes, woken := w.wake(ctx, w.refreshDue(ctx, b.ready, lead, due.Now), began)
		if slices.Contains(codes, queuescripts.NotYet) {
			wait = min(wait, notYetPause)
		} else if room < want && woken < room {
			wait = min(wait, movedPause) // tasks that had moved, or that another pool woke, took no room: the next are due now
		}
	}
	return began, w.spaced(max(wait, 0), ready)
}

// lookAhead is how far ahead a look looks.
func (w *waker) lookAhead() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	lead := w.lead.get()
	if w.dense {
		lead = max(lead, min(lead+lookLeast, w.lead.most))
	}
	return lead
}

// lookRest is the least time between two looks that find something. It is shorter for few
// workers, which finish the tasks of one look sooner.
func (w *waker) lookRest() time.Duration {
	return min(lookLeast, time.Duration(w.load.workers.Load())*lookWorker)
}

// spaced is when to look again, at the earliest after lookRest when one look after the
// other finds something.
func (w *waker) spaced(wait time.Duration, ready int) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dense = ready > 0 && (w.blocked || wait < lookLeast)
	if w.dense {
		return max(wait, w.lookRest())
	}
	return wait
}

// wakesOthersAfter is how long after its instant this pool wakes a task that another pool should wake. Just after
// a replan it is negative: then this pool takes the tasks of others for its own.
func (w *waker) wakesOthersAfter() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Now().Before(w.adopts) {
		return -lookMost
	}
	return othersOverdue
}

// found notes whether something is deferred, and whether it is due soon.
func (w *waker) found(due queuescripts.DueReply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	dueNow := len(due.Tasks) > 0 || due.More
	w.anyDeferred = dueNow || !due.Again.IsZero() || w.newlyDeferred
	switch {
	case dueNow:
		w.noteDueSoonLocked(time.Now(), 0)
	case !due.Again.IsZero():
		w.noteDueSoonLocked(time.Now(), due.Again.Sub(due.Now))
	}
}

// noteDueSoonLocked notes a task that is due in d: if that is soon, dueSoon says so until the task has been due for a moment.
func (w *waker) noteDueSoonLocked(now time.Time, d time.Duration) {
	if until := now.Add(d + lookMost); d <= soonAhead && until.After(w.soonUntil) {
		w.soonUntil = until
	}
}

// dueSoon says whether a task may be woken at any moment, here or by another pool.
func (w *waker) dueSoon() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.soonUntil)
}

// dueTask is a due entry with what was stored beside it.
type dueTask struct {
	queuescripts.DueTask
	record queuescripts.WaitRecord
	known  bool // record could be read
}

// dueSet is what one look found.
type dueSet struct {
	ready []dueTask // to check and to wake
	ended []dueTask // deleted, archived or completed by somebody else: only to be cleared away
	stuck []dueTask // running, long after their instant
}

// split splits the due tasks by what is to be done with them, and shortens wait for those that are to be
// looked at again.
func (w *waker) split(due queuescripts.DueReply, wait *time.Duration) dueSet {
	var b dueSet
	active := false
	for _, d := range due.Tasks {
		t := dueTask{DueTask: d}
		t.record, t.known = queuescripts.ParseWaitRecord(d.Record)
		switch d.State {
		case "", "archived", "completed":
			b.ended = append(b.ended, t)
			continue
		case "active": // its deferral is on its way, or it was let in after all
			if due.Now.Sub(d.At) > activeFor {
				b.stuck = append(b.stuck, t)
			} else {
				active = true
			}
			continue
		}
		b.ready = append(b.ready, t)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !active {
		w.pauses = 0
		return b
	}
	*wait = min(*wait, activePause<<min(w.pauses, 9))
	w.pauses++
	return b
}

// refreshDue asks for the current instants of what is due and may have moved, re-times what
// has, and returns what is to be woken.
func (w *waker) refreshDue(ctx context.Context, ready []dueTask, lead time.Duration, now time.Time) []dueTask {
	index, bookings := w.toRefresh(ready, now)
	w.counters.wakeChecks.Add(int64(len(bookings)))
	var moved []move
	order := make([]instant, len(ready))
	for i, t := range ready {
		order[i] = instant{i, t.At, 0}
	}
	for n, status := range throttle.ForWorkers.Refresh(ctx, w.rdb, bookings) {
		t := ready[index[n]]
		w.promotions.add(status.Promoted...)
		if status.Known {
			order[index[n]] = instant{index[n], status.At, status.Permits}
		}
		wait := status.At.Sub(status.Now)
		late := !t.record.Deadline.IsZero() && wait > time.Until(t.record.Deadline)
		// a task whose booking is gone, or comes too late, is woken: its admission handles it
		if status.Err != nil || !status.Known || late || wait <= lead+moveLeast {
			if status.Known {
				w.refreshes.confirm(bookings[n])
			}
			continue
		}
		w.refreshes.invalidate(bookings[n].Policy, bookings[n].IDs, status.Rule)
		anys := t.Pool == queuescripts.PoolMark{} // it belonged to every pool before this look
		moved = append(moved, move{index[n], status.Rule, queuescripts.Retiming{ID: t.ID, At: status.At, In: wait,
			Any: anys || w.forLease(status.Rule, wait), Record: t.Record, Reason: queuescripts.WaitReasonOf(queuescripts.CauseLine, t.record.Booking, status.Rule)}})
	}
	stay := w.retime(ctx, ready, moved)
	w.checkMoved(ctx, ready, moved)
	slices.SortStableFunc(order, func(a, b instant) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.before, b.before))
	})
	wake := ready[:0:0]
	for _, o := range order {
		if !stay[o.index] {
			wake = append(wake, ready[o.index])
		}
	}
	return wake
}

// move is a new instant for a due task.
type move struct {
	index int    // of the task in what the look found
	rule  string // that puts it off
	queuescripts.Retiming
}

// checkMoved asks once more about tasks that were moved far ahead. A promotion that came between
// the check and the move found the old entry, which was earlier, and left it as it was. One that
// comes from now on finds the new entry.
func (w *waker) checkMoved(ctx context.Context, ready []dueTask, moved []move) {
	var tasks []move
	var bookings []throttle.BookingRef
	for _, m := range moved {
		if booking, ok := w.bookingOf(ready[m.index]); ok && m.In > movedFar {
			tasks, bookings = append(tasks, m), append(bookings, booking)
		}
	}
	if len(bookings) == 0 {
		return
	}
	for n, status := range throttle.ForWorkers.Refresh(ctx, w.rdb, bookings) {
		w.promotions.add(status.Promoted...)
		if status.Err == nil && status.Known && tasks[n].At.Sub(status.At) > moveLeast {
			w.promotions.add(throttle.Promotion{Job: bookings[n].Job, At: status.At, Wait: status.At.Sub(status.Now), Booking: bookings[n]})
		}
	}
}

// instant orders due tasks. Jobs of one key may have the same instant; they go in the order
// of their line.
type instant struct {
	index  int
	at     time.Time
	before int
}

// retime moves bookings to their new instants. It returns the indices of the ready tasks
// that must not be woken now. A task that is not deferred any more is not among them:
// wake.lua clears its entry.
func (w *waker) retime(ctx context.Context, ready []dueTask, moved []move) (stay map[int]bool) {
	stay = make(map[int]bool)
	if len(moved) == 0 {
		return stay
	}
	retimings := make([]queuescripts.Retiming, len(moved))
	for n, m := range moved {
		retimings[n] = m.Retiming
	}
	codes, err := queuescripts.Retime(ctx, w.rdb, w.keys, retimings)
	if err != nil {
		w.logAndPause(ctx, "due tasks can't be re-timed", err)
	}
	for n, code := range codes {
		if err == nil && code != queuescripts.Retimed {
			continue
		}
		m := moved[n]
		stay[m.index] = true
		if err == nil {
			w.moved(ctx, m.Retiming, m.rule, ready[m.index].At)
			w.expect(m.In)
		}
	}
	return stay
}

// moved notes that the booking of a task has moved to another instant.
func (w *waker) moved(ctx context.Context, r queuescripts.Retiming, rule string, from time.Time) {
	w.counters.moved.Add(1)
	w.recordWait(rule, r.Record, r.At)
	if tell := w.cfg.Observer.Moved; tell != nil {
		tell(ctx, event.Moved{Task: w.task(r.ID), Rule: rule, At: r.At, Was: from})
	}
}

// wake moves tasks to the front of pending and lets servers fetch them. It returns what
// became of each, or nil when Redis did not answer, and how many were woken.
func (w *waker) wake(ctx context.Context, tasks []dueTask, began time.Time) (codes []int64, woken int) {
	if len(tasks) == 0 {
		return nil, 0
	}
	due := make([]queuescripts.DueTask, len(tasks))
	free := w.load.free()
	w.mu.Lock()
	scarce := free < len(tasks) || w.blocked // more is due than there is room for
	for i, t := range tasks {
		due[i] = t.DueTask
		w.onWay[t.ID] = began // before they can arrive; the look is part of the way
	}
	w.mu.Unlock()
	codes, err := queuescripts.Wake(ctx, w.rdb, w.keys, due, time.Now(), scarce)
	w.mu.Lock()
	for i := range due {
		if err == nil && codes[i] == queuescripts.Woken {
			woken++
			w.waits.woken(w.keys.Task(due[i].ID), time.Now())
			continue
		}
		delete(w.onWay, due[i].ID)
	}
	w.mu.Unlock()
	if err != nil {
		w.logAndPause(ctx, "due tasks can't be woken", err)
		return nil, 0
	}
	w.counters.wakes.Add(int64(woken))
	w.fetcher.fetchSoon(w.queue, woken)
	if tell := w.cfg.Observer.Woken; tell != nil {
		for i, code := range codes {
			if code == queuescripts.Woken {
				tell(ctx, event.Woken{Task: w.task(due[i].ID), Policy: tasks[i].record.Booking.Policy(), At: tasks[i].At})
			}
		}
	}
	return codes, woken
}

// clearEnded clears away what tasks have left that somebody ended while they waited: their due entries, and their
// places in lines. wake.lua wakes none of them, but drops the entries. It says whether Redis has answered that.
func (w *waker) clearEnded(ctx context.Context, ended []dueTask, began time.Time) (answered bool) {
	codes, _ := w.wake(ctx, ended, began)
	w.cancelBookings(ctx, ended)
	return len(codes) > 0
}

// task is a task in events. The waker does not know its type.
func (w *waker) task(id string) event.Task { return event.Task{Queue: w.queue, ID: id} }

// wakeOffered wakes tasks to which a lease is offered, without another look at the due
// index: until such a task comes, the lease is idle. A task that is woken, or gone, is
// taken out of promoted; the others are re-timed like all.
func (w *waker) wakeOffered(ctx context.Context, promoted promotion.Tasks, gone func(p throttle.Promotion, code int64)) {
	var tasks []dueTask
	for id, p := range promoted {
		if p.Offered {
			tasks = append(tasks, dueTask{DueTask: queuescripts.DueTask{ID: id, At: p.At}})
		}
	}
	if len(tasks) == 0 {
		return
	}
	began := time.Now()
	if room, _ := w.roomFor(began, len(tasks)); room < len(tasks) {
		tasks = tasks[:room]
	}
	codes, _ := w.wake(ctx, tasks, began)
	for i, code := range codes {
		p := promoted[tasks[i].ID]
		switch code {
		case queuescripts.Deleted, queuescripts.Ended:
			gone(p, code)
		case queuescripts.Woken:
			w.promoted(ctx, w.queue, tasks[i].ID, p)
		default:
			continue
		}
		delete(promoted, tasks[i].ID)
	}
}

// bookingOf is the booking of a deferred task, when it has one and its rules are known.
func (w *waker) bookingOf(t dueTask) (throttle.BookingRef, bool) {
	b, ok := w.set.Booking(t.record.Booking, luascripts.JobID(w.queue, t.ID))
	return b, ok && t.known
}

// cancelBookings cancels the bookings of tasks that somebody ended while they waited.
func (w *waker) cancelBookings(ctx context.Context, tasks []dueTask) {
	var bookings []throttle.BookingRef
	for _, t := range tasks {
		if p, ok := w.bookingOf(t); ok {
			bookings = append(bookings, p)
		}
	}
	w.promotions.cancelBookings(ctx, bookings)
}

const (
	leadDefault = 15 * time.Millisecond
	leadMin     = 3 * time.Millisecond
	leadWindow  = 128 // wake-ups that are looked at
	leadLeast   = 32  // wake-ups before the default is left
)

// lead is how long before its instant a task is woken: as long as it takes from the wake-up
// until the task reaches its admission, in 99 of 100 cases. Woken later, the task would
// come after its instant, and that time of the permit is lost for good. Woken more than
// InlineWait ahead, the task would be deferred once more.
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
