package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/bounded"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/throttle"
)

const (
	// While Redis does not answer, the admission is repeated with the same token for so
	// long. Then the task is deferred without a booking.
	askFor = 2 * time.Second
	// On a Cluster one call takes no longer than that, and a bit for each rule: the hash slots are asked one after the other.
	// A master that stands still would keep the worker until all time-outs of the client are over.
	askOnce     = 2 * time.Second
	askOnceRule = time.Second
	askPauseMin = 20 * time.Millisecond
	askPauseMax = 500 * time.Millisecond
	// unbookedWait is how long such a task is deferred at least, and at most twice as long:
	// a random part keeps all from coming back at once.
	unbookedWait = time.Second
	// lastAsk is how long before its deadline a task that waits for a slot asks for the last time.
	lastAsk = time.Second
	// afterTimeout bounds a call that cleans up after an attempt.
	afterTimeout = 3 * time.Second
	// On a Cluster a worker waits for such calls no longer than that in one attempt. When that time is over, it waits for
	// each further call for as long as a server that answers mostly needs.
	afterWait      = 2 * time.Second
	afterWaitLeast = 100 * time.Millisecond
)

// ErrTwice is what a second Acquire of the same rule and key within one attempt
// unwraps to. Deferring it would give the first permits back, for which the
// task would then wait again, for ever: ask for all of them at once.
var ErrTwice = errors.New("worker: this attempt holds permits of the same rule and key already")

// attempt is what happens to one delivery of a task by asynq, from [Adapter.Handler] to its end. It is the [throttle.Host] of its
// handler, which may call it from several goroutines.
type attempt struct {
	a        *Adapter
	queue    string
	taskType string
	taskID   string
	job      string
	unique   string     // the key of the task's unique lock; empty for none
	lastTry  bool       // asynq would archive the task if this attempt failed
	retried  int        // failures before this attempt
	deadline time.Time  // of the task, not of the attempt; zero for none
	woken    time.Time  // when our waker woke it; zero if it did not
	policy   taskPolicy // of the task's type; zero for none

	mu            sync.Mutex
	cancelHandler context.CancelCauseFunc // ends the handler's context
	leaseLost     bool
	forced        bool // an operator lets it run without its permits
	over          bool // its handler has returned: it holds nothing any more, and gets nothing
	grants        []decided
	toldCharged   map[string]int // by rule that was adjusted: what the observer knows that it is charged
	ownDeferrals  []attemptDeferral
	stayed        int           // times that a Retry-After was waited for in the worker slot
	waitedInVain  time.Duration // for calls that clean up, see cleanUp
}

// decided is a decision of the attempt: a grant, with its charge, which Adjust may correct, or what is behind a deferral.
type decided struct {
	policy *throttle.Policy
	throttle.Decision
	release func(context.Context) // ends the leases, once; what Redis does not answer is repeated in the background
	charge  *throttle.Charge
}

// attemptDeferral is a deferral of the attempt, with the decision behind it, if there was one.
type attemptDeferral struct {
	decided
	*deferral
}

// Job implements [throttle.Host].
func (t *attempt) Job() string { return t.job }

// MaxWait implements [throttle.Host]: a task with a deadline waits no longer.
func (t *attempt) MaxWait() time.Duration {
	if t.deadline.IsZero() {
		return 0
	}
	if left := time.Until(t.deadline); left > 0 {
		return left
	}
	return -1
}

