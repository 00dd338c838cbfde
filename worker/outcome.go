package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// ErrNoGrant says that a context is not that of a handler whose task type has a policy.
var ErrNoGrant = errors.New("worker: no grant in this context")

type attemptKey struct{}

func withAttempt(ctx context.Context, t *attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, t)
}

// Adjust corrects what the running attempt has paid, from its handler after the
// work: the actual cost of the rules whose cost the policy takes from the task, or
// of the rules that are named. It is in permits, from 0 to 2^40; another number is throttle.ErrInvalidCost,
// and a name that is no rule of the policy throttle.ErrInvalidConfig. 0 gives all of it back; what is more than the limit
// holds uses it up (leaky, smooth and warmup owe the rest, too). To adjust to the
// same again does nothing.
// After throttle.ErrUnavailable it may have been done: adjust again. Outside of a
// handler with a policy it is [ErrNoGrant]. Of a task that was refused and runs all the same, in shadow mode
// or because an operator lets it run now, nothing was paid, and nothing is corrected.
func Adjust(ctx context.Context, actual int, rules ...string) error {
	t, _ := ctx.Value(attemptKey{}).(*attempt)
	if t == nil {
		return ErrNoGrant
	}
	costs := make(map[string]int)
	for _, rule := range rules {
		costs[rule] = actual
	}
	if len(rules) == 0 {
		for _, r := range t.policy.Rules {
			if r.Cost != nil {
				costs[r.Name] = actual
			}
		}
	}
	return t.adjust(ctx, costs)
}

// adjust corrects the charge of the policy's own grant.
func (t *attempt) adjust(ctx context.Context, costs map[string]int) error {
	t.mu.Lock()
	var charge *throttle.Charge
	if len(t.grants) > 0 && t.policy.limits != nil {
		charge = t.grants[0].charge // what the task was admitted by
	}
	shadowed := charge == nil && t.a.cfg.Throttle.Shadow
	if charge != nil && t.toldCharged == nil {
		t.toldCharged = make(map[string]int)
	}
	for rule := range costs {
		if _, known := t.toldCharged[rule]; charge != nil && !known {
			t.toldCharged[rule] = charge.Charged(rule)
		}
	}
	unpaid := t.policy.limits != nil && (t.forced || shadowed) // it runs although it would have been refused
	t.mu.Unlock()
	if unpaid {
		return nil
	}
	if charge == nil {
		return ErrNoGrant
	}
	promoted, err := charge.Adjust(ctx, costs)
	t.a.promotions.add(promoted...)
	if err == nil {
		t.tellAdjusted(ctx, charge, slices.Sorted(maps.Keys(costs)))
	}
	return err
}

// tellAdjusted tells the observer what rules are charged now. After an Adjust that failed, and was repeated, the charge
// knew that before: so it goes by what the observer knows.
func (t *attempt) tellAdjusted(ctx context.Context, charge *throttle.Charge, rules []string) {
	tell := t.a.cfg.Observer.Adjusted
	if tell == nil {
		return
	}
	for _, rule := range rules {
		t.mu.Lock()
		was, now := t.toldCharged[rule], charge.Charged(rule)
		t.toldCharged[rule] = now
		t.mu.Unlock()
		if now != was {
			tell(ctx, event.Adjusted{Task: t.event(), Rule: rule, From: was, To: now})
		}
	}
}

// notCharged is a failure after which nothing was used.
type notCharged struct{ error }

func (e notCharged) Unwrap() error { return e.error }

// NotCharged marks a handler's error: nothing was used of what the attempt has
// paid, and all of it comes back. An attempt whose answer was lost may have been
// charged by the provider: it is for errors that are sure, such as a connection
// that was refused. NotCharged(nil) is nil.
func NotCharged(err error) error {
	if err == nil {
		return nil
	}
	return notCharged{err}
}

// conclude gives back what a failed attempt did not use, and makes a deferral of a
// Retry-After.
func (t *attempt) conclude(ctx context.Context, p taskPolicy, err error) error {
	if err == nil || t.a.deferrals.of(err) != nil {
		return err
	}
	_, free := errors.AsType[notCharged](err)
	if free || p.Charge == queue.ChargeSuccess {
		t.refundKeepingGrants(ctx)
	}
	if later, ok := errors.AsType[*RetryAfterError](err); ok {
		return t.postpone(ctx, p, later, err)
	}
	return err
}

// refundKeepingGrants refunds all grants of the attempt, whose handler has returned, and keeps the
// list: postpone needs it.
func (t *attempt) refundKeepingGrants(ctx context.Context) {
	t.mu.Lock()
	grants := slices.Clone(t.grants)
	t.mu.Unlock()
	for _, g := range grants {
		t.refund(ctx, g)
	}
}

