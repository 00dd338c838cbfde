package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// withdrawTimeout bounds the call that takes back a call that was lost.
const withdrawTimeout = time.Second

// Cancel takes the booking of r.Job out of the line; without one it does nothing. The
// Promotions are the jobs that come next.
func (p *Policy) Cancel(ctx context.Context, r Request) ([]Promotion, error) {
	r.Token = 0
	return p.takeBack(ctx, r, noPlace)
}

// Refund gives the grant of r.Token back, if it has one, and takes the booking
// of r.Job out of the line, if there is one. The token is refused from then
// on, for at least a minute, so a copy of its call that comes late is not
// charged. It is idempotent, as long as the grant would have counted. A grant whose
// charge was corrected meanwhile is adjusted to 0 instead, see [Charge.Adjust].
//
// Hand back the Request of the [Decision]: it knows where the grant was made and when,
// and what it is worth. A minute after the grant its Token alone is not known any
// more, and a Request that only names it gives nothing back.
func (p *Policy) Refund(ctx context.Context, r Request) ([]Promotion, error) {
	return p.takeBack(ctx, r, noPlace)
}

// placeAfter is the place that a job gets for what it gives back.
type placeAfter bool

const (
	noPlace    placeAfter = false
	firstPlace placeAfter = true // in the line of the narrowest rule; in the others the job is parked
)

// takeBack gives back what r has, where r has it. It does not ask whether the limits
// admit r: they may have been larger when the grant was made.
func (p *Policy) takeBack(ctx context.Context, r Request, after placeAfter) ([]Promotion, error) {
	if err := r.check(p.rules); err != nil {
		return nil, err
	}
	if r.made == fromNowhere {
		return nil, nil
	}
	return refund{p: p, ids: p.rules.ids(r), r: r, after: after}.run(ctx)
}

// withdrawLost takes back a call whose reply never came, and its place in line: it
// may have been charged.
func (p *Policy) withdrawLost(ctx context.Context, r Request, err error) (lost bool) {
	lost = errors.Is(err, ErrUnavailable) || ctx.Err() != nil
	if lost {
		p.withdraw(ctx, r)
	}
	return lost
}

// withdraw outlives the caller's context: it is needed most when that ended.
// When it fails too, a grant stays charged, and a booking leaves the line at
// its instant. It does not wait for a Redis that is known to be unavailable.
func (p *Policy) withdraw(ctx context.Context, r Request) {
	ctx = context.WithoutCancel(ctx)
	if p.fallback.isUnavailable() {
		go p.withdrawNow(ctx, r) // ends with withdrawTimeout, or with the client's own time-outs
		return
	}
	p.withdrawNow(ctx, r)
}

func (p *Policy) withdrawNow(ctx context.Context, r Request) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	_, _ = p.Refund(ctx, r)
}

// cancelBooking takes r.Job out of the lines, as well as it can. A place that stays behind
// is passed 100 ms after its instant.
func (p *Policy) cancelBooking(ctx context.Context, r Request) {
	r.Token = 0
	p.withdraw(ctx, r)
}

// returnGrant gives a grant back that came too late to be used; the job stays
// first in the line.
func (p *Policy) returnGrant(ctx context.Context, r Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	_, err := ForWorkers.Return(ctx, p, r)
	return err
}

// refund takes back what one request has: its grant, and its place in line.
type refund struct {
	p     *Policy
	ids   []string // the keys as they stand in Redis, by rule
	r     Request
	after placeAfter
}

// run gives back where the grant was made, or the place is: in this process, in Redis,
// or in both.
func (f refund) run(ctx context.Context) ([]Promotion, error) {
	if local := f.p.fallback.local.Load(); local != nil {
		promoted, given, err := f.in(ctx, newStoreCallBy(f.p, local, f.p.rules.lastKnown(ctx, byID(f.ids...))))
		if err != nil || given || f.r.made == fromFallback {
			return promoted, err
		}
	}
	promoted, err := f.toStore(ctx)
	if errors.Is(err, ErrStoredLimit) { // a caller that gives something back is not to blame
		limits := make([]limitInForce, len(f.p.rules))
		for i, l := range f.p.rules {
			limits[i] = l.lastLimitInForce()
			if own, err := l.ofKey(ctx, limits[i], byID(f.ids...), i, 0); err == nil {
				limits[i] = own
			}
		}
		promoted, _, err = f.in(ctx, newStoreCallBy(f.p, f.p.store, limits))
	}
	return promoted, err
}

// toStore gives back where the policy counts, by the limits in force.
func (f refund) toStore(ctx context.Context) ([]Promotion, error) {
	t, err := newStoreCall(ctx, f.p, byID(f.ids...))
	if err != nil {
		return nil, err
	}
	promoted, _, err := f.in(ctx, t)
	return promoted, err
}

// in gives back in one store, and says whether there was a grant. A job gets its place
// back only where the limits can still admit it.
func (f refund) in(ctx context.Context, t storeCall) (_ []Promotion, given bool, _ error) {
	p := f.p
	if (t.store == p.store) != (f.r.made == fromStore) {
		f.r.grant = grant{} // this store knows only the token: its instants are those of other grants
	}
	args := luascripts.CancelArgs{Rules: p.calls(f.ids, f.r), Policy: p.name, Token: uint64(f.r.Token), Job: f.r.Job}
	f.r.grant.addTo(args.Rules, p, f.r.Key)
	var promoted []Promotion
	var reply luascripts.CancelReply
	for again := true; again; {
		_, misfit := p.rules.fits(t.limits, &f.r)
		args.Back = bool(f.after) && misfit == nil
		setLimits(args.Rules, t.limits, t.begin())
		var err error
		reply, err = t.store.cancel(ctx, args)
		// of a Cluster some slots may have given back, and promoted others, while another failed or has to be asked again
		promoted = append(promoted, p.rules.promotions(reply.Promoted, f.ids, reply.Now)...)
		again, err = t.again(ctx, "cancel", answer{reply.Status, reply.Rule, reply.Version, reply.Now}, err)
		if err != nil {
			return promoted, false, err
		}
	}
	return promoted, reply.Status == luascripts.Granted, nil
}
