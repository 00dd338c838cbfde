package throttle

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// lead is how long before its instant a blocked caller asks again: the
	// grant is then spent at the instant itself. Never more than InlineWait:
	// earlier it would only be told to wait.
	lead = 15 * time.Millisecond
	// recheck bounds how long a blocked caller trusts its promise: somebody
	// ahead, in another process, may have left.
	recheck = time.Second
	// A grant that is acted on later than this is acquired anew. Below the
	// least, an ordinary pause of a scheduler or a collector would do it.
	staleMin = 10 * time.Millisecond
	staleMax = time.Second
	// withdrawTimeout bounds the call that takes back a call that was lost.
	withdrawTimeout = time.Second
)

// Acquire takes n permits of key and blocks until they are granted: nil means
// that the caller may go. It joins the line, so callers are served in order of
// arrival. It returns at once when it can never succeed: [ErrExceedsLimit], or
// [ErrTooLate] when ctx ends before the caller's instant. When ctx ends while
// it waits, it leaves the line and returns ctx's cause. A call that Redis does not
// answer ends with ctx only if the client's ContextTimeoutEnabled is set; without
// it, with the client's own time-outs.
//
// Inside a worker (see [WithHost]) it does not sleep: it returns an error that
// the worker recognises, and the task is deferred to its booking. Handlers
// return it as it is and are right in both worlds. There a task may ask once for
// the same permits: a second call with the same rule and key in one attempt, also
// beside the task's own policy, is refused for good, because deferring it would
// give the first permits back. Ask for all of them at once.
func (l *Limiter) Acquire(ctx context.Context, key string, n int) error {
	return l.acquire(ctx, Request{Key: key, Cost: n})
}

// AcquireWithin is [Limiter.Acquire] with a bound on the wait: it fails at
// once with a [TooLateError] when the permits come later than d from now, and
// books nothing then. A d of zero or less admits no wait at all. To wait d out
// and fail then, as Redisson's tryAcquire(timeout) does, is not offered: the
// instant is known at the first answer, and only a refund or a larger limit could
// bring it forward; who wants to wait for that gives ctx the time-out, and calls
// again.
func (l *Limiter) AcquireWithin(ctx context.Context, key string, n int, d time.Duration) error {
	if d <= 0 {
		d = -1
	}
	return l.acquire(ctx, Request{Key: key, Cost: n, MaxWait: d})
}

func (l *Limiter) acquire(ctx context.Context, r Request) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if h := hostFrom(ctx); h != nil {
		return l.acquireHosted(ctx, h, r)
	}
	end, bounded := time.Now().Add(r.MaxWait), r.MaxWait != 0
	if t, ok := ctx.Deadline(); ok && (!bounded || t.Before(end)) {
		end, bounded = t, true
	}
	r.Job = "wait:" + NewToken().String()
	hint := l.waiters.add(r.Job)
	defer l.waiters.remove(r.Job)

	for booked := false; ; {
		if bounded {
			r.MaxWait = least(time.Until(end))
		}
		r.Token = NewToken()
		d, err := l.ask(ctx, luascripts.Grant, r)
		if err != nil {
			lost := l.withdrawLost(ctx, r, err)
			if booked && !lost && !errors.Is(err, ErrTooLate) { // those have left
				l.leave(ctx, r)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		r = d.Request
		if !d.Granted {
			booked = true
			if err := l.waitTurn(ctx, d, hint); err != nil {
				l.withdraw(ctx, r)
				return err
			}
			continue
		}
		if err := wait(ctx, d.Wait(), nil); err != nil {
			l.withdraw(ctx, r)
			return err
		}
		if !l.Stale(d) {
			return nil
		}
		_ = l.comeBack(ctx, r) // this process stood still: the grant is worth nothing now
	}
}

// waitTurn waits until the caller has to ask again. Meanwhile it looks after the
// limit, with all others who wait here: a change rings them.
func (l *Limiter) waitTurn(ctx context.Context, d Decision, hint <-chan struct{}) error {
	end := time.Now().Add(min(recheck, d.Wait()-min(lead, l.cfg.InlineWait)))
	for time.Until(end) > limitPoll {
		rung, err := waitRung(ctx, limitPoll, hint)
		if rung || err != nil {
			return err
		}
		if d.Fallback != FailClosed || l.away.isGone() {
			continue // to look may take as long as Redis hangs
		}
		if limit, err := l.inForce(ctx); err == nil && limit != d.limit {
			return nil
		}
	}
	return wait(ctx, time.Until(end), hint)
}

// Stale says that a grant is too old to be acted on: the process was stopped
// between the answer and now, and acting late would come too close to the next
// grant. Then acquire again. The bound is a tenth of the window, at least
// [staleMin] and at most [staleMax].
func (l *Limiter) Stale(d Decision) bool {
	return d.Age() > min(max(cmp.Or(d.limit, l.limit).Window()/10, staleMin), staleMax)
}

// withdrawLost takes a call back whose answer never came, and its place: it may
// have been charged.
func (l *Limiter) withdrawLost(ctx context.Context, r Request, err error) (lost bool) {
	lost = errors.Is(err, ErrUnavailable) || ctx.Err() != nil
	if lost {
		l.withdraw(ctx, r)
	}
	return lost
}

// withdraw outlives the caller's context: it is needed most when that ended.
// When it fails too, a grant stays charged, and a booking leaves the line at
// its instant. Nobody waits for a Redis that is known to be away.
func (l *Limiter) withdraw(ctx context.Context, r Request) {
	ctx = context.WithoutCancel(ctx)
	if l.away.isGone() {
		go l.withdrawNow(ctx, r) // ends like that of decide
		return
	}
	l.withdrawNow(ctx, r)
}

func (l *Limiter) withdrawNow(ctx context.Context, r Request) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	_, _ = l.Refund(ctx, r)
}

// comeBack gives a grant back that came too late to be used; the job stays
// first in the line.
func (l *Limiter) comeBack(ctx context.Context, r Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	_, err := l.Return(ctx, r)
	return err
}

// least keeps a wait that is used up apart from "any wait", which is zero.
func least(d time.Duration) time.Duration {
	if d <= 0 {
		return -1
	}
	return d
}

// wait returns nil after d, or when hint rings, and ctx's cause when that ends
// first, or ended while Redis was asked: nobody wants the grant any more.
func wait(ctx context.Context, d time.Duration, hint <-chan struct{}) error {
	_, err := waitRung(ctx, d, hint)
	return err
}

// waitRung is [wait], and says whether hint rang.
func waitRung(ctx context.Context, d time.Duration, hint <-chan struct{}) (bool, error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if d <= 0 {
		return false, nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-hint:
		return true, nil
	case <-t.C:
		return false, nil
	}
}
