package throttle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

const (
	// askAhead is how long before its instant a blocked caller asks again: the
	// grant is then spent at the instant itself. Never more than InlineWait:
	// earlier it would only get a booking.
	askAhead = 15 * time.Millisecond
	// askAgainEvery is how often the first caller in a line asks again, at least: another process may
	// have had a caller ahead of it, and that one may have left.
	askAgainEvery = time.Second
	// movingFor is how long the first caller asks more often, after it has moved up.
	movingFor = 5 * time.Second
	// confirmEvery is how often each caller asks, the first or not: Redis may have lost the place of this caller only.
	confirmEvery = 30 * time.Second

	// staleMost is how many grants in a row may come too late to be used. After that a caller pauses before it asks
	// again, and after each further one twice as long: where no answer comes in time, more calls make it worse.
	staleMost     = 3
	stalePauseMin = 50 * time.Millisecond
	stalePauseMax = time.Second
)

// stalePause is how long a caller pauses whose last n grants came too late to be used.
func stalePause(n int) time.Duration {
	if n < staleMost {
		return 0
	}
	return min(stalePauseMin<<min(n-staleMost, 10), stalePauseMax)
}

// waiter is one caller of this process that blocks until its job is granted. It asks,
// sleeps until its instant comes or a script promotes the job, and asks again.
//
// Callers of other processes may leave the line, and nobody tells this process. So the first
// caller in a line of this process asks once a second, and so do those of the same instant. While
// it moves up it asks more often, after half of the time that is left. Then it also wakes the callers
// behind it that may come soon. When it goes, the next caller asks, unless it has just asked. Every
// caller asks at least every 30 s. Scripts promote one job at a time; when one comes forward by more
// than a window, it wakes the callers that were told the same instant.
//
// A caller that asks early takes no grant ahead of its instant. Callers that are woken ask in any order, and a
// grant ahead for one of them would make all that stand before it later.
type waiter struct {
	p        *Policy
	job      string
	promoted chan struct{} // is sent to when a script promotes the job, in the line of any rule
	moved    chan struct{} // another caller sends to it when the line has moved

	until  time.Time     // when the caller gives up, by its MaxWait; zero for never
	told   *Decision     // the last answer that let it wait
	rule   *Limiter      // in whose line the caller waits; nil for none, and for a lease, although the job stands in a line in Redis
	key    string        // of that line
	reason askReason     // for the next question
	took   time.Duration // from the last question to its answer
}

// askReason is why a caller asks.
type askReason int

const (
	askOnTime   askReason = iota // it has just come, or its instant has, or will have before the answer comes
	askEarly                     // its instant is to come: the line has moved or the limits have changed, or it has not asked for long
	askAsFirst                   // as askEarly, and as the first of its line, to see whether a caller of another process before it has gone
	askPromoted                  // a script promoted its job
)

// early says that a caller may not take a grant ahead of its instant, see [waiter].
func (r askReason) early() bool { return r == askEarly || r == askAsFirst }

// newWaiter listens for promotions of the job, until stop.
func newWaiter(p *Policy, job string) *waiter {
	w := &waiter{p: p, job: job, promoted: make(chan struct{}, 1), moved: make(chan struct{}, 1)}
	for _, l := range p.rules {
		l.waiters.add(w)
	}
	return w
}

func (w *waiter) stop() {
	w.leaveLine()
	for _, l := range w.p.rules {
		l.waiters.remove(w.job)
	}
}

// ask asks for the caller, and takes the answer in.
func (w *waiter) ask(f func() (Decision, error)) (Decision, error) {
	began := time.Now()
	d, err := f()
	w.took = time.Since(began)
	w.takeIn(d, err)
	return d, err
}

