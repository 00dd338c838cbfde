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

	"github.com/headwayq/headway/throttle"
)

const (
	// While Redis does not answer, an admission is asked again in place, with
	// the same token, for so long; then the task is deferred without a booking.
	askFor      = 2 * time.Second
	askPauseMin = 20 * time.Millisecond
	askPauseMax = 500 * time.Millisecond
	// unbookedWait is how long such a task stays away, and up to as long again,
	// so that not all come back at once.
	unbookedWait = time.Second
	// afterTimeout bounds a call that cleans up after an attempt.
	afterTimeout = 3 * time.Second
)

// ErrTwice is what a second Acquire of the same rule and key within one attempt
// unwraps to. Deferring it would give the first permits back, for which the
// task would then wait again, for ever: ask for all of them at once.
var ErrTwice = errors.New("worker: this attempt holds permits of the same rule and key already")

// attempt is one delivery of a task by asynq. It is the [throttle.Host] of its
// handler, which may call it from several goroutines.
type attempt struct {
	a        *Adapter
	queue    string
	taskID   string
	job      string
	last     bool      // asynq would archive the task if this attempt failed
	deadline time.Time // of the task, not of the attempt; zero for none
	woken    time.Time // when our waker woke it; zero if it did not

	mu        sync.Mutex
	grants    []held
	deferrals []booked
}

// held is a grant of the attempt.
type held struct {
	limiter *throttle.Limiter
	throttle.Decision
}

// booked is a deferral of the attempt, with the booking behind it.
type booked struct {
	held
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

// Ask implements [throttle.Host]. It asks again while Redis does not answer:
// with the same token, so nothing is charged twice. When Redis stays away the
// error is a deferral: that is no failure of the task either.
func (t *attempt) Ask(ctx context.Context, l *throttle.Limiter, r throttle.Request) (throttle.Decision, error) {
	if t.holds(l, r.Key) {
		return throttle.Decision{}, permanent{fmt.Errorf("%w: rule %q", ErrTwice, l.Rule())}
	}
	t.a.learn(l)
	began, bound, pause, lost := time.Now(), r.MaxWait, askPauseMin, false
	for {
		if bound > 0 {
			r.MaxWait = max(bound-time.Since(began), 1) // used up is not the same as none, which is 0
		}
		d, err := l.Redeem(ctx, r)
		if err != nil && errors.Is(err, throttle.ErrUnavailable) {
			lost = lost || !throttle.Answered(err)
			if ctx.Err() != nil || !t.mustStay() && (throttle.Answered(err) || t.a.stopped() || time.Since(began) > askFor) {
				return d, t.unanswered(ctx, l, r, err, lost)
			}
			_ = t.waitFor(ctx, pause)
			pause = min(2*pause, askPauseMax)
			continue
		}
		t.a.counters.admissions.Add(1)
		t.a.hint(d.Next)
		if errors.Is(err, throttle.ErrSchema) || errors.Is(err, throttle.ErrStoredLimit) {
			return d, t.unanswered(ctx, l, r, err, lost)
		}
		if t.isFinal(err) {
			return d, permanent{err}
		}
		if err != nil {
			return d, err
		}
		t.answered()
		if d.Granted {
			return d, nil
		}
		t.a.counters.booked.Add(1)
		if !t.mustStay() {
			return d, nil
		}
		if t.waitFor(ctx, d.Wait()-t.a.lead.get()) != nil {
			return d, context.Cause(ctx) // asynq has given this attempt up
		}
	}
}

// holds says whether the attempt has a grant of this very rule and key.
func (t *attempt) holds(l *throttle.Limiter, key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.grants, func(h held) bool { return h.limiter.Ledger(h.Key) == l.Ledger(key) })
}

// isFinal says that a wish can never be met: its own fault, or its job comes too
// late for the task's deadline, and not only for the time that the handler gave it.
func (t *attempt) isFinal(err error) bool {
	for _, never := range []error{throttle.ErrExceedsLimit, throttle.ErrInvalidKey, throttle.ErrInvalidCost, throttle.ErrInvalidJob} {
		if errors.Is(err, never) {
			return true
		}
	}
	late, ok := errors.AsType[*throttle.TooLateError](err)
	return ok && !t.deadline.IsZero() && late.Wait > time.Until(t.deadline)
}

// answered notes how long it took from the wake-up until now, once.
func (t *attempt) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.woken.IsZero() {
		t.a.lead.took(time.Since(t.woken))
		t.woken = time.Time{}
	}
}

// errStopped ends a wait in a worker slot.
var errStopped = errors.New("worker: shutting down")

