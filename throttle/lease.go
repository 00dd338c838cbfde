package throttle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/limitscripts"
)

// lease is what a grant holds by one rule that limits how many run at once.
type lease struct {
	limiter *Limiter
	limit   limitInForce  // by which it was granted
	store   *clockedStore // where it was granted
	key     string
	token   uint64
}

// leaseOf is the lease that a grant holds by the rule i, if it holds one.
func leaseOf(p *Policy, d *Decision, i int) (lease, bool) {
	if !d.Granted || d.made == fromNowhere || i >= len(d.grant.limits) || !d.grant.limits[i].IsConcurrent() {
		return lease{}, false
	}
	s := lease{p.rules[i], d.grant.limits[i], p.store, d.keyCost(i).Key, uint64(d.Token)}
	if d.made == fromFallback {
		s.store = p.fallback.localStore()
	}
	return s, true
}

// shortestLease is the shortest lease of a grant, 0 when there is none.
func shortestLease(p *Policy, d Decision) time.Duration {
	least := time.Duration(0)
	for i := range p.rules {
		if s, ok := leaseOf(p, &d, i); ok && (least == 0 || s.limit.Window() < least) {
			least = s.limit.Window()
		}
	}
	return least
}

// leaseRule is the first rule by which a grant holds a lease; empty for none.
func leaseRule(p *Policy, d *Decision) string {
	for i, l := range p.rules {
		if _, ok := leaseOf(p, d, i); ok {
			return l.rule
		}
	}
	return ""
}

// keys are those that the lease stands in.
func (s *lease) keys() limitscripts.LimitKeys { return s.limiter.names.Of(s.limiter.ID(s.key)) }

// release ends the lease by the limit of now: it says for how many there is a place.
func (s *lease) release(ctx context.Context) (reply limitscripts.ReleaseReply, err error) {
	l := s.limiter
	keys := byID(l.met.id(l, s.key))
	limit, err := l.ofKey(ctx, l.lastLimitInForce(), keys, 0, 0)
	if err != nil {
		limit = s.limit
	}
	t := storeCall{rules: ruleSet{l}, store: s.store, keys: keys, limits: []limitInForce{limit}}
	calls := []limitscripts.RuleCall{{LimitKeys: s.keys(), Cost: 1}}
	for again := true; again; {
		setLimits(calls, t.limits, t.begin())
		reply, err = s.store.release(ctx, calls[0], s.token)
		again, err = t.again(ctx, "release", answer{reply.Status, 1, reply.Version, reply.Now}, err)
	}
	return reply, err
}

// renewal asks to let the lease go on for its length from now.
func (s *lease) renewal() limitscripts.RenewArgs {
	return limitscripts.RenewArgs{RuleCall: limitscripts.RuleCall{LimitKeys: s.keys(), Numbers: s.limit.numbers(time.Time{})}, Token: s.token}
}

// Release ends the leases of a grant: the handler has returned. The permits of
// the other rules stay spent. The Promotions are the jobs that come next. It is
// idempotent: after an error call it again. The error joins those of the leases that
// were not ended, first the one for which another call may help. A call that Redis does not answer ends as
// [Limiter.Acquire] says.
func (p *Policy) Release(ctx context.Context, d Decision) ([]Promotion, error) {
	var promoted []Promotion
	var errs []error
	for i := range p.rules {
		s, ok := leaseOf(p, &d, i)
		if !ok {
			continue
		}
		reply, err := s.release(ctx)
		if err != nil {
			at := len(errs)
			if ForWorkers.MayPass(err) {
				at = 0
			}
			errs = slices.Insert(errs, at, err)
			continue
		}
		for j := range reply.Promoted {
			reply.Promoted[j].Rule = i + 1
		}
		promoted = append(promoted, p.rules.promotions(reply.Promoted, p.rules.ids(d.Request), reply.Now)...)
	}
	return promoted, errors.Join(errs...)
}

