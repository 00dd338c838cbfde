package throttle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/giveback"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/rediserr"
)

// withdrawTimeout bounds the call that takes back a call that was lost.
const withdrawTimeout = time.Second

// Cancel takes the booking of r.Job out of the line; without one it does nothing. The
// Promotions are the jobs that come next. A call that Redis does not answer ends as [Limiter.Acquire] says.
func (p *Policy) Cancel(ctx context.Context, r Request) ([]Promotion, error) {
	r.Token = 0
	return p.refundOnce(ctx, r, noPlace)
}

// Refund gives the grant of r.Token back, if it has one, and takes the booking
// of r.Job out of the line, if there is one. The token is refused from then
// on, for at least a minute, so a copy of its call that comes late is not
// charged. It is idempotent, as long as the grant would have counted. A grant whose
// charge was corrected meanwhile is adjusted to 0 instead, see [Charge.Adjust].
//
// Hand back the Request of the [Decision]: it knows where the grant was made and when,
// and what it is worth. A minute after the grant its Token alone is not known any
// more, and a Request that only names it gives nothing back. A call that Redis does not answer
// ends as [Limiter.Acquire] says.
func (p *Policy) Refund(ctx context.Context, r Request) ([]Promotion, error) {
	return p.refundOnce(ctx, r, noPlace)
}

// placeAfter is the place that a job gets for what it gives back.
type placeAfter bool

const (
	noPlace    placeAfter = false
	firstPlace placeAfter = true // in the line of the narrowest rule; in the others the job is parked
)

// refundOnce gives back what r has, where r has it. It does not ask whether the limits
// admit r: they may have been larger when the grant was made.
func (p *Policy) refundOnce(ctx context.Context, r Request, after placeAfter) ([]Promotion, error) {
	if err := r.check(p.rules); err != nil {
		return nil, err
	}
	if r.made == fromNowhere {
		return nil, nil
	}
	return refund{p: p, ids: p.rules.ids(r), r: r, after: after}.run(ctx)
}

// withdrawLost withdraws a call whose reply never came, and its place in line: it
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

// giveBack gives back what r was granted and nobody will use. If Redis does not take it back now, the call is repeated in the background,
// without the place.
func (p *Policy) giveBack(ctx context.Context, r Request, after placeAfter) {
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	if _, err := p.refundOnce(soon, r, after); ForWorkers.MayPass(err) {
		limits := r.grant.limits
		if len(limits) == 0 {
			limits = p.rules.lastKnown(soon, byRequest(&r))
		}
		p.giveBackLater(ctx, refund{p: p, ids: p.rules.ids(r), r: r}, limits)
	}
}

// giveBackLater repeats a refund in the background, for as long as a grant by these limits counts.
func (p *Policy) giveBackLater(ctx context.Context, f refund, limits []limitInForce) {
	f.r.Job, f.after, f.away, f.park, f.once = "", noPlace, time.Time{}, false, false
	counts := lostFor
	for _, by := range limits {
		if by.IsConcurrent() || f.r.grant.by != nil { // a permit whose instant is not stated is found for a minute only
			counts = max(counts, by.counts())
		}
	}
	to, ok := ctx.Value(giveBacksKey{}).(giveBacks)
	if !ok {
		if to.queue = p.store.giveBacks(); to.queue == nil {
			return
		}
	}
	token := f.r.Token
	p.owed.add(token, counts+lostFor)
	settled := sync.OnceFunc(func() { p.owed.remove(token) }) // two of these calls may be under way
	kept := to.queue.Add(serversOf(p, f.ids, f.at), counts, func(ctx context.Context) error {
		promoted, err := f.run(ctx)
		if to.promoted != nil {
			to.promoted(promoted...)
		}
		if !ForWorkers.MayPass(err) {
			settled() // from now on Redis refuses it
		}
		return err
	})
	if !kept {
		settled()
	}
}

// lostFor is for how long a refund is repeated at least, so that a copy of its call that comes late is not charged.
const lostFor = 2 * time.Minute

