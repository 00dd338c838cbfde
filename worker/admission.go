package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// permanentError is the failure of a task that can never run: asynq archives it.
type permanentError struct{ error }

// asPermanent marks an error as permanent, once.
func asPermanent(err error) error {
	if errors.Is(err, asynq.SkipRetry) {
		return err
	}
	return permanentError{err}
}

func (p permanentError) Unwrap() []error { return []error{p.error, asynq.SkipRetry} }

type grantKey struct{}

// GrantFrom returns the grant under which a handler runs, if its task type has
// a policy.
func GrantFrom(ctx context.Context) (throttle.Decision, bool) {
	d, ok := ctx.Value(grantKey{}).(throttle.Decision)
	return d, ok
}

// Handler puts admission before a handler: a task with a policy gets its
// permits first. A task that a [asynq.ServeMux] has no handler for goes straight
// to its NotFound and spends nothing. Around a handler twice, only the outer one counts.
func (a *Adapter) Handler(next asynq.Handler) asynq.Handler {
	if policyset.IsNil(next) {
		panic("worker: nil handler")
	}
	mux, _ := next.(taskMux)
	if mux != nil {
		a.types.watchMux(mux)
	}
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if a.isAround(ctx) {
			return next.ProcessTask(ctx, task)
		}
		t, delivered, err := a.newAttempt(ctx, task)
		if err != nil {
			return err
		}
		key := a.keys(t.queue).Task(t.taskID)
		a.load.running.Add(1)
		a.load.entered.Add(1)
		defer a.load.entered.Add(-1)
		freed := sync.OnceFunc(a.freed)
		defer freed()
		// at the end of ctx asynq gives the worker another task, whether this handler returns or not
		defer context.AfterFunc(ctx, freed)()
		if a.ranBefore(key, delivered, task) {
			a.counters.notRunAgain.Add(1)
			a.recentlyDone.put(key, runOf(task, delivered.Retried), time.Now())
			return nil
		}
		runNow := delivered.runNow && t.takeRunNow(ctx)
		if handled, err := t.holdForBatch(ctx, task, runNow); handled {
			t.settleDeferrals(ctx, err)
			return a.noteAnswer(ctx, key, err)
		}
		a.waits.arrived(key, delivered.wait, a.policies[t.taskType].names, time.Now())
		if mux == nil || handles(mux, task) {
			if ctx, err = t.askPolicy(ctx, task, runNow); err != nil {
				return a.noteAnswer(ctx, key, err)
			}
		}
		a.waits.end(key, time.Now())
		if err = t.run(ctx, next, task); err == nil {
			a.recentlyDone.put(key, runOf(task, t.retried), time.Now())
			return nil
		}
		return a.noteAnswer(ctx, key, writable(err))
	})
}

// ranBefore says that a task was run here, and is delivered again only because asynq could not write its end.
func (a *Adapter) ranBefore(taskKey string, delivered delivery, task *asynq.Task) bool {
	run, ok := a.recentlyDone.get(taskKey, time.Now())
	return ok && run.again(delivered.Message) && run.task == runOf(task, 0).task
}

// isAround says that a handler of this adapter has been called for the task already, and says
// so to the user: it stands around itself.
func (a *Adapter) isAround(ctx context.Context) bool {
	outer, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok || outer.a != a {
		return false
	}
	a.logOnce("wrapped twice", func() {
		a.log.Warn("Adapter.Handler stands around a handler twice, as by mux.Use(a.Handler) and a.Handler(mux): only the outer one asks the " +
			"limits. Take one of them away")
	})
	return true
}

// newAttempt is the attempt at a task that has just reached its handler, and how it was delivered.
// The error says what is missing around the handler.
func (a *Adapter) newAttempt(ctx context.Context, task *asynq.Task) (*attempt, delivery, error) {
	taskID, _ := asynq.GetTaskID(ctx)
	name, _ := asynq.GetQueueName(ctx)
	delivered, seen := a.inFlight.take(a.keys(name).Task(taskID), time.Now())
	if err := a.incomplete(seen); err != nil {
		return nil, delivered, err
	}
	t := &attempt{a: a, queue: name, taskType: task.Type(), taskID: taskID, job: luascripts.JobID(name, taskID), unique: delivered.UniqueKey}
	if w := a.wakers[name]; w != nil {
		t.woken = w.arrived(taskID) // before it counts as running: counted twice it would look like a full pool
	}
	if delivered.Deadline > 0 {
		t.deadline = time.Unix(delivered.Deadline, 0)
	}
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	t.retried, t.lastTry = retried, retried >= most
	return t, delivered, nil
}

