package throttle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// leaseFor is the shortest lease of a grant, 0 when there is none.
func (p *Policy) leaseFor(d Decision) time.Duration {
	least := time.Duration(0)
	p.eachLease(d, func(_ *Limiter, in activeLimit, _ int) {
		if least == 0 || in.Window() < least {
			least = in.Window()
		}
	})
	return least
}

// Release ends the leases of a grant: the handler has returned. The permits of
// the other rules stay spent. The Promotions are the jobs that come next. It is
// idempotent.
func (p *Policy) Release(ctx context.Context, d Decision) ([]Promotion, error) {
	var promoted []Promotion
	var errs []error
	p.eachLease(d, func(l *Limiter, _ activeLimit, i int) {
		in := l.lastActiveLimit() // for how many there is a place now
		for range roundTripsMax {
			part := luascripts.RuleCall{LimitKeys: l.keys(l.ID(d.keyCost(i).Key)), Numbers: in.numbers(time.Time{}), Cost: 1, Closed: in.closed}
			part.Version = in.version
			reply, err := p.leaseStore(d).release(ctx, part, uint64(d.Token))
			if err = l.fault("release", reply.Status, err); err != nil {
				errs = append(errs, err)
				return
			}
			if reply.Status != luascripts.Outdated {
				for j := range reply.Promoted {
					reply.Promoted[j].Part = i + 1
				}
				promoted = append(promoted, p.promotions(reply.Promoted, reply.Now)...)
				return
			}
			if in, err = l.catchUp(ctx, reply.Version); err != nil {
				errs = append(errs, err)
				return
			}
		}
	})
	return promoted, errors.Join(errs...)
}

// Renew makes the leases of many grants go on for their length from now, in one
// round trip for those in Redis. An error is [ErrLeaseLost], or what kept it from
// being answered.
func (p *Policy) Renew(ctx context.Context, grants []Decision) []error {
	out := make([]error, len(grants))
	type asked struct {
		grant int
		args  luascripts.RenewArgs
	}
	byStore := make(map[*clockedStore][]asked)
	for n, d := range grants {
		p.eachLease(d, func(l *Limiter, in activeLimit, i int) {
			part := luascripts.RuleCall{LimitKeys: l.keys(l.ID(d.keyCost(i).Key)), Numbers: in.numbers(time.Time{})}
			at := p.leaseStore(d)
			byStore[at] = append(byStore[at], asked{n, luascripts.RenewArgs{RuleCall: part, Token: uint64(d.Token)}})
		})
	}
	for at, all := range byStore {
		args := make([]luascripts.RenewArgs, len(all))
		for i, a := range all {
			args[i] = a.args
		}
		for i, r := range at.renew(ctx, args) {
			err := p.fault("renew", 0, 0, r.Err)
			if err == nil && !r.Held {
				err = ErrLeaseLost
			}
			if out[all[i].grant] == nil || errors.Is(err, ErrLeaseLost) {
				out[all[i].grant] = err
			}
		}
	}
	return out
}

// leaseStore is where a grant was made.
func (p *Policy) leaseStore(d Decision) *clockedStore {
	if d.made == fromFallback {
		return p.availability.fallbackStore()
	}
	return p.store
}

// eachLease calls f for each rule by which a grant holds a lease.
func (p *Policy) eachLease(d Decision, f func(l *Limiter, in activeLimit, i int)) {
	if !d.Granted || d.made == fromNowhere {
		return
	}
	for i, l := range p.rules {
		if i < len(d.grant.limits) && d.grant.limits[i].IsConcurrent() {
			f(l, d.grant.limits[i], i)
		}
	}
}

// Hold keeps the leases of a grant until release is called: it renews them in the
// background, and cancels the context that it returns, with the cause
// [ErrLeaseLost], when one is lost: it ended before it was renewed, or Redis did
// not answer for so long that it may have. Until release returns no other job gets
// the place, unless it was lost. release ends the leases at once and returns
// the jobs that come next; it is idempotent, and works after ctx has ended. Of a grant without
// leases it does nothing.
func (p *Policy) Hold(ctx context.Context, d Decision) (held context.Context, release func(context.Context) ([]Promotion, error)) {
	lease := p.leaseFor(d)
	if lease == 0 {
		return ctx, func(context.Context) ([]Promotion, error) { return nil, nil }
	}
	held, lose := context.WithCancelCause(ctx)
	// a caller that gives the work up ends its context, but the handler may still run
	// and needs its leases
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	k := &keeper{p: p, d: d, heldFor: lease - lease/10, lost: func() { lose(ErrLeaseLost) }}
	k.expiry = time.AfterFunc(time.Until(d.surely.Add(k.heldFor)), k.lost)
	var wg sync.WaitGroup
	wg.Go(func() { k.renew(renewing, lease/3) })
	var once sync.Once
	return held, func(ctx context.Context) (promoted []Promotion, err error) {
		once.Do(func() {
			k.expiry.Stop()
			stop()
			wg.Wait()
			promoted, err = p.Release(ctx, d)
			lose(context.Canceled)
		})
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