// Ask implements [throttle.Host]. It asks again while Redis does not answer, with the same
// token, so nothing is charged twice: with another one only when Redis says that it took the call back. When Redis stays away the
// error is a deferral: that is no failure of the task either.
func (t *attempt) Ask(ctx context.Context, p *throttle.Policy, r throttle.Request) (throttle.Decision, error) {
	if t.isOver() {
		return throttle.Decision{}, errOver
	}
	if t.hasGrantOf(p, r) {
		return throttle.Decision{}, permanentError{fmt.Errorf("%w: rule %v", ErrTwice, p)}
	}
	t.a.set.Learn(p)
	ctx = t.a.lateGiveBacks.with(ctx)
	began, bound, pause, answerLost := time.Now(), r.MaxWait, askPauseMin, false
	for {
		if bound > 0 {
			r.MaxWait = max(bound-time.Since(began), 1) // 0 would mean no bound
		}
		d, err := t.redeem(ctx, p, r)
		if err != nil && (ctx.Err() != nil || errors.Is(err, throttle.ErrUnavailable)) {
			answerLost = answerLost || !throttle.ForWorkers.Answered(err)
			if ctx.Err() != nil || !t.mustStay() && (throttle.ForWorkers.Answered(err) || t.a.stopped() || time.Since(began) > askFor) {
				return d, t.unanswered(ctx, p, r, err, answerLost)
			}
			_ = t.waitFor(ctx, pause)
			pause = min(2*pause, askPauseMax)
			continue
		}
		if errors.Is(err, throttle.ErrWithdrawn) { // one hash slot of a Cluster took the call back, when another refused it or did not answer
			if answerLost { // there it may be charged
				t.a.lateGiveBacks.refund(p, r)
			}
			r.Token, answerLost = throttle.NewToken(), false
			continue
		}
		t.a.counters.admissions.Add(1)
		if isUnreadable(err) && t.mustStay() && ctx.Err() == nil {
			t.logUnanswered(p, err)
			_ = t.waitFor(ctx, unbookedWait)
			continue
		}
		if isUnreadable(err) {
			return d, t.unanswered(ctx, p, r, err, answerLost)
		}
		if t.isPermanent(err) {
			return d, permanentError{err}
		}
		if err != nil {
			return d, err
		}
		t.noteLead()
		if d.Granted {
			return d, nil
		}
		t.a.counters.booked.Add(1)
		wait := d.Wait() - t.a.lead.get()
		if left := time.Until(t.deadline); t.waitsBeyondDeadline(d) {
			if left <= lastAsk+t.a.lead.get() { // it may have been woken so much earlier
				t.cancelBooking(ctx, decided{policy: p, Decision: d})
				return d, permanentError{&throttle.TooLateError{Rule: d.Rule, At: d.At, Wait: d.Wait(), MaxWait: left}}
			}
			wait = min(wait, left-lastAsk)
		}
		if !t.mustStay() {
			return d, nil
		}
		if bound > 0 && d.Wait() > bound-time.Since(began) { // for a slot: nobody tells this worker that it is free
			wait = min(wait, lastAsk)
		}
		if t.waitFor(ctx, wait) != nil {
			return d, context.Cause(ctx) // asynq has given this attempt up
		}
	}
}

// redeem asks once, and passes on who may come earlier for that, also where one hash slot of several failed. A call that is given up may be
// under way still: what it gets is given back by its token, as that of any call whose answer is lost. The client's own bounds don't help:
// go-redis heeds no deadline of a context while it reads an answer.
func (t *attempt) redeem(ctx context.Context, p *throttle.Policy, r throttle.Request) (throttle.Decision, error) {
	redeem := func(ctx context.Context) (throttle.Decision, error) {
		d, err := p.Redeem(ctx, r)
		t.a.promotions.add(d.Promoted...)
		return d, err
	}
	if !t.a.onCluster() {
		return redeem(ctx)
	}
	type answer struct {
		throttle.Decision
		err error
	}
	waiting, end := context.WithTimeout(context.WithoutCancel(ctx), askOnce+time.Duration(len(p.Rules()))*askOnceRule)
	defer end()
	asking, giveUp := context.WithCancelCause(ctx)
	defer giveUp(throttle.ErrWithdrawn) // a call that goes on decides nothing without Redis, and counts for nothing
	got, inTime := bounded.Call(waiting, func() (a answer) {
		a.Decision, a.err = redeem(asking)
		return a
	})
	if inTime {
		return got.Decision, got.err
	}
	d, err := throttle.ForWorkers.WithoutAnswer(ctx, p, r)
	if errors.Is(err, throttle.ErrUnavailable) { // nobody may decide without Redis
		return throttle.Decision{Request: r}, errSlowAnswer
	}
	t.a.lateGiveBacks.refund(p, r)
	return d, err
}

// errSlowAnswer is the error of an admission that takes too long, and of a call that cleans up.
var errSlowAnswer = fmt.Errorf("worker: the rules did not answer in time: %w", throttle.ErrUnavailable)