// askPolicy asks the limits of the task's type, if it has any. It returns the handler's context, or why
// the task does not run.
func (t *attempt) askPolicy(ctx context.Context, task *asynq.Task, runNow bool) (context.Context, error) {
	p, limited := t.a.policies[t.taskType]
	if !limited {
		return ctx, t.a.types.noPolicy(ctx, t.event())
	}
	t.a.types.saw(p.Type)
	t.policy = p
	if runNow {
		t.runsNow(ctx, task, p)
		return ctx, nil
	}
	d, err := t.admit(ctx, task, p)
	if err != nil {
		t.settleDeferrals(ctx, err)
		return ctx, err
	}
	if d.Granted {
		ctx = context.WithValue(ctx, grantKey{}, d)
	}
	return ctx, nil
}

// noteAnswer remembers the answer of an attempt if it is a deferral. A middleware that stands
// around this handler may answer asynq something else, and then the task would be lost. When asynq has given
// the attempt up it reads no answer, and may have delivered the task again.
func (a *Adapter) noteAnswer(ctx context.Context, key string, err error) error {
	if d := a.deferrals.of(err); d != nil && ctx.Err() == nil {
		a.deferrals.markReturned(d)
		a.returnedDeferrals.put(key, d, time.Now())
	}
	return err
}

// writable makes an error's text valid UTF-8. asynq can't write any other into
// its message: the task would hang until its lease expires, and run again.
func writable(err error) error {
	if utf8.ValidString(err.Error()) {
		return err
	}
	return validText{err}
}

type validText struct{ error }

func (e validText) Error() string { return strings.ToValidUTF8(e.error.Error(), "\uFFFD") }
func (e validText) Unwrap() error { return e.error }

// run calls the handler. It calls it again when the task was to be postponed and can't be deferred.
func (t *attempt) run(ctx context.Context, next asynq.Handler, task *asynq.Task) error {
	for {
		err := t.runOnce(ctx, next, task)
		stay, ok := errors.AsType[*stayError](err)
		if !ok {
			return err
		}
		if ctx, err = t.again(ctx, task, stay); err != nil {
			t.settleDeferrals(ctx, err)
			return err
		}
	}
}

// runOnce calls the handler, and holds the leases of the attempt until the handler has really
// returned: asynq may have given the attempt up long before. After a panic the attempt is
// ended, and the panic goes on to asynq. An error may panic too, when it is looked at.
func (t *attempt) runOnce(ctx context.Context, next asynq.Handler, task *asynq.Task) (err error) {
	ctx, cancel := t.cancellable(ctx)
	ended := false
	defer func() {
		if !ended {
			if t.policy.Charge == queue.ChargeSuccess { // a panic is a failure too
				t.refundKeepingGrants(ctx)
			}
			t.release(ctx)
			t.settleDeferrals(ctx, nil)
		}
		cancel(context.Canceled)
	}()
	err = next.ProcessTask(throttle.ForWorkers.WithHost(withAttempt(ctx, t), t), task)
	err = t.conclude(ctx, t.policy, err)
	t.release(ctx)
	t.settleDeferrals(ctx, err)
	ended = true
	return err
}

// cancellable is the handler's context, which ends when a lease is lost.
func (t *attempt) cancellable(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancelHandler = cancel
	if t.leaseLost {
		cancel(throttle.ErrLeaseLost)
	}
	return ctx, cancel
}

// admit gets a task the permits of its policy, or returns why it does not run:
// a deferral, or a failure for good. In shadow mode it may return no grant and no error.
func (t *attempt) admit(ctx context.Context, task *asynq.Task, p taskPolicy) (throttle.Decision, error) {
	demand, err := p.Demand(task)
	if err != nil {
		return throttle.Decision{}, t.failPermanently(ctx, err)
	}
	r := demand.Request(t.job)
	r.Token = throttle.NewToken()
	for stale := 0; ; {
		r.MaxWait = t.MaxWait()
		d, err := t.Ask(ctx, p.limits, r)
		switch {
		case err != nil && (t.a.deferrals.of(err) != nil || ctx.Err() != nil):
			return d, err
		case err != nil:
			return throttle.Decision{}, t.failPermanently(ctx, err)
		case !d.Granted && ctx.Err() != nil:
			return d, context.Cause(ctx) // asynq has given this attempt up; the next attempt redeems the booking
		case !d.Granted:
			return d, t.Defer(ctx, p.limits, d)
		}
		fresh, err := t.Begin(ctx, p.limits, d)
		if err != nil {
			return d, err
		}
		if !fresh {
			if stale++; stale >= throttle.ForWorkers.StaleMost() || t.a.stopped() {
				if err := t.DeferStale(ctx, p.limits, throttle.ForWorkers.Later(p.limits, d)); err != nil {
					return d, err
				}
			}
			r.Token = throttle.NewToken()
			continue
		}
		throttle.ForWorkers.InTime(p.limits)
		t.countStartOrRefund(ctx, p.names, d)
		return d, nil
	}
}