// takeIn takes the answer to a caller that stands in a line. When it shows that the line has moved,
// others are woken, so that they ask, too: by the first caller those behind it, and by one whose job
// was promoted by more than a window those who were told the same instant. Redis promotes them one
// by one, as each leaves the line. They don't wake others in turn: that would run through the line.
func (w *waiter) takeIn(d Decision, err error) {
	reason := w.reason
	switch reason { // of one answer: a caller whose grant came too late asks again at once, for no such reason
	case askPromoted:
		w.reason = askOnTime
	case askAsFirst:
		w.reason = askEarly
	}
	if w.rule == nil {
		return
	}
	first := w.rule.waiters.isFirst(w.key, w.told.start)
	if err != nil {
		if first && reason == askAsFirst && errors.Is(err, ErrUnavailable) {
			w.rule.waiters.wakeLine(w.key, w.job, time.Time{})
		}
		return
	}
	// By so much the caller has moved up, and those behind it at least as much. A grant comes at
	// its instant at the earliest, and says when it could have come.
	start := d.At
	if d.Granted && !d.From.IsZero() {
		start = d.From
	}
	up := w.told.At.Sub(start)
	if !first {
		if reason == askPromoted && up > w.rule.limit.Window() {
			w.rule.waiters.wakeBeside(w.key, w.job, w.told.At)
		}
		return
	}
	// Redis does not know the place of the first caller: it has probably lost the whole line.
	lost := reason == askAsFirst && d.Promised.IsZero() && d.Fallback == FailClosed && !d.Gated
	if lost || d.Fallback != w.told.Fallback {
		w.rule.waiters.wakeLine(w.key, w.job, time.Time{})
		return
	}
	// Later callers hear of it when they are the first, in time.
	if up > time.Millisecond {
		w.rule.waiters.movedUp(w.key)
	}
	if up > askAhead {
		w.rule.waiters.wakeLine(w.key, w.job, time.Now().Add(up+min(4*up, askAgainEvery)))
	}
}

// standInLine notes in which line the caller waits, and for which instant.
func (w *waiter) standInLine(d Decision) {
	w.told = &d
	var rule *Limiter
	key := ""
	for i, l := range w.p.rules {
		// A job that waits for a gate stands in no line. Callers that wait for a lease all ask: the
		// end of one lease says nothing about the others.
		if l.rule == d.Rule && !d.Gated && !l.limit.IsConcurrent() {
			rule, key = l, d.Request.keyCost(i).Key
		}
	}
	if rule != w.rule || key != w.key {
		w.leaveLine()
		w.rule, w.key = rule, key
	}
	if rule != nil {
		rule.waiters.stand(key, waitingCaller{w.job, d.start, d.At, time.Now(), w.moved})
	}
}

func (w *waiter) leaveLine() {
	if w.rule != nil {
		w.rule.waiters.leave(w.key, w.job)
		w.rule = nil
	}
}

// acquire asks for r as the waiter's job until it is granted, and may be used at once.
func (w *waiter) acquire(ctx context.Context, r Request) (Decision, error) {
	p := w.p
	r.Job = w.job
	began := time.Now()
	end, bounded := began.Add(r.MaxWait), r.MaxWait != 0
	if bounded {
		w.until = end
	}
	if t, ok := ctx.Deadline(); ok && (!bounded || t.Before(end)) {
		end, bounded = t, true
	}
	booked, stale := false, 0
	for {
		r.notAhead = w.reason.early()
		if bounded {
			r.MaxWait = leastWait(time.Until(end))
		}
		r.Token = NewToken()
		d, err := w.ask(func() (Decision, error) { return p.decide(ctx, limitscripts.GrantOrBook, r) })
		if err != nil {
			lost := p.withdrawLost(ctx, r, err)
			if booked && !lost && !errors.Is(err, ErrTooLate) { // a job that is lost or too late has left its lines already
				p.cancelBooking(ctx, r)
			}
			if ctx.Err() != nil {
				return d, context.Cause(ctx)
			}
			return d, err
		}
		r = d.Request
		if !d.Granted {
			booked = true
			if err := w.waitForPlace(ctx, d); err != nil {
				p.withdraw(ctx, r)
				return d, err
			}
			continue
		}
		if err := wait(ctx, d.Wait()); err != nil {
			p.giveBack(ctx, r, noPlace)
			return d, err
		}
		if !d.stale() {
			d.Waited, d.notAhead = time.Since(began), false
			return d, nil
		}
		p.giveBack(ctx, r, firstPlace) // this process stood still, or the answers are slow: the grant is worth nothing now
		stale++
		pause := stalePause(stale)
		if bounded {
			pause = min(pause, time.Until(end))
		}
		if err := wait(ctx, pause); err != nil {
			p.cancelBooking(ctx, r)
			return d, err
		}
	}
}