// undoAdjusted gives back what a grant has paid, after the handler has adjusted that.
func (t *attempt) undoAdjusted(ctx context.Context, g decided) {
	nothing := make(map[string]int)
	for _, l := range g.policy.Rules() {
		nothing[l.Rule()] = 0
	}
	_ = t.cleanUp(ctx, func(ctx context.Context) error {
		promoted, err := g.charge.Adjust(ctx, nothing)
		t.a.promotions.add(promoted...)
		if err != nil {
			t.a.logFew("unpaid", func() {
				t.a.log.Warn("permits that were adjusted can't be given back: they stay charged", zap.Stringer("rules", g.policy), zap.Error(err))
			})
		}
		return err
	}, nil)
}

// Bounds of a Retry-After.
const (
	RetryAfterMin = time.Millisecond
	RetryAfterMax = 24 * time.Hour
)

// RetryAfterError is a handler's answer that its provider asks to try again later. The key
// of a rule is closed for so long. Everything booked on it moves behind that, and the task
// goes first when the key is open again. Other keys are not affected. This is not a failure
// and costs no retry, up to the policy's MaxPostpones; after that it is Err, a failure like
// any other. The attempt has paid, unless the error is also marked as [NotCharged].
//
// It is a failure like any other, too, from a task type without a policy, from an attempt that an
// operator let run now, and when Rule is none of the policy's and the handler has not acquired it
// itself. The log names such a type and such a Rule once for each type.
//
// In shadow mode (throttle.Config.Shadow) the task is deferred all the same, for it is its
// provider who asks. Other tasks of the key run, and one that would come back behind its
// deadline is an ordinary failure.
type RetryAfterError struct {
	Err   error         // what the provider said; nil is fine
	After time.Duration // less than RetryAfterMin counts as that, more than RetryAfterMax too
	Rule  string        // whose key is closed; the policy's narrowest limit when empty
}

func (e *RetryAfterError) Error() string {
	text := fmt.Sprintf("worker: postponed for %v", e.After.Round(time.Millisecond))
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *RetryAfterError) Unwrap() error { return e.Err }

// RetryAfter is what a handler returns when its provider asks to come again after d, as an
// HTTP 429 does: a [RetryAfterError] for the key of the policy's narrowest limit. That key
// is closed for d in every process, the task goes first afterwards, and no retry is counted.
// err is what the provider said; nil is fine.
func RetryAfter(err error, d time.Duration) error { return &RetryAfterError{Err: err, After: d} }

// RetryAt is [RetryAfter] until an instant by the local clock.
func RetryAt(err error, t time.Time) error { return RetryAfter(err, time.Until(t)) }

// RetryAfterFrom reads how long an HTTP answer asks to wait: its
// Retry-After, in seconds or as a date, the latter by the answer's own Date when it
// has one. A date in the past is 0. The result is limit at most, which is at most [RetryAfterMax] and defaults to that;
// ok is false without one, or when it can't be read.
func RetryAfterFrom(resp *http.Response, limit time.Duration) (d time.Duration, ok bool) {
	if limit <= 0 || limit > RetryAfterMax {
		limit = RetryAfterMax
	}
	text := strings.TrimSpace(resp.Header.Get("Retry-After"))
	if text == "" {
		return 0, false
	}
	if strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds > int64(limit/time.Second) {
			return limit, true // more digits than a number has are a long time too
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	now := time.Now()
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		now = date
	}
	return min(max(0, at.Sub(now)), limit), true
}

