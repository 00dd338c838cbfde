package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// instead is what a limit would have done with a shadowed grant.
type instead uint8

const (
	insteadOfNothing instead = iota // it is none
	insteadOfWait                   // refused it, or let it wait
	insteadOfLate                   // let it wait too long
	insteadOfNever                  // never admitted it
	insteadOfFault                  // not said: its state can't be read
)

// watched is [Policy.watch] for who passes what is large by pointers.
//
//go:noinline
func (p *Policy) decideInShadowInto(ctx context.Context, mode luascripts.Mode, r *Request, d *Decision) (err error) {
	*d, err = p.decideInShadow(ctx, mode, *r)
	return err
}

// watch asks without waiting or booking, and lets run what was refused.
func (p *Policy) decideInShadow(ctx context.Context, mode luascripts.Mode, r Request) (Decision, error) {
	if mode.Books() { // it spends nothing, and is not to wait
		now := time.Now()
		return Decision{Request: r, Rule: p.rules[0].rule, At: now, Now: now, start: now}, nil
	}
	unbounded := r
	unbounded.MaxWait = 0 // the answer must not depend on it
	var d Decision
	err := p.decideOrFallback(ctx, luascripts.Try, &unbounded, &d)
	d.MaxWait = r.MaxWait
	switch {
	case err == nil && d.Granted:
		return d, nil
	case err == nil:
		d.instead = insteadOfWait
		if r.MaxWait != 0 && d.At.Sub(d.Now) > max(0, r.MaxWait) {
			d.instead = insteadOfLate
		}
		if !d.Promised.IsZero() {
			p.leave(ctx, r) // it stands in the line from before, and runs now
		}
	case ctx.Err() != nil || errors.Is(err, ErrWithdrawn): // the caller's own doing
		return d, err
	case errors.Is(err, ErrExceedsLimit):
		d.instead = insteadOfNever
	default:
		d.instead = insteadOfFault
	}
	d.Refused = false
	d.Granted, d.Shadowed, d.made, d.start = true, true, fromNowhere, time.Now()
	return d, nil
}