// waitForPlace waits until the caller has to ask again. Meanwhile it looks for a change
// of the limits, together with all others that wait in this process.
func (w *waiter) waitForPlace(ctx context.Context, d Decision) error {
	w.standInLine(d)
	asked := time.Now()
	told := d.Wait()
	instant := asked.Add(told - min(askAhead, w.p.cfg.InlineWait))
	if !w.until.IsZero() && w.until.Before(instant) { // it waits for a lease, which may end before it is told to
		instant = w.until
	}
	// A gate that is closed does not open earlier, and each who asks counts for its opening.
	shut := d.Gated && openedAt(d.Gates, d.Now).After(d.Now)
	// A lease may end at any moment. So each caller that waits for one asks as often as the first caller of a line does.
	// Callers behind a gate do that too while Redis is away under FailOpen.
	forLease := w.rule == nil && !d.Gated
	check := askAgainEvery
	w.reason = askEarly
	for looked := asked; ; {
		now := time.Now()
		first := forLease
		if w.rule != nil && w.rule.waiters.isFirst(w.key, d.start) {
			first, check = true, w.rule.waiters.checkAfter(w.key, told, w.rule.limit.each())
		}
		if instant.Sub(asked.Add(check)) <= w.took { // the answer would come too late to be of use
			first = false
		}
		switch {
		case !now.Before(instant):
			w.reason = askOnTime
			return wait(ctx, 0)
		case first && now.Sub(asked) >= check:
			w.reason = askAsFirst
			return wait(ctx, 0)
		case !shut && now.Sub(asked) >= confirmEvery:
			return wait(ctx, 0)
		}
		pause := min(limitPoll, instant.Sub(now))
		if first {
			pause = min(pause, check-now.Sub(asked))
		}
		if woken, err := w.sleep(ctx, pause); woken || err != nil {
			if w.reason == askEarly && time.Until(instant) <= w.took {
				w.reason = askOnTime
			}
			return err
		}
		if time.Since(looked) < limitPoll {
			continue
		}
		looked = time.Now()
		if d.Fallback != FailClosed || w.p.fallback.isUnavailable() {
			continue // to look may take as long as Redis hangs
		}
		if in, err := w.p.limitsInForce(ctx, byRequest(&d.Request)); err == nil && !sameLimits(in, d.grant.limits) {
			return nil
		}
	}
}

// sameLimits says whether what is in force is what decided.
func sameLimits(in, decided []limitInForce) bool {
	return slices.EqualFunc(in, decided, func(a, b limitInForce) bool {
		return a.Limit == b.Limit && a.closed.Equal(b.closed)
	})
}

// sleep returns after d, or when the caller is woken to ask.
func (w *waiter) sleep(ctx context.Context, d time.Duration) (woken bool, err error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-w.promoted:
		w.reason = askPromoted
		return true, nil
	case <-w.moved:
		return true, nil
	case <-t.C:
		return false, nil
	}
}

// leastWait keeps a wait that is used up apart from zero, which means any wait.
func leastWait(d time.Duration) time.Duration {
	if d <= 0 {
		return -1
	}
	return d
}

// wait returns nil after d. It returns the cause of ctx when that ends first, or has ended
// already: then nobody wants the grant any more.
func wait(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// hostFrom is the worker that runs the caller's task; nil outside of a worker.
func hostFrom(ctx context.Context) Host {
	h, _ := ctx.Value(hostKey{}).(Host)
	return h
}

// acquireHosted asks for the task of a worker. It does not wait: a refusal becomes a deferral. It asks
// again when the grant came too late to be used, and after a few of these the task is deferred, too. A caller's
// own bound and the task's deadline both hold.
func acquireHosted(ctx context.Context, h Host, p *Policy, r Request) (Decision, error) {
	r.Job = h.Job()
	r.Token = NewToken()
	own := r.MaxWait
	if w := h.MaxWait(); w != 0 && (r.MaxWait == 0 || w < r.MaxWait) {
		r.MaxWait = w
	}
	for stale := 0; ; {
		d, err := h.Ask(ctx, p, r)
		switch {
		case err != nil:
			return d, err
		case !d.Granted:
			if err := p.leaveIfTooLate(ctx, d, own); err != nil {
				return d, err
			}
			return d, h.Defer(ctx, p, d)
		}
		fresh, err := h.Begin(ctx, p, d)
		switch {
		case err != nil:
			return d, err
		case fresh:
			ForWorkers.InTime(p)
			return d, nil
		}
		if stale++; stale >= staleMost {
			if err := h.DeferStale(ctx, p, ForWorkers.Later(p, d)); err != nil {
				return d, err
			}
		}
		r.Token = NewToken()
	}
}

// waiters are the callers of this process that block in Acquire. A caller is woken
// when a script promotes its job. The zero value is ready.
type waiters struct {
	mu      sync.Mutex
	waiting map[string]*waiter      // by job
	lines   map[string]*waitingLine // by key
}

// waitingLine are the callers in the line of a key, in the order of their instants.
type waitingLine struct {
	callers []waitingCaller
	movedUp time.Time // when the first of them was seen to have moved up
}

// waitingCaller is a caller that waits in a line.
type waitingCaller struct {
	job   string
	start time.Time // for which it waits, by the local clock
	at    time.Time // the same by Redis' clock
	asked time.Time
	moved chan struct{}
}

// stand puts a caller into the line of a key, by its instant.
func (w *waiters) stand(key string, s waitingCaller) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.lines[key]
	if of == nil {
		if w.lines == nil {
			w.lines = make(map[string]*waitingLine)
		}
		of = &waitingLine{movedUp: time.Now()} // nothing is known of it yet
		w.lines[key] = of
	}
	line := of.callers
	if i := slices.IndexFunc(line, func(o waitingCaller) bool { return o.job == s.job }); i >= 0 {
		before := i == 0 || !line[i-1].start.After(s.start)
		behind := i == len(line)-1 || !line[i+1].start.Before(s.start)
		if before && behind {
			line[i] = s
			return
		}
		line = slices.Delete(line, i, i+1)
	}
	at, _ := slices.BinarySearchFunc(line, s, func(o, s waitingCaller) int { return o.start.Compare(s.start) })
	of.callers = slices.Insert(line, at, s)
}