// postpone closes the key and defers the task until it opens. When the task was postponed
// too often, or has no policy, or Redis does not answer, the handler's error stays as it is.
func (t *attempt) postpone(ctx context.Context, p taskPolicy, later *RetryAfterError, err error) error {
	g, ok := t.grantOf(p, later.Rule)
	if !ok {
		t.logNoSuchRule(p, later.Rule)
		return err
	}
	rule := later.Rule
	if rule == "" {
		rule = g.policy.Rules()[0].Rule()
	}
	d := min(max(later.After, RetryAfterMin), RetryAfterMax)
	tooLate := t.MaxWait() != 0 && t.MaxWait() < d
	times, tooOften := t.stayed, false // known when the call below has not failed
	// A task that ends for good because nobody waits for the call below any more needs no place. It gives the place up
	// behind the call that gets it, or that may have got it.
	endsForGood := t.lastTry || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask)
	var first atomic.Bool
	leaveIfSecond := func() {
		if !first.CompareAndSwap(false, true) && endsForGood {
			t.a.lateGiveBacks.cancel(g.policy, g.Request)
		}
	}
	failed := t.cleanUp(ctx, func(after context.Context) error {
		postpones, err := queuescripts.TimesPostponed(after, t.a.rdb, t.a.keys(t.queue), t.taskID)
		if err != nil {
			return err
		}
		times += postpones // Redis does not know of those that were waited for here
		tooOften = times >= p.maxPostpones()
		if tooOften || tooLate || gaveUp(ctx) { // it does not come back, so it needs no booking
			return closeKey(after, g, rule, d)
		}
		_, err = throttle.ForWorkers.Postpone(after, g.policy, rule, g.Request, d)
		leaveIfSecond()
		return err
	}, leaveIfSecond)
	if failed != nil {
		t.a.logFew("postpone", func() {
			t.a.log.Warn("a key can't be closed: its task is tried again", zap.String("rule", rule), zap.Error(failed))
		})
		return err
	}
	switch {
	case tooOften, gaveUp(ctx):
		return err
	case tooLate && t.a.cfg.Throttle.Shadow: // it fails like any other, and asynq tries it again
		t.a.counters.shadowed.count(ShadowedTooLate)
		return err
	case tooLate:
		late := &throttle.TooLateError{Rule: rule, At: time.Now().Add(d), Wait: d, MaxWait: t.MaxWait()}
		t.countRefused(ctx, late)
		return asPermanent(fmt.Errorf("%w: %w", late, err))
	}
	t.a.counters.postponed.Add(1)
	if tell := t.a.cfg.Observer.Postponed; tell != nil {
		tell(ctx, event.Postponed{Task: t.event(), Rule: rule, Wait: d, Times: times + 1})
	}
	if t.mustStay() {
		t.stayed++
		return &stayError{wait: d, cause: err}
	}
	cause := &throttle.ThrottledError{Rule: rule, At: time.Now().Add(d), RetryAfter: d}
	record := queuescripts.WaitRecord{Deadline: t.deadline, Booking: storedBooking(g.policy, g.Request)}
	return t.deferTo(deferral{rule: rule, reason: event.RetryAfter, wait: d, record: record, cause: fmt.Errorf("%w: %w", cause, err), postponed: true}, g)
}

// logNoSuchRule says that a Retry-After counts as a failure because of what it names, once. In
// shadow mode a task may have no grant by a rule of its policy: that is no mistake.
func (t *attempt) logNoSuchRule(p taskPolicy, rule string) {
	if slices.Contains(p.names, rule) || rule == "" && p.limits != nil {
		return
	}
	what := "a RetryAfterError names a rule by which its task holds no grant, so it counts as a failure: name a rule of the policy, or none"
	if p.limits == nil {
		what = "a RetryAfterError comes from a task type without a policy, so it counts as a failure: there is no key to close"
	}
	t.a.logOnce("no such rule "+t.taskType, func() {
		t.a.log.Error(what, zap.String("type", t.taskType), zap.String("rule", rule), zap.Strings("rules", p.names))
	})
}

// stayError is the end of a run whose provider asked to wait, on the last attempt of a task
// that can't be deferred: it waits in its worker slot and runs again.
type stayError struct {
	wait  time.Duration
	cause error
}

func (e *stayError) Error() string { return e.cause.Error() }
func (e *stayError) Unwrap() error { return e.cause }

// again waits in the worker slot for the next run of the handler. What the last one was
// granted is spent.
func (t *attempt) again(ctx context.Context, task *asynq.Task, stay *stayError) (context.Context, error) {
	t.mu.Lock()
	t.grants, t.cancelHandler, t.leaseLost, t.forced, t.over = nil, nil, false, false, false
	t.mu.Unlock()
	if t.policy.limits == nil { // its handler asks for permits by itself, and waits there too
		return ctx, t.waitFor(ctx, stay.wait)
	}
	d, err := t.admit(ctx, task, t.policy)
	if d.Granted {
		ctx = context.WithValue(ctx, grantKey{}, d)
	}
	return ctx, err
}

// gaveUp says that asynq has ended the attempt of a handler, whose error nobody reads.
func gaveUp(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), throttle.ErrLeaseLost)
}

// closeKey closes the key of a rule of a grant.
func closeKey(ctx context.Context, g decided, rule string, d time.Duration) error {
	for i, l := range g.policy.Rules() {
		if l.Rule() == rule {
			key := g.Key
			if i > 0 {
				key = g.More[i-1].Key
			}
			_, err := l.CloseKey(ctx, key, d)
			return err
		}
	}
	return nil
}

// grantOf is the grant of the attempt by a rule, or of its policy.
func (t *attempt) grantOf(p taskPolicy, rule string) (decided, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, g := range t.grants {
		if rule == "" && i == 0 && p.limits != nil && !t.forced {
			return g, true
		}
		for _, l := range g.policy.Rules() {
			if l.Rule() == rule {
				return g, true
			}
		}
	}
	return decided{}, false
}