// giveBacks is who repeats refunds in the background.
type giveBacks struct {
	queue    *giveback.Queue
	promoted func(...Promotion) // hears which jobs may come earlier; nil for only those that wait in this process
}

type giveBacksKey struct{}

// whatGiveBackErrorMeans tells a [giveback.Queue] what became of a refund or a release.
func whatGiveBackErrorMeans(err error) giveback.Verdict {
	switch {
	case !ForWorkers.MayPass(err):
		return giveback.Final
	case errors.Is(err, ErrUnavailable) && !ForWorkers.Answered(err):
		return giveback.Silent
	}
	return giveback.Again
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

	// Of a grant in one hash slot of a Cluster, whose other hash slots have none:
	at   hashSlot  // the rules of the hash slot; zero for all rules
	away time.Time // until when the job keeps its turn there; zero for no turn
	park bool      // the job is parked there
	once bool      // the client does not repeat the call, and Redis need not know the token for longer than a minute
}

// refunded is what came of a refund in one store, also beside an error.
type refunded struct {
	promoted   []Promotion
	given      bool // there was a grant
	mayHaveRun bool // an error does not say whether the last call ran
}

// run gives back where the grant was made, or the place is: in this process, in Redis,
// or in both.
func (f refund) run(ctx context.Context) ([]Promotion, error) {
	if local := f.p.fallback.local.Load(); local != nil {
		back, err := f.in(ctx, newStoreCallBy(f.p, local, f.p.rules.lastKnown(ctx, byID(f.ids...))))
		if err != nil || back.given || f.r.made == fromFallback {
			return back.promoted, err
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
		var back refunded
		back, err = f.in(ctx, newStoreCallBy(f.p, f.p.store, limits))
		promoted = back.promoted
	}
	return promoted, err
}

// toStore gives back where the policy counts, by the limits in force.
func (f refund) toStore(ctx context.Context) ([]Promotion, error) {
	t, err := newStoreCall(ctx, f.p, byID(f.ids...))
	if err != nil {
		return nil, err
	}
	back, err := f.in(ctx, t)
	return back.promoted, err
}

// in gives back in one store. A job gets its place back only where the limits can still admit it.
func (f refund) in(ctx context.Context, t storeCall) (out refunded, err error) {
	p := f.p
	if (t.store == p.store) != (f.r.made == fromStore) {
		f.r.grant = grant{} // this store knows only the token: its instants are those of other grants
	}
	calls, at := p.calls(f.ids, f.r), f.at
	if at.to == 0 {
		at.to = len(calls)
	}
	f.r.grant.addTo(calls, p, f.r.Key)
	args := limitscripts.CancelArgs{Rules: calls[at.from:at.to], Policy: p.name, Token: uint64(f.r.Token), Job: f.r.Job, Away: f.away, Park: f.park, Once: f.once}
	for i := range args.Rules {
		if f.once {
			args.Rules[i].Until = time.UnixMicro(1) // nobody states the instant
		}
	}
	var reply limitscripts.CancelReply
	for again := true; again; {
		_, misfit := p.rules.fits(t.limits, &f.r)
		args.Back = bool(f.after) && misfit == nil
		setLimits(args.Rules, t.limits[at.from:at.to], t.begin())
		reply, err = t.store.cancel(ctx, args)
		kind := rediserr.Of(err)
		out.mayHaveRun = !kind.Answered() && kind != rediserr.Unsent
		// of a Cluster some hash slots may have given back, and promoted others, while another failed or has to be asked again
		out.promoted = append(out.promoted, p.rules.promotions(moved(reply.Promoted, at), f.ids, reply.Now)...)
		again, err = t.again(ctx, "cancel", answer{reply.Status, reply.Rule + at.from, reply.Version, reply.Now}, err)
		if err != nil {
			return out, err
		}
	}
	out.given = reply.Status == limitscripts.Granted
	return out, nil
}