// first are the first of a line. Several permits come free at one instant, and who of
// those that got it stands before the others Redis alone knows: all of them are the first.
func (l *waitingLine) first() []waitingCaller {
	if l == nil {
		return nil
	}
	n := 0
	for n < len(l.callers) && l.callers[n].start.Sub(l.callers[0].start) <= askAhead {
		n++
	}
	return l.callers[:n]
}

// isFirst says whether a caller that waits for this instant is among the first.
func (l *waitingLine) isFirst(start time.Time) bool {
	return l != nil && len(l.callers) > 0 && start.Sub(l.callers[0].start) <= askAhead
}

// checkAfter is how long after its last question one of the first asks again, when it was told to
// wait so long. While callers of other processes give up it asks the more often the nearer it
// is: a limit that hands out its permits one by one loses those for which nobody comes in time.
//
// A caller whose wait is shorter than `each`, the time of one permit, has nobody ahead. So none asks more
// often than once in that time, or once a second.
func (l *waitingLine) checkAfter(wait, each time.Duration) time.Duration {
	if l != nil && time.Since(l.movedUp) < movingFor {
		return min(askAgainEvery, max(wait/2, each, askAhead))
	}
	return askAgainEvery
}

// leave takes a caller out of the line of a key. When that was one of the first, the next
// ones may have moved up since they asked, as nobody saw who left between: they ask again.
func (w *waiters) leave(key, job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	isJob := func(s waitingCaller) bool { return s.job == job }
	line := w.lines[key]
	if line == nil {
		return
	}
	first := slices.ContainsFunc(line.first(), isJob)
	line.callers = slices.DeleteFunc(line.callers, isJob)
	if len(line.callers) == 0 {
		delete(w.lines, key)
	}
	if !first {
		return
	}
	for _, s := range line.first() {
		if time.Since(s.asked) > line.checkAfter(s.start.Sub(s.asked), 0) {
			notify(s.moved)
		}
	}
}

// isFirst says whether a caller that waits for an instant is one of the first in the line of a key in
// this process.
func (w *waiters) isFirst(key string, start time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines[key].isFirst(start)
}

func (w *waiters) checkAfter(key string, wait, each time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines[key].checkAfter(wait, each)
}

// movedUp notes that the first caller in the line of a key has moved up.
func (w *waiters) movedUp(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if line := w.lines[key]; line != nil {
		line.movedUp = time.Now()
	}
}

// wakeLine wakes the callers in the line of a key whose instants come until then, or all callers
// when that is zero. It does not wake the job that asks for it.
func (w *waiters) wakeLine(key, but string, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := w.lines[key]
	if line == nil {
		return
	}
	for _, s := range line.callers {
		if !until.IsZero() && s.start.After(until) {
			return
		}
		if s.job != but {
			notify(s.moved)
		}
	}
}

// wakeBeside wakes the callers in the line of a key that wait for about that instant of Redis. It
// does not wake the job that asks for it.
func (w *waiters) wakeBeside(key, but string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := w.lines[key]
	if line == nil {
		return
	}
	for _, s := range line.callers {
		if s.job != but && s.at.Sub(at).Abs() <= askAhead {
			notify(s.moved)
		}
	}
}

func (w *waiters) add(who *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = make(map[string]*waiter)
	}
	w.waiting[who.job] = who
}

func (w *waiters) remove(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, job)
}

func (w *waiters) wake(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if who, ok := w.waiting[job]; ok {
		notify(who.promoted)
	}
}

// wakeAll wakes all of them: the limit has changed.
func (w *waiters) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, who := range w.waiting {
		notify(who.moved)
	}
}

func notify(promoted chan struct{}) {
	select {
	case promoted <- struct{}{}:
	default: // it is ringing already
	}
}
