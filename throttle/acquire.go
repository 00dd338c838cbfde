package throttle

import (
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
	// earlier it would only get a booking.
	lead = 15 * time.Millisecond
	// recheck bounds how long a blocked caller trusts its promise: a caller
	// ahead of it, in another process, may have left.
	recheck = time.Second
)

// waiter is one caller of this process that blocks until its job is granted. It asks,
// sleeps until its instant comes or a script promotes the job, and asks again.
type waiter struct {
	p        *Policy
	job      string
	promoted chan struct{} // is sent to when a script promotes the job, in the line of any rule
}

// newWaiter listens for promotions of the job, until stop.
func newWaiter(p *Policy, job string) waiter {
	w := waiter{p: p, job: job, promoted: make(chan struct{}, 1)}
	for _, l := range p.rules {
		l.waiters.add(job, w.promoted)
	}
	return w
}

func (w waiter) stop() {
	for _, l := range w.p.rules {
		l.waiters.remove(w.job)
	}
}

// acquire asks for r as the waiter's job until it is granted, and may be used at once.
func (w waiter) acquire(ctx context.Context, r Request) (Decision, error) {
	p := w.p
	r.Job = w.job
	began := time.Now()
	end, bounded := began.Add(r.MaxWait), r.MaxWait != 0
	if t, ok := ctx.Deadline(); ok && (!bounded || t.Before(end)) {
		end, bounded = t, true
	}
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
			if err := w.waitForPlace(ctx, d); err != nil {
				p.withdraw(ctx, r)
				return d, err
			}
			continue
		}
		if err := wait(ctx, d.Wait(), nil); err != nil {
			p.withdraw(ctx, r)
			return d, err
		}
		if !d.stale() {
			d.Waited = time.Since(began)
			return d, nil
		}
		_ = p.comeBack(ctx, r) // this process stood still: the grant is worth nothing now
	}
}

// waitForPlace waits until the caller has to ask again. Meanwhile it looks for a change
// of the limits, together with all others that wait in this process.
func (w waiter) waitForPlace(ctx context.Context, d Decision) error {
	end := time.Now().Add(min(recheck, d.Wait()-min(lead, w.p.cfg.InlineWait)))
	for time.Until(end) > limitPoll {
		woken, err := waitPromoted(ctx, limitPoll, w.promoted)
		if woken || err != nil {
			return err
		}
		if d.Fallback != FailClosed || w.p.fallback.isUnavailable() {
			continue // to look may take as long as Redis hangs
		}
		if in, err := w.p.activeLimits(ctx, byRequest(&d.Request)); err == nil && !sameLimits(in, d.grant.limits) {
			return nil
		}
	}
	return wait(ctx, time.Until(end), w.promoted)
}

// sameLimits says whether what is in force is what decided.
func sameLimits(in, decided []activeLimit) bool {
	return slices.EqualFunc(in, decided, func(a, b activeLimit) bool {
		return a.Limit == b.Limit && a.closed.Equal(b.closed)
	})
}

// leastWait keeps a wait that is used up apart from zero, which means any wait.
func leastWait(d time.Duration) time.Duration {
	if d <= 0 {
		return -1
	}
	return d
}

// wait returns nil after d, or when promoted is sent to. It returns the cause of ctx
// when that ends first, or has ended already: then nobody wants the grant any more.
func wait(ctx context.Context, d time.Duration, promoted <-chan struct{}) error {
	_, err := waitPromoted(ctx, d, promoted)
	return err
}

// waitPromoted is [wait], and says whether promoted was sent to.
func waitPromoted(ctx context.Context, d time.Duration, promoted <-chan struct{}) (bool, error) {
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
	case <-promoted:
		return true, nil
	case <-t.C:
		return false, nil
	}
}

// hostFrom is the worker that runs the caller's task; nil outside of a worker.
func hostFrom(ctx context.Context) Host {
	h, _ := ctx.Value(hostKey{}).(Host)
	return h
}

// acquireHosted asks once. A caller's own bound and the task's deadline both
// hold.
func acquireHosted(ctx context.Context, h Host, p *Policy, r Request) (Decision, error) {
	r.Job = h.Job()
	r.Token = NewToken()
	if w := h.MaxWait(); w != 0 && (r.MaxWait == 0 || w < r.MaxWait) {
		r.MaxWait = w
	}
	for {
		d, err := h.Ask(ctx, p, r)
		switch {
		case err != nil:
			return d, err
		case !d.Granted:
			return d, h.Defer(ctx, p, d)
		}
		fresh, err := h.Begin(ctx, p, d)
		if fresh || err != nil {
			return d, err
		}
		r.Token = NewToken()
	}
}

// waiters are the callers of this process that block in Acquire. A caller is woken
// when a script promotes its job. The zero value is ready.
type waiters struct {
	mu      sync.Mutex
	waiting map[string]chan struct{}
}

func (w *waiters) add(job string, promoted chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = make(map[string]chan struct{})
	}
	w.waiting[job] = promoted
}

func (w *waiters) remove(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, job)
}

func (w *waiters) wake(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if promoted, ok := w.waiting[job]; ok {
		notify(promoted)
	}
}

// wakeAll wakes all of them: the limit has changed.
func (w *waiters) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, promoted := range w.waiting {
		notify(promoted)
	}
}

func notify(promoted chan struct{}) {
	select {
	case promoted <- struct{}{}:
	default: // it is ringing already
	}
}