// mustStay says that the task can't be deferred: an asynq that we do not know
// would archive it. It waits in its slot, and asynq's own shutdown hands it back.
func (t *attempt) mustStay() bool { return t.last && t.a.unknown.Load() }

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

// Settle implements [throttle.Host].
func (t *attempt) Settle(ctx context.Context, l *throttle.Limiter, d throttle.Decision) (fresh bool, err error) {
	err = t.waitFor(ctx, d.Wait())
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx) // asynq has given this attempt up
	}
	switch {
	case errors.Is(err, errStopped):
		t.comeBack(ctx, l, d)
		return false, t.Defer(ctx, l, d)
	case err != nil:
		t.giveBack(ctx, held{l, d})
		return false, err
	case l.Stale(d): // asked once only: a moment later the answer may be another
		t.a.counters.stale.Add(1)
		t.comeBack(ctx, l, d)
		return false, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.grants = append(t.grants, held{l, d})
	return true, nil
}

// Defer implements [throttle.Host].
func (t *attempt) Defer(ctx context.Context, l *throttle.Limiter, d throttle.Decision) error {
	t.giveAllBack(ctx)
	cause := &throttle.ThrottledError{Rule: d.Rule, At: d.At, RetryAfter: d.At.Sub(d.Now)}
	p := place{pool: t.a.id, rule: d.Rule, cost: d.Cost, deadline: t.deadline, id: l.ID(d.Key)}
	return t.deferTo(held{l, d}, d.At, d.Wait(), p, cause)
}

// unanswered ends an admission that Redis did not answer, or that a newer schema
// or a stored limit that nobody here can read forbids: the call is taken back later, and the task goes away for a while
// without a place anywhere.
func (t *attempt) unanswered(ctx context.Context, l *throttle.Limiter, r throttle.Request, cause error, lost bool) error {
	if lost { // some call of this token had no answer: it may have been charged
		t.a.refundLater(l, r)
	}
	t.giveAllBack(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.a.logFew("unanswered", func() {
		t.a.log.Error("a rule can't be asked: its tasks wait", zap.String("rule", l.Rule()), zap.Error(cause))
	})
	p := place{pool: t.a.id, deadline: t.deadline}
	return t.deferTo(held{}, time.Time{}, unbookedWait+rand.N(unbookedWait), p, cause)
}

// comeBack gives a grant back that could not be used; the task stays first in
// the line.
func (t *attempt) comeBack(ctx context.Context, l *throttle.Limiter, d throttle.Decision) {
	ctx, cancel := t.after(ctx)
	defer cancel()
	turn, err := l.Return(ctx, d.Request)
	if err != nil {
		t.a.refundLater(l, d.Request)
		return
	}
	t.a.hint(turn)
}

// giveAllBack refunds what the attempt holds.
func (t *attempt) giveAllBack(ctx context.Context) {
	t.mu.Lock()
	grants := t.grants
	t.grants = nil
	t.mu.Unlock()
	for _, g := range grants {
		t.giveBack(ctx, g)
	}
}

func (t *attempt) deferTo(h held, at time.Time, wait time.Duration, p place, cause error) error {
	d := &deferral{
		token: throttle.NewToken(), queue: t.queue, taskID: t.taskID,
		at: at, wait: wait, made: time.Now(), place: p, cause: cause,
	}
	t.a.deferrals.add(d)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deferrals = append(t.deferrals, booked{h, d})
	return d
}

// giveBack refunds a grant that was not used; if Redis does not answer now, it
// is done later.
func (t *attempt) giveBack(ctx context.Context, g held) {
	ctx, cancel := t.after(ctx)
	defer cancel()
	g.Job = "" // it left the line with its grant: a place there is that of a later Acquire
	turn, err := g.limiter.Refund(ctx, g.Request)
	if err != nil {
		t.a.refundLater(g.limiter, g.Request)
		return
	}
	t.a.hint(turn)
}

// end looks at what the handler made of its deferrals: the one it returned
// stands; of the others the places are given up.
func (t *attempt) end(ctx context.Context, err error) {
	t.mu.Lock()
	deferrals := t.deferrals
	t.deferrals = nil
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
		if b.limiter == nil || returned != nil && returned.place.rule == b.place.rule && returned.place.id == b.place.id {
			continue // the same place in the same line
		}
		after, cancel := t.after(ctx)
		if turn, err := b.limiter.Cancel(after, b.Request); err == nil {
			t.a.hint(turn)
		}
		cancel()
	}
}

// after is a context for what must be done although the attempt is over.
func (t *attempt) after(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), afterTimeout)
}

func (a *Adapter) stopped() bool {
	select {
	case <-a.stop:
		return true
	default:
		return false
	}
}
