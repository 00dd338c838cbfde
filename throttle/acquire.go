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