// cleanUp makes a call that must be made, whatever becomes of the attempt. On a Cluster its worker waits for that no longer than afterWait, and
// the call goes on in the background. later is called once if the call fails or takes too long: it has the call repeated. It may be nil.
func (t *attempt) cleanUp(ctx context.Context, call func(context.Context) error, later func()) error {
	if later == nil {
		later = func() {}
	}
	later = sync.OnceFunc(later)
	after, cancel := t.after(ctx)
	whole := func() error {
		defer cancel()
		err := call(after)
		if err != nil {
			later()
		}
		return err
	}
	if !t.a.onCluster() {
		return whole()
	}
	t.mu.Lock()
	left := max(afterWait-t.waitedInVain, afterWaitLeast)
	t.mu.Unlock()
	waiting, end := context.WithTimeout(context.WithoutCancel(ctx), left)
	defer end()
	err, inTime := bounded.Call(waiting, whole)
	if inTime {
		return err
	}
	t.mu.Lock()
	t.waitedInVain += left
	t.mu.Unlock()
	later()
	return errSlowAnswer
}

// waitsBeyondDeadline says that the instant of a task is behind its deadline. So it waits for a slot, which
// may be free before: all others are refused.
func (t *attempt) waitsBeyondDeadline(d throttle.Decision) bool {
	return !t.deadline.IsZero() && d.Wait() > time.Until(t.deadline)
}

// errOver is what an Acquire gets from a handler that has returned.
var errOver = errors.New("worker: the handler of this attempt has returned")

func (t *attempt) isOver() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// hasGrantOf says whether the attempt has a grant of any of these very rules and keys.
func (t *attempt) hasGrantOf(p *throttle.Policy, r throttle.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.grants, func(h decided) bool { return throttle.ForWorkers.ShareLedger(p, r, h.policy, h.Request) })
}

// isPermanent says that a request can never be granted: by its own fault, or its job comes too
// late for the task's deadline, and not only for the time that the handler gave it.
func (t *attempt) isPermanent(err error) bool {
	for _, never := range []error{throttle.ErrExceedsLimit, throttle.ErrInvalidKey, throttle.ErrInvalidCost, throttle.ErrInvalidJob} {
		if errors.Is(err, never) {
			return true
		}
	}
	late, ok := errors.AsType[*throttle.TooLateError](err)
	return ok && !t.deadline.IsZero() && late.Wait > time.Until(t.deadline)
}

// noteLead notes how long it took from the wake-up until now, once.
func (t *attempt) noteLead() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.woken.IsZero() {
		t.a.lead.took(time.Since(t.woken))
		t.woken = time.Time{}
	}
}

// errStopped ends a wait in a worker slot.
var errStopped = errors.New("worker: shutting down")

// mustStay says that the task can't be deferred: an unknown version of asynq would archive
// it. It waits in its worker slot, and asynq's own shutdown hands it back.
func (t *attempt) mustStay() bool { return t.lastTry && t.a.asynqUntrusted.Load() }

// waitFor waits d; the end of ctx ends it at once, and a shutdown too unless the
// task must stay.
func (t *attempt) waitFor(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	stop := t.a.stop
	if t.mustStay() {
		stop = nil
	}
	select {
	case <-timer.C:
		return nil
	case <-stop:
		return errStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Begin implements [throttle.Host].
func (t *attempt) Begin(ctx context.Context, p *throttle.Policy, d throttle.Decision) (fresh bool, err error) {
	err = t.waitFor(ctx, d.Wait())
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx) // asynq has given this attempt up
	}
	switch {
	case errors.Is(err, errStopped):
		t.returnGrant(ctx, p, d)
		return false, t.Defer(ctx, p, d)
	case err != nil:
		t.refund(ctx, decided{policy: p, Decision: d})
		return false, err
	case throttle.ForWorkers.Stale(d): // called once only: a moment later the result may differ
		t.a.counters.stale.Add(1)
		t.returnGrant(ctx, p, d)
		return false, nil
	}
	if !t.keepGrant(ctx, p, d) {
		return false, errOver
	}
	t.a.recordGrant(p, d)
	return true, nil
}