// DeferStale implements [throttle.Host]. Where no answer of Redis comes in time, a task that asked on would keep its
// worker, and the load up.
func (t *attempt) DeferStale(ctx context.Context, p *throttle.Policy, d throttle.Decision) error {
	if t.mustStay() {
		return t.waitFor(ctx, d.Wait())
	}
	return t.Defer(ctx, p, d)
}

// takeRunNow takes away an operator's word that the task may run without asking its rules, and says whether
// there was one. It is good for this attempt alone. When Redis does not answer, the rules are asked.
func (t *attempt) takeRunNow(ctx context.Context) bool {
	ctx, cancel := t.after(ctx)
	defer cancel()
	taken, err := queuescripts.TakeRunNow(ctx, t.a.rdb, t.a.keys(t.queue), t.taskID)
	return taken && err == nil
}

// runsNow gives up what the task has booked, and counts that it runs without permits.
func (t *attempt) runsNow(ctx context.Context, task *asynq.Task, p taskPolicy) {
	t.cancelBookings(ctx, task)
	t.mu.Lock()
	t.forced = true
	t.mu.Unlock()
	t.a.counters.forced.Add(1)
	if tell := t.a.cfg.Observer.Granted; tell != nil {
		tell(ctx, event.Granted{Task: t.event(), Rules: p.names, Forced: true})
	}
}

// event is the task in events.
func (t *attempt) event() event.Task {
	return event.Task{Queue: t.queue, Type: t.taskType, ID: t.taskID}
}

// failPermanently makes a permanent failure of why a task can never run. In shadow mode it is nil: the
// task runs without a grant, and why it would have been refused is counted.
func (t *attempt) failPermanently(ctx context.Context, err error) error {
	if t.a.cfg.Throttle.Shadow {
		t.a.counters.shadowed.add(err)
		return nil
	}
	t.countRefused(ctx, err)
	return asPermanent(err)
}

// countRefused counts a task that can never run.
func (t *attempt) countRefused(ctx context.Context, err error) {
	t.a.counters.refused.Add(1)
	e := event.Refused{Task: t.event(), Reason: event.Invalid}
	if late, ok := errors.AsType[*throttle.TooLateError](err); ok {
		e.Reason, e.Rule, e.At = event.TooLate, late.Rule, late.At
	} else if exceeds, ok := errors.AsType[*throttle.ExceedsLimitError](err); ok {
		e.Reason, e.Rule = event.ExceedsLimit, exceeds.Rule
	}
	t.logRefused(err)
	t.a.history.Of(e.Rule).Refused()
	if tell := t.a.cfg.Observer.Refused; tell != nil {
		tell(ctx, e)
	}
}

// remedies say what to do about tasks that can never run, by what is wrong with them.
var remedies = map[string]string{
	ShadowedNoKey:   "let the payload hold the key, or mend the rule's key",
	ShadowedBadCost: "mend the cost in the payload, or the rule's cost",
	ShadowedNoZone:  "let the payload hold the zone, or name another one in the rule",
	ShadowedExceeds: "raise the limit, or split the task",
	ShadowedTooLate: "give the task a later deadline, or raise the limit",
}

// logRefused says why tasks can never run: not more than a line in a while for each type, rule
// and reason. It has neither key nor payload.
func (t *attempt) logRefused(err error) {
	what, rule, reason := refusedBy(err), "", ""
	if demand, ok := errors.AsType[*queue.DemandError](err); ok {
		rule, reason = demand.Rule, demand.Reason
	} else if late, ok := errors.AsType[*throttle.TooLateError](err); ok {
		rule, reason = late.Rule, "its turn comes after its deadline"
	} else if exceeds, ok := errors.AsType[*throttle.ExceedsLimitError](err); ok {
		rule, reason = exceeds.Rule, fmt.Sprintf("a cost of %d is above the limit %v", exceeds.Cost, exceeds.Limit)
	}
	t.a.logFew("refused "+what+" "+rule+" "+t.taskType, func() {
		t.a.log.Warn("a task can never run, and is archived",
			zap.String("type", t.taskType), zap.String("rule", rule), zap.String("reason", cmp.Or(reason, what)),
			zap.String("remedy", cmp.Or(remedies[what], "see docs/guarantees.md")))
	})
}

