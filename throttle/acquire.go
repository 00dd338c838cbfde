package throttle

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
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
	_, err := l.policy.acquire(ctx, Request{Key: key, Cost: n})
	return err
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
	_, err := l.policy.acquire(ctx, Request{Key: key, Cost: n, MaxWait: d})
	return err
}

func (p *Policy) acquire(ctx context.Context, r Request) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, context.Cause(ctx)
	}
	if h := hostFrom(ctx); h != nil {
		return p.acquireHosted(ctx, h, r)
	}
	end, bounded := time.Now().Add(r.MaxWait), r.MaxWait != 0
	if t, ok := ctx.Deadline(); ok && (!bounded || t.Before(end)) {
		end, bounded = t, true
	}
	r.Job = "wait:" + NewToken().String()
	hint := p.listen(r.Job)
	defer p.hush(r.Job)

	for booked := false; ; {
		if bounded {
			r.MaxWait = leastWait(time.Until(end))
		}
		r.Token = NewToken()
		d, err := p.decide(ctx, luascripts.GrantOrBook, r)
		if err != nil {
			lost := p.withdrawLost(ctx, r, err)
			if booked && !lost && !errors.Is(err, ErrTooLate) { // those have left
				p.leave(ctx, r)
			}
			if ctx.Err() != nil {
				return d, context.Cause(ctx)
			}
			return d, err
		}
		r = d.Request
		if !d.Granted {
			booked = true
			if err := p.waitTurn(ctx, d, hint); err != nil {
				p.withdraw(ctx, r)
				return d, err
			}
			continue
		}
		if err := wait(ctx, d.Wait(), nil); err != nil {
			p.withdraw(ctx, r)
			return d, err
		}
		if !p.Stale(d) {
			return d, nil
		}
		_ = p.comeBack(ctx, r) // this process stood still: the grant is worth nothing now
	}
}

// listen makes a bell that rings when a script says that the job's turn came
// earlier, in the line of any rule.
func (p *Policy) listen(job string) <-chan struct{} {
	bell := make(chan struct{}, 1)
	for _, l := range p.rules {
		l.waiters.add(job, bell)
	}
	return bell
}

func (p *Policy) hush(job string) {
	for _, l := range p.rules {
		l.waiters.remove(job)
	}
}

// waitTurn waits until the caller has to ask again. Meanwhile it looks after the
// limit, with all others who wait here: a change rings them.
func (p *Policy) waitTurn(ctx context.Context, d Decision, hint <-chan struct{}) error {
	end := time.Now().Add(min(recheck, d.Wait()-min(lead, p.cfg.InlineWait)))
	for time.Until(end) > limitPoll {
		rung, err := waitRung(ctx, limitPoll, hint)
		if rung || err != nil {
			return err
		}
		if d.Fallback != FailClosed || p.availability.isUnavailable() {
			continue // to look may take as long as Redis hangs
		}
		if in, err := p.activeLimits(ctx); err == nil && !sameLimits(in, d.grant.limits) {
			return nil
		}
	}
	return wait(ctx, time.Until(end), hint)
}

// ring wakes a job that waits here.
func (p *Policy) ring(job string) {
	for _, l := range p.rules {
		l.waiters.ring(job)
	}
}

// sameLimits says whether what is in force is what decided.
func sameLimits(in, decided []activeLimit) bool {
	return slices.EqualFunc(in, decided, func(a, b activeLimit) bool {
		return a.Limit == b.Limit && a.closed.Equal(b.closed)
	})
}

// shortest is the shortest window of the limits that decided.
func (p *Policy) shortest(d Decision) time.Duration {
	least := WindowMax
	for i, l := range p.rules {
		limit := l.limit
		if i < len(d.grant.limits) {
			limit = cmp.Or(d.grant.limits[i].Limit, limit)
		}
		least = min(least, limit.Window())
	}
	return least
}

// withdrawLost takes a call back whose answer never came, and its place: it may
// have been charged.
func (p *Policy) withdrawLost(ctx context.Context, r Request, err error) (lost bool) {
	lost = errors.Is(err, ErrUnavailable) || ctx.Err() != nil
	if lost {
		p.withdraw(ctx, r)
	}
	return lost
}

// withdraw outlives the caller's context: it is needed most when that ended.
// When it fails too, a grant stays charged, and a booking leaves the line at
// its instant. Nobody waits for a Redis that is known to be away.
func (p *Policy) withdraw(ctx context.Context, r Request) {
	ctx = context.WithoutCancel(ctx)
	if p.availability.isUnavailable() {
		go p.withdrawNow(ctx, r) // ends like that of decide
		return
	}
	p.withdrawNow(ctx, r)
}

func (p *Policy) withdrawNow(ctx context.Context, r Request) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	_, _ = p.Refund(ctx, r)
}

// comeBack gives a grant back that came too late to be used; the job stays
// first in the line.
func (p *Policy) comeBack(ctx context.Context, r Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	_, err := p.Return(ctx, r)
	return err
}

// least keeps a wait that is used up apart from "any wait", which is zero.
func leastWait(d time.Duration) time.Duration {
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

// waiters rings callers of this process that block in Acquire, when a script
// says that their turn came earlier. The zero value is ready.
type waiters struct {
	mu    sync.Mutex
	bells map[string]chan struct{}
}

func (w *waiters) add(job string, bell chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bells == nil {
		w.bells = make(map[string]chan struct{})
	}
	w.bells[job] = bell
}

func (w *waiters) remove(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.bells, job)
}

func (w *waiters) ring(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bell, ok := w.bells[job]; ok {
		pull(bell)
	}
}

// ringAll rings everybody: the limit has changed.
func (w *waiters) ringAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, bell := range w.bells {
		pull(bell)
	}
}

func pull(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default: // it is ringing already
	}
}
