package throttle

import (
	"context"
	"errors"
	"time"
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
// books nothing then. A d of zero or less admits no wait at all.
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

	for {
		if bounded {
			r.MaxWait = least(time.Until(end))
		}
		r.Token = NewToken()
		d, err := l.Redeem(ctx, r)
		if err != nil {
			l.withdrawLost(ctx, r, err)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		if !d.Granted {
			if err := wait(ctx, min(recheck, d.Wait()-min(lead, l.cfg.InlineWait)), hint); err != nil {
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
		l.comeBack(ctx, r) // this process stood still: the grant is worth nothing now
	}
}

// Stale says that a grant is too old to be acted on: the process was stopped
// between the answer and now, and acting late would come too close to the next
// grant. Then acquire again. The bound is a tenth of the window, at least
// [staleMin] and at most [staleMax].
func (l *Limiter) Stale(d Decision) bool {
	return d.Age() > min(max(l.limit.window/10, staleMin), staleMax)
}

// withdrawLost takes a call back whose answer never came: it may have been
// charged.
func (l *Limiter) withdrawLost(ctx context.Context, r Request, err error) {
	if errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
		l.withdraw(ctx, r)
	}
}

// withdraw outlives the caller's context: it is needed most when that ended.
// When it fails too, a grant stays charged, and a booking leaves the line at
// its instant.
func (l *Limiter) withdraw(ctx context.Context, r Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	_, _ = l.Refund(ctx, r)
}

// comeBack gives a grant back that came too late to be used; the job stays
// first in the line.
func (l *Limiter) comeBack(ctx context.Context, r Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	_, _ = l.Return(ctx, r)
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
	case <-hint:
	case <-t.C:
	}
	return nil
}