// keepGrant makes a grant part of the attempt. When one of its leases is lost the
// handler's context ends: another task may have its slot already. When the handler has
// returned the grant goes back, and the answer is false.
func (t *attempt) keepGrant(ctx context.Context, p *throttle.Policy, d throttle.Decision) bool {
	ctx, end := p.Hold(context.WithoutCancel(ctx), d)
	stopWatching := func() bool { return true }
	leased := throttle.ForWorkers.LeaseFor(p, d) > 0
	if leased {
		stopWatching = context.AfterFunc(ctx, func() {
			if errors.Is(context.Cause(ctx), throttle.ErrLeaseLost) {
				t.a.counters.leasesLost.Add(1)
				t.endLost()
				if tell := t.a.cfg.Observer.LeaseLost; tell != nil {
					tell(ctx, event.LeaseLost{Task: t.event(), Rule: firstConcurrent(p)})
				}
			}
		})
	}
	var once sync.Once
	release := func(ctx context.Context) {
		once.Do(func() {
			stopWatching()
			if !leased {
				return
			}
			_ = t.cleanUp(ctx, func(ctx context.Context) error {
				promoted, err := end(ctx)
				t.a.promotions.add(promoted...)
				return err
			}, func() { t.a.lateGiveBacks.release(p, d) })
		})
	}
	g := decided{policy: p, Decision: d, release: release, charge: p.Charge(d)}
	t.mu.Lock()
	over := t.over
	if !over {
		t.grants = append(t.grants, g)
	}
	t.mu.Unlock()
	if over {
		t.refund(ctx, g)
	}
	return !over
}

// firstConcurrent is the first rule of a policy that limits how many run at once.
func firstConcurrent(p *throttle.Policy) string {
	for _, l := range p.Rules() {
		if l.Limit().IsConcurrent() {
			return l.Rule()
		}
	}
	return ""
}

// endLost ends the handler's context, or the one that it is about to get.
func (t *attempt) endLost() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaseLost = true
	if t.cancelHandler != nil {
		t.cancelHandler(throttle.ErrLeaseLost)
	}
}

// release ends the leases of the attempt: its handler has returned.
func (t *attempt) release(ctx context.Context) {
	t.mu.Lock()
	t.over = true
	grants := slices.Clone(t.grants)
	t.mu.Unlock()
	for _, g := range grants {
		g.release(ctx)
	}
}

// Defer implements [throttle.Host].
func (t *attempt) Defer(_ context.Context, p *throttle.Policy, d throttle.Decision) error {
	if !d.Granted && !d.Promised.IsZero() {
		t.a.refreshes.invalidate(p, throttle.ForWorkers.Ref(p, d.Request).IDs, d.Rule)
	}
	cause := &throttle.ThrottledError{Rule: d.Rule, At: d.At, RetryAfter: d.At.Sub(d.Now)}
	reason := event.Booked
	switch {
	case d.Granted:
		reason = event.Returned
	case d.Gated:
		reason = event.Gated
	}
	at, wait := d.At, d.Wait()
	if t.waitsBeyondDeadline(d) {
		early := wait - max(0, time.Until(t.deadline)-lastAsk)
		at, wait = at.Add(-early), wait-early
	}
	return t.deferTo(deferral{rule: d.Rule, reason: reason, at: at, wait: wait, record: t.waitRecord(p, d), cause: cause, key: keyOf(p, d)},
		decided{policy: p, Decision: d})
}

// waitRecord is what the task has booked, as it is stored beside it.
func (t *attempt) waitRecord(p *throttle.Policy, d throttle.Decision) queuescripts.WaitRecord {
	record := queuescripts.WaitRecord{Deadline: t.deadline}
	if !d.Gated {
		record.Booking = storedBooking(p, d.Request)
	}
	return record
}

func storedBooking(p *throttle.Policy, r throttle.Request) queuescripts.StoredBooking {
	ref := throttle.ForWorkers.Ref(p, r)
	return queuescripts.NewStoredBooking(p.String(), ref.Costs, ref.IDs)
}

// isUnreadable says that a rule can't be decided about until somebody does something: its state is
// of a newer schema or corrupt, or its stored limit is one that this version can't read.
func isUnreadable(err error) bool {
	return errors.Is(err, throttle.ErrSchema) || errors.Is(err, throttle.ErrCorrupt) || errors.Is(err, throttle.ErrStoredLimit)
}

