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
	// earlier it would only get a booking.
	lead = 15 * time.Millisecond
	// recheck bounds how long a blocked caller trusts its promise: a caller
	// ahead of it, in another process, may have left.
	recheck = time.Second
	// A grant that is acted on later than this is acquired anew. Below the
	// least, an ordinary pause of a scheduler or a collector would do it.
	staleMin = 10 * time.Millisecond
	staleMax = time.Second
	// withdrawTimeout bounds the call that takes back a call that was lost.
	withdrawTimeout = time.Second
)

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
	promoted := p.listen(r.Job)
	defer p.unlisten(r.Job)

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
			if err := p.waitForPlace(ctx, d, promoted); err != nil {
				p.withdraw(ctx, r)
				return d, err
			}
			continue
		}
		if err := wait(ctx, d.Wait(), nil); err != nil {
			p.withdraw(ctx, r)
			return d, err
		}
		if !p.stale(d) {
			return d, nil
		}
		_ = p.comeBack(ctx, r) // this process stood still: the grant is worth nothing now
	}
}

func hostFrom(ctx context.Context) Host {
	h, _ := ctx.Value(hostKey{}).(Host)
	return h
}

// acquireHosted asks once. A caller's own bound and the task's deadline both
// hold.
func (p *Policy) acquireHosted(ctx context.Context, h Host, r Request) (Decision, error) {
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

// listen returns a channel that is sent to when a script promotes the job, in the
// line of any rule.
func (p *Policy) listen(job string) <-chan struct{} {
	promoted := make(chan struct{}, 1)
	for _, l := range p.rules {
		l.waiters.add(job, promoted)
	}
	return promoted
}

// unlisten ends [Policy.listen].
func (p *Policy) unlisten(job string) {
	for _, l := range p.rules {
		l.waiters.remove(job)
	}
}

// waitForPlace waits until the caller has to ask again. Meanwhile it looks for a change
// of the limits, together with all others that wait in this process.
func (p *Policy) waitForPlace(ctx context.Context, d Decision, promoted <-chan struct{}) error {
	end := time.Now().Add(min(recheck, d.Wait()-min(lead, p.cfg.InlineWait)))
	for time.Until(end) > limitPoll {
		woken, err := waitPromoted(ctx, limitPoll, promoted)
		if woken || err != nil {
			return err
		}
		if d.Fallback != FailClosed || p.availability.isUnavailable() {
			continue // to look may take as long as Redis hangs
		}
		if in, err := p.activeLimits(ctx); err == nil && !sameLimits(in, d.grant.limits) {
			return nil
		}
	}
	return wait(ctx, time.Until(end), promoted)
}

// wake wakes a job that waits here.
func (p *Policy) wake(job string) {
	for _, l := range p.rules {
		l.waiters.wake(job)
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
	least := windowMax
	for i, l := range p.rules {
		limit := l.limit
		if i < len(d.grant.limits) {
			limit = cmp.Or(d.grant.limits[i].Limit, limit)
		}
		least = min(least, limit.Window())
	}
	return least
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