// Renew makes the leases of many grants go on for their length from now, in one
// round trip for those in Redis. An error is [ErrLeaseLost], or what kept it from
// being answered.
func (p *Policy) Renew(ctx context.Context, grants []Decision) []error {
	out := make([]error, len(grants))
	type renewals struct {
		args   []limitscripts.RenewArgs
		grants []int // whose leases they renew
	}
	byStore := make(map[*clockedStore]*renewals)
	for n := range grants {
		for i := range p.rules {
			s, ok := leaseOf(p, &grants[n], i)
			if !ok {
				continue
			}
			at := byStore[s.store]
			if at == nil {
				at = &renewals{}
				byStore[s.store] = at
			}
			at.args, at.grants = append(at.args, s.renewal()), append(at.grants, n)
		}
	}
	for store, at := range byStore {
		for i, r := range store.renew(ctx, at.args) {
			err := p.rules.fault(ctx, "renew", 0, 0, r.Err)
			if err == nil && !r.Held {
				err = ErrLeaseLost
			}
			if n := at.grants[i]; out[n] == nil || errors.Is(err, ErrLeaseLost) {
				out[n] = err
			}
		}
	}
	return out
}

// Hold keeps the leases of a grant until release is called: it renews them in the
// background, and cancels the context that it returns, with the cause
// [ErrLeaseLost], when one is lost: it ended before it was renewed, or Redis did
// not answer for so long that it may have. Until release returns no other job gets
// the place, unless it was lost. release ends the leases at once and returns
// the jobs that come next; it works after ctx has ended. After an error call it again: the leases
// are not renewed any more, but may stand until they end by themselves. After a success it does nothing,
// and of a grant without leases it never does anything. A call of release that Redis does not answer ends as [Limiter.Acquire] says.
func (p *Policy) Hold(ctx context.Context, d Decision) (held context.Context, release func(context.Context) ([]Promotion, error)) {
	lease := shortestLease(p, d)
	if lease == 0 {
		return ctx, func(context.Context) ([]Promotion, error) { return nil, nil }
	}
	held, lose := context.WithCancelCause(ctx)
	// a caller that gives the work up ends its context, but the handler may still run
	// and needs its leases
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	k := &keeper{p: p, d: d, heldFor: lease - lease/10}
	k.lost = sync.OnceFunc(func() {
		lose(ErrLeaseLost)
		if tell := p.cfg.Observer.LeaseLost; tell != nil {
			tell(held, event.LeaseLost{Task: taskOf(d.Job), Rule: leaseRule(p, &d)})
		}
	})
	k.expiry = time.AfterFunc(time.Until(d.startEarliest.Add(k.heldFor)), k.lost)
	var wg sync.WaitGroup
	wg.Go(func() { k.renew(renewing, lease/3) })
	releasing := newAskLock() // the second of two calls at once waits for the first
	released := false
	return held, func(ctx context.Context) (promoted []Promotion, err error) {
		if err := releasing.lock(ctx); err != nil {
			return nil, p.rules.fault(ctx, "release", 0, 0, err)
		}
		defer releasing.unlock()
		if released {
			return nil, nil
		}
		k.expiry.Stop()
		stop()
		wg.Wait()
		promoted, err = p.Release(ctx, d)
		lose(context.Canceled)
		released = err == nil
		return promoted, err
	}
}

// keeper renews the leases of one grant. By the local clock they are trusted for
// less long than Redis keeps them: a call that hangs must not keep the holder from
// hearing that they may have ended.
type keeper struct {
	p       *Policy
	d       Decision
	heldFor time.Duration
	expiry  *time.Timer
	lost    func()
}

func (k *keeper) renew(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		began := time.Now()
		asked, cancel := context.WithTimeout(ctx, every)
		err := k.p.Renew(asked, []Decision{k.d})[0]
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrLeaseLost):
			k.lost()
			return
		case err == nil && !k.expiry.Reset(time.Until(began.Add(k.heldFor))):
			return // it has fired
		}
	}
}