// countStartOrRefund is [attempt.countStart], and gives the permits back when the Observer panics.
func (t *attempt) countStartOrRefund(ctx context.Context, rules []string, d throttle.Decision) {
	told := false
	defer func() {
		if !told {
			t.refundAndForget(ctx)
		}
	}()
	t.countStart(ctx, rules, d)
	told = true
}

// countStart counts a handler that starts, under these rules.
func (t *attempt) countStart(ctx context.Context, rules []string, d throttle.Decision) {
	c := &t.a.counters
	c.granted.Add(1)
	if d.Shadowed {
		c.shadowed.add(throttle.ForWorkers.ShadowedFor(d))
	}
	late := time.Duration(0)
	if !d.Promised.IsZero() {
		c.redeemed.Add(1)
		since := d.Promised
		if d.From.After(since) {
			since = d.From
		}
		late = max(0, d.At.Sub(since)) + time.Since(d.Start()) // a raised limit may admit it before the promised instant
		c.lateness.add(late)
		for _, rule := range rules {
			t.a.history.Of(rule).Started(late)
		}
	}
	if tell := t.a.cfg.Observer.Granted; tell != nil {
		tell(ctx, event.Granted{
			Task: t.event(), Rules: rules, At: d.At, From: d.From, Promised: d.Promised, Late: late,
			Shadowed: d.Shadowed, Fallback: d.Fallback != throttle.FailClosed,
		})
	}
}

// freed says that a worker has become free; a waker may wait for one.
func (a *Adapter) freed() {
	a.load.running.Add(-1)
	for _, w := range a.wakers {
		w.workerFreed()
	}
}

// errPaused is why a task of a paused batch is deferred.
type errPaused struct{}

func (errPaused) Error() string { return "worker: its batch is paused" }

// holdForBatch keeps a task from running because of what its batch does. handled says that the task
// must not run now, and that err is the answer of its handler. Of a paused batch err is a deferral
// until the batch goes on, unless an operator lets the task run now. Of a cancelled batch err is nil,
// which ends the task. Either way its bookings are cancelled.
func (t *attempt) holdForBatch(ctx context.Context, task *asynq.Task, runNow bool) (handled bool, err error) {
	id, _, ok := batchscripts.ParseTaskID(t.taskID)
	if !ok {
		return false, nil
	}
	switch t.a.batches.state(ctx, batchID{t.queue, id}) {
	case batchscripts.Paused:
		if runNow || t.mustStay() { // an unknown version of asynq would archive it
			return false, nil
		}
		t.cancelBookings(ctx, task)
		record := queuescripts.WaitRecord{Deadline: t.deadline}
		return true, t.deferTo(deferral{wait: t.pauseFor(), reason: event.Paused, record: record, cause: errPaused{}}, decided{})
	case batchscripts.Cancelled:
		t.cancelBookings(ctx, task)
		t.a.batches.dropped.put(t.a.keys(t.queue).Task(t.taskID), struct{}{}, time.Now())
		return true, nil
	}
	return false, nil
}

// pauseFor is how long a task of a paused batch is deferred. One with a deadline comes back
// when that is over, and fails.
func (t *attempt) pauseFor() time.Duration {
	if t.deadline.IsZero() {
		return pausedWait
	}
	return min(pausedWait, max(0, time.Until(t.deadline))+time.Second)
}

// cancelBookings cancels what a task has booked under its policy.
func (t *attempt) cancelBookings(ctx context.Context, task *asynq.Task) {
	p, ok := t.a.policies[task.Type()]
	if !ok {
		return
	}
	demand, err := p.Demand(task)
	if err != nil {
		return
	}
	_ = t.cleanUp(ctx, func(ctx context.Context) error {
		promoted, err := p.limits.Cancel(ctx, demand.Request(t.job))
		t.a.promotions.add(promoted...)
		return err
	}, nil) // places that stay behind are parked when their instants have come
}