// unanswered ends an admission that Redis did not answer, or that can't be decided because
// something can't be read. The call is taken back later, and the task is deferred for a while
// without a booking.
func (t *attempt) unanswered(ctx context.Context, p *throttle.Policy, r throttle.Request, cause error, answerLost bool) error {
	if answerLost { // some call of this token had no answer: it may have been charged
		t.a.lateGiveBacks.refund(p, r)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(cause, throttle.ErrUnavailable) {
		t.a.sawError(ctx, cause)
	}
	t.logUnanswered(p, cause)
	record := queuescripts.WaitRecord{Deadline: t.deadline}
	return t.deferTo(deferral{wait: unbookedWait + rand.N(unbookedWait), reason: event.Unavailable, record: record, cause: cause}, decided{})
}

func (t *attempt) logUnanswered(p *throttle.Policy, cause error) {
	t.a.logFew("unanswered", func() {
		t.a.log.Error("a rule can't be asked: its tasks wait", zap.Stringer("rule", p), zap.Error(cause))
	})
}

// returnGrant gives a grant back that could not be used. The task stays first in its line.
func (t *attempt) returnGrant(ctx context.Context, p *throttle.Policy, d throttle.Decision) {
	_ = t.cleanUp(ctx, func(ctx context.Context) error {
		promoted, err := throttle.ForWorkers.Return(ctx, p, d.Request)
		t.a.promotions.add(promoted...) // some hash slots of a Cluster may have promoted jobs when another failed
		return err
	}, func() { t.a.lateGiveBacks.refund(p, d.Request) })
}

// refundAndForget refunds all grants of the attempt and forgets them: it holds nothing any more.
func (t *attempt) refundAndForget(ctx context.Context) {
	t.mu.Lock()
	grants := t.grants
	t.grants = nil
	t.mu.Unlock()
	for _, g := range grants {
		t.refund(ctx, g)
	}
}

// deferTo makes a deferral of the attempt, with the booking behind it. The deferral counts when the
// handler returns it, see settleDeferrals.
func (t *attempt) deferTo(d deferral, h decided) error {
	d.token, d.task, d.unique, d.retried, d.made = throttle.NewToken(), t.event(), t.unique, t.retried, time.Now()
	t.mu.Lock()
	over := t.over
	if !over {
		t.a.deferrals.add(&d)
		t.ownDeferrals = append(t.ownDeferrals, attemptDeferral{h, &d})
	}
	t.mu.Unlock()
	if over { // nobody will look at it
		t.cancelBooking(context.Background(), h)
		return errOver
	}
	return &d
}

// refund refunds a grant that was not used; if Redis does not answer now, it
// is done later.
func (t *attempt) refund(ctx context.Context, g decided) {
	if g.release != nil {
		g.release(ctx)
	}
	if g.charge != nil && throttle.ForWorkers.Adjusted(g.charge) { // a refund knows only what was paid at first
		t.undoAdjusted(ctx, g)
		return
	}
	g.Job = "" // its booking ended with the grant: if there is one now, a later Acquire made it
	_ = t.cleanUp(ctx, func(ctx context.Context) error {
		promoted, err := g.policy.Refund(ctx, g.Request)
		t.a.promotions.add(promoted...)
		return err
	}, func() { t.a.lateGiveBacks.refund(g.policy, g.Request) })
}

// settleDeferrals looks at what the handler made of its deferrals: the one that it returned counts, and
// the bookings of the others are cancelled. A task that is deferred did not do its work: what it had
// been granted goes back. A handler that went on without what it asked for has used the rest.
func (t *attempt) settleDeferrals(ctx context.Context, err error) {
	t.mu.Lock()
	deferrals := t.ownDeferrals
	t.ownDeferrals = nil
	t.mu.Unlock()
	if len(deferrals) == 0 {
		return
	}
	var returned *deferral
	if err != nil {
		returned = t.a.deferrals.of(err)
	}
	for _, b := range deferrals {
		if b.deferral == returned {
			continue
		}
		t.a.deferrals.remove(b.deferral)
		if returned != nil && returned.record.Booking == b.record.Booking {
			continue // it is the same booking
		}
		t.cancelBooking(ctx, b.decided)
	}
	// one that a provider has put off has asked it, and pays
	if slices.ContainsFunc(deferrals, func(b attemptDeferral) bool { return b.deferral == returned && !b.postponed }) {
		t.refundAndForget(ctx)
	}
}

// cancelBooking cancels the booking behind a deferral, if there is one.
func (t *attempt) cancelBooking(ctx context.Context, h decided) {
	if h.policy == nil {
		return
	}
	_ = t.cleanUp(ctx, func(ctx context.Context) error {
		promoted, err := h.policy.Cancel(ctx, h.Request)
		t.a.promotions.add(promoted...)
		return err
	}, nil) // a place that stays behind is parked when its instant has come
}

// after is a context for what must be done although the attempt is over.
func (t *attempt) after(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), afterTimeout)
}
