package throttle

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/rediserr"
)

// Counts is how often a limiter of this process decided what, since it was
// made. Answers are counted, not permits.
type Counts struct {
	Granted  uint64 // the limit admitted it, or a fallback
	Booked   uint64 // got a place in a line; asking about one again is not counted
	Refused  uint64 // TryAcquire was answered no
	TooLate  uint64 // [ErrTooLate]; in shadow mode what would have been
	Exceeded uint64 // [ErrExceedsLimit]; in shadow mode what would have been
	Shadowed uint64 // granted in shadow mode although the limit did not admit it; none of Granted
	Fallback uint64 // of all, those decided without Redis
	Failed   uint64 // not decided: [ErrUnavailable], or a state that can't be read
}

type counters struct {
	granted, booked, refused, tooLate, exceeded, shadowed, fallback, failed atomic.Uint64
}

func (c *counters) add(mode limitscripts.Mode, d *Decision, err error) {
	if d.Fallback != FailClosed {
		c.fallback.Add(1)
	}
	if d.Shadowed {
		c.shadowed.Add(1)
	}
	switch {
	case errors.Is(err, ErrTooLate) || d.instead == insteadOfLate:
		c.tooLate.Add(1)
	case errors.Is(err, ErrExceedsLimit) || d.instead == insteadOfNever:
		c.exceeded.Add(1)
	case isCallers(err) || d.instead == insteadOfWait:
	case err != nil || d.instead == insteadOfFault:
		c.failed.Add(1)
	case d.Granted:
		c.granted.Add(1)
	case mode == limitscripts.Try || d.Refused:
		c.refused.Add(1)
	case d.Promised.IsZero():
		c.booked.Add(1)
	}
}

// isCallers says that an error is its caller's own doing, and no decision.
func isCallers(err error) bool {
	for _, own := range []error{ErrInvalidKey, ErrInvalidJob, ErrInvalidCost, ErrWithdrawn} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

// tell tells the observer of a decision.
func (a *acquisition) tell(ctx context.Context, err error) {
	p, d, o := a.p, &a.d, &a.p.cfg.Observer
	if o.RedisAway != nil || o.RedisBack != nil {
		a.tellOutage(ctx, err)
	}
	switch {
	case err != nil:
		gone := ctx.Err() != nil // its caller does not wait for the answer
		if o.Refused != nil && !gone && !errors.Is(err, ErrWithdrawn) {
			o.Refused(ctx, refusal(d, err))
		}
	case p.cfg.Shadow && a.mode.NeverGrants(): // nothing was asked
	case d.Granted:
		if o.Granted != nil {
			o.Granted(ctx, event.Granted{
				Task: taskOf(d.Job), Rules: p.ruleNames, At: d.At, From: d.From, Promised: d.Promised,
				Shadowed: d.Shadowed, Fallback: d.Fallback != FailClosed,
			})
		}
	case a.mode == limitscripts.Try || d.Refused:
		if o.Refused != nil {
			o.Refused(ctx, event.Refused{Task: taskOf(d.Job), Rule: d.Rule, Reason: event.NoPermits, At: d.At})
		}
	case d.Promised.IsZero(): // otherwise it is in the line already
		if o.Deferred != nil {
			reason := event.Booked
			if d.Gated {
				reason = event.Gated
			}
			o.Deferred(ctx, event.Deferred{Task: taskOf(d.Job), Rule: d.Rule, Reason: reason, At: d.At, Wait: d.At.Sub(d.Now)})
		}
	}
}

// refusal is the event of a decision that failed.
func refusal(d *Decision, err error) event.Refused {
	e := event.Refused{Task: taskOf(d.Job), Rule: d.Rule, Reason: event.Unavailable}
	late, isLate := errors.AsType[*TooLateError](err)
	exceeds, isMore := errors.AsType[*ExceedsLimitError](err)
	switch {
	case isLate:
		e.Reason, e.Rule, e.At = event.TooLate, late.Rule, late.At
	case isMore:
		e.Reason, e.Rule = event.ExceedsLimit, exceeds.Rule
	case isCallers(err):
		e.Reason = event.Invalid
	}
	return e
}

// tellOutage tells the observer when Redis goes and when it comes back.
func (a *acquisition) tellOutage(ctx context.Context, err error) {
	p, d, o := a.p, &a.d, &a.p.cfg.Observer
	away := errors.Is(err, ErrUnavailable) && ctx.Err() == nil && (!ForWorkers.Answered(err) || rediserr.Of(err) == rediserr.Passing)
	switch {
	case away || err == nil && d.Fallback != FailClosed:
		if p.awaySince.CompareAndSwap(0, time.Now().UnixNano()) && o.RedisAway != nil {
			if err == nil {
				err = ErrUnavailable // the fallback kept the cause
			}
			o.RedisAway(ctx, event.RedisAway{Err: err})
		}
	case err == nil && !d.Shadowed && p.awaySince.Load() != 0:
		if since := p.awaySince.Swap(0); since != 0 && o.RedisBack != nil {
			o.RedisBack(ctx, event.RedisBack{For: time.Duration(time.Now().UnixNano() - since)})
		}
	}
}

// taskOf is the task that a job is, if it is one.
func taskOf(job string) event.Task {
	queue, id, _ := luascripts.TaskOf(job)
	return event.Task{Queue: queue, ID: id}
}
