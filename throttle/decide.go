package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/throttle/gate"
)

// origin is where a grant was made, and so where it can be given back.
type origin uint8

const (
	fromStore    origin = iota // or not known
	fromFallback               // counted in this process while Redis was unavailable
	fromNowhere                // counted nowhere
)

// decide answers a request, whatever the policy's mode: it validates the request,
// asks Redis or the fallback by the active limits, and counts the answer.
func (p *Policy) decide(ctx context.Context, mode luascripts.Mode, r Request) (d Decision, err error) {
	r.grant, r.made = grant{}, fromStore
	if r.Token == 0 {
		r.Token = NewToken()
	}
	if err = p.check(&r); err != nil {
		p.observe(ctx, mode, &d, err)
		return d, err
	}
	if p.cfg.Shadow {
		err = p.decideInShadowInto(ctx, mode, &r, &d)
	} else {
		err = p.decideOrFallback(ctx, mode, &r, &d)
	}
	p.observe(ctx, mode, &d, err)
	return d, err
}

// decideForJob leaves no place behind for a cost that can never be met: the limit
// may have been larger when the job took its place.
func (p *Policy) decideForJob(ctx context.Context, mode luascripts.Mode, r Request) (Decision, error) {
	if err := checkJob(r.Job); err != nil {
		return Decision{}, err
	}
	d, err := p.decide(ctx, mode, r)
	if errors.Is(err, ErrExceedsLimit) || d.instead == insteadOfNever {
		p.leave(ctx, r)
	}
	return d, err
}

// check refuses what no limit could admit before it costs a round trip.
func (p *Policy) check(r *Request) error {
	if len(r.More) != len(p.rules)-1 {
		return fmt.Errorf("%w: %d keys for the %d rules of policy %v", ErrInvalidConfig, len(r.More)+1, len(p.rules), p)
	}
	for i, l := range p.rules {
		w := r.keyCost(i)
		if err := checkKey(w.Key); err != nil {
			return err
		}
		if err := l.checkCost(w.Cost); err != nil {
			return err
		}
	}
	if len(r.Job) > JobMax {
		return checkJob(r.Job)
	}
	return checkGates(r.Gates)
}

// fits says whether the limits can ever admit r, and otherwise which can't.
func (p *Policy) fits(in []activeLimit, r *Request) (rule string, err error) {
	for i, l := range p.rules {
		if err := l.fits(in[i].Limit, r.keyCost(i).Cost); err != nil {
			return l.rule, err
		}
	}
	return "", nil
}

func (l *Limiter) checkCost(cost int) error {
	if cost < 1 {
		return fmt.Errorf("%w: %d permits for rule %q, want at least 1", ErrInvalidCost, cost, l.rule)
	}
	return nil
}

// fits says whether the limit can ever admit a cost.
func (l *Limiter) fits(limit Limit, cost int) error {
	if cost > limit.MaxCost() {
		return &ExceedsLimitError{Rule: l.rule, Cost: cost, Limit: limit}
	}
	return nil
}

func checkKey(key string) error {
	if key == "" || len(key) > KeyMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidKey, len(key), KeyMax)
	}
	return nil
}

func checkJob(job string) error {
	if job == "" || len(job) > JobMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidJob, len(job), JobMax)
	}
	return nil
}

func checkGates(gates []gate.At) error {
	var errs []error
	for _, g := range gates {
		errs = append(errs, g.Gate.Validate())
	}
	return errors.Join(errs...)
}

// decideInRedis decides by the active limits where the policy counts. Request and
// Decision are large, and so passed by pointers.
func (p *Policy) decideInRedis(ctx context.Context, mode luascripts.Mode, r *Request, d *Decision) error {
	*d = Decision{Request: *r, Rule: p.rules[0].rule}
	t, err := p.retry(ctx)
	if err == nil {
		err = p.acquireFrom(ctx, &t, mode, r, d)
	}
	if _, sharded := p.store.store.(clusterStore); sharded && err != nil && (t.outdated > 0 || ForWorkers.Answered(err)) {
		lost := *r // a slot that was asked before may have granted, and this token is not sent again
		lost.Job = ""
		p.withdrawNow(context.WithoutCancel(ctx), lost)
	}
	return err
}

// acquireFrom asks a store for r until it decides, and reads the reply into d.
func (p *Policy) acquireFrom(ctx context.Context, t *retry, mode luascripts.Mode, r *Request, d *Decision) error {
	*d = Decision{Request: *r, Rule: p.rules[0].rule}
	c := calls.Get().(*luascripts.Call)
	p.call(c, mode, r)
	for again := true; again; {
		if rule, err := p.fits(t.limits, r); err != nil {
			d.Rule = rule
			freeCall(c)
			return err
		}
		around := t.begin()
		number(c.Rules, t.limits, around)
		c.Gate = gateAround(r.Gates, around)
		var a answer
		err := t.store.acquire(ctx, c)
		if err == nil { // after an error others may work on the call still
			a = answer{c.Status, c.Rule, c.Version, c.Now}
		}
		if again, err = t.again(ctx, "acquire", a, err); err != nil {
			return err
		}
	}
	reply := c.AcquireReply
	freeCall(c)
	return p.decided(t.limits, r, &reply, t.roundTripTimes, d)
}

// calls are those that came to their end: one that failed may be under way still.
var calls = sync.Pool{New: func() any { return &luascripts.Call{} }}

// freeCall lets a call be used for another, with the memory of its rules. It keeps no keys.
func freeCall(c *luascripts.Call) {
	parts := c.Rules
	clear(parts)
	*c = luascripts.Call{}
	c.Rules = parts[:0]
	calls.Put(c)
}

// call prepares c to ask for r. Numbers and gates are put in later, when the store's
// clock is known.
func (p *Policy) call(c *luascripts.Call, mode luascripts.Mode, r *Request) {
	longest, inline := time.Duration(-1), p.cfg.InlineWait
	if r.MaxWait != 0 {
		longest = max(0, r.MaxWait)
	}
	if r.notAhead {
		inline = 0
	}
	c.AcquireArgs = luascripts.AcquireArgs{
		Rules: p.appendRuleCalls(c.Rules[:0], r), Policy: p.name, Token: uint64(r.Token), Job: r.Job,
		Mode: mode, Inline: inline, MaxWait: longest, Tell: r.wantLeft, Templates: &p.templates,
	}
}

// appendRuleCalls appends the calls of the rules of a request, see [Policy.ruleCalls].
func (p *Policy) appendRuleCalls(calls []luascripts.RuleCall, r *Request) []luascripts.RuleCall {
	for i, l := range p.rules {
		w := r.keyCost(i)
		calls = append(calls, luascripts.RuleCall{LimitKeys: l.keys(l.ID(w.Key)), Cost: w.Cost})
	}
	return calls
}

// decided reads a store's reply into d.
func (p *Policy) decided(in []activeLimit, r *Request, reply *luascripts.AcquireReply, when roundTripTimes, d *Decision) error {
	*d = Decision{Request: *r, Rule: p.rules[0].rule}
	if err := p.fault("acquire", reply.Rule, reply.Status, nil); err != nil {
		return err
	}
	d.Rule = p.bound(reply, r.Gates)
	d.Granted, d.Refused = reply.Status == luascripts.Granted, reply.Status == luascripts.Refused
	d.Parked = reply.Status == luascripts.Booked && reply.Rule == 0
	d.At, d.From, d.Now, d.Promised, d.Fence = reply.At, reply.From, reply.Now, reply.Promised, reply.Fence
	d.Promoted, d.grant.limits = p.promotions(reply.Promoted, reply.Now), in
	d.start, d.surely = when.ended.Add(reply.At.Sub(reply.Now)), when.began.Add(reply.At.Sub(reply.Now))
	if r.wantLeft {
		d.Left = reply.Free
	}
	switch reply.Status {
	case luascripts.Granted:
		d.grant.made(p, r.Key, reply)
	case luascripts.TooLate:
		return &TooLateError{Rule: d.Rule, At: d.At, Wait: d.At.Sub(d.Now), MaxWait: r.MaxWait}
	case luascripts.Withdrawn:
		return fmt.Errorf("%w: rule %q", ErrWithdrawn, d.Rule)
	}
	return nil
}

// bound names the rule that decided.
func (p *Policy) bound(r *luascripts.AcquireReply, gates []gate.At) string {
	switch {
	case r.Rule > 0 && r.Rule <= len(p.rules):
		return p.rules[r.Rule-1].rule
	case r.Status == luascripts.Granted || len(gates) == 0:
		return p.rules[0].rule
	}
	return shutGate(gates, r.Now, r.At)
}

// promotions translates a store's reply, and wakes those of the jobs that wait in
// this process.
func (p *Policy) promotions(answered []luascripts.Promotion, now time.Time) []Promotion {
	var out []Promotion
	for _, t := range answered {
		if t.Part < 1 || t.Part > len(p.rules) {
			continue
		}
		leased := p.rules[t.Part-1].limit.IsConcurrent()
		offered := leased && !t.At.After(now)
		if offered || !leased { // a blocked caller asks often enough to see a lease end
			p.rules[t.Part-1].waiters.wake(t.Job)
		}
		out = append(out, Promotion{Job: t.Job, At: t.At, Wait: max(0, t.At.Sub(now)), Offered: offered})
	}
	return out
}

// ids are the keys of r as they stand in Redis, in the order of the rules.
func (p *Policy) ids(r Request) []string {
	ids := make([]string, len(p.rules))
	for i, l := range p.rules {
		ids[i] = l.ID(r.keyCost(i).Key)
	}
	return ids
}

// ruleCalls are what the scripts need to know of each rule, and of a grant. The
// limits are put in later by [number], when the store's clock is known.
func (p *Policy) ruleCalls(ids []string, r Request) []luascripts.RuleCall {
	calls := make([]luascripts.RuleCall, len(p.rules))
	for i, l := range p.rules {
		calls[i] = luascripts.RuleCall{LimitKeys: l.keys(ids[i]), Cost: r.keyCost(i).Cost}
	}
	r.grant.addTo(calls, p, r.Key)
	return calls
}

// fault translates what a script call about several rules came back with; rule is
// the one that it stumbled over, from 1.
func (p *Policy) fault(op string, part int, status luascripts.Status, err error) error {
	if part < 1 || part > len(p.rules) {
		part = 1
	}
	return p.rules[part-1].fault(op, status, err)
}

// fault translates what a script call came back with; no error type of the
// Redis client leaves this package.
func (l *Limiter) fault(op string, status luascripts.Status, err error) error {
	if err == nil {
		if status == luascripts.NewerSchema {
			return fmt.Errorf("%w: rule %q", ErrSchema, l.rule)
		}
		return nil
	}
	if _, ok := errors.AsType[*outdatedError](err); ok {
		return err
	}
	kind := rediserr.Of(err)
	u := &unavailableError{Op: op, Reason: err.Error()}
	u.answered = errors.Is(err, errClock) || kind.Answered() && kind != rediserr.Passing
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, end) {
			u.cause = end
		}
	}
	return u
}

// How much of a gate the scripts get: so much before and after the store's clock.
const (
	gateBehind = time.Hour
	gateAhead  = 10 * day
)

// gateAround is when all gates are open around an instant.
func gateAround(gates []gate.At, around time.Time) luascripts.Gate {
	if len(gates) == 0 {
		return luascripts.Gate{}
	}
	g := luascripts.Gate{From: around.Add(-gateBehind), Until: around.Add(gateAhead)}
	for _, o := range gate.Openings(gates, g.From, g.Until) {
		if len(g.Open) < openingsMax {
			g.Open = append(g.Open, luascripts.Opening{Open: o.Open, Close: o.Close})
		}
	}
	if len(g.Open) == openingsMax {
		g.Until = g.Open[openingsMax-1].Close
	}
	return g
}

// openingsMax bounds the openings that a script gets.
const openingsMax = 64

// openedAt is the first instant, not before at, at which all gates are open, as
// far as is known.
func openedAt(gates []gate.At, at time.Time) time.Time {
	if len(gates) == 0 {
		return at
	}
	for _, o := range gate.Openings(gates, at, at.Add(gateAhead)) {
		if o.Close.After(at) {
			if o.Open.After(at) {
				return o.Open
			}
			return at
		}
	}
	return at.Add(gateAhead)
}

// shutGate names the gate that holds a job back until an instant: one that is shut
// now, or right before that instant.
func shutGate(gates []gate.At, now, until time.Time) string {
	if rule, shut := gate.FirstClosed(gates, now); shut {
		return rule
	}
	for _, o := range gate.Openings(gates, now, until.Add(time.Microsecond)) {
		if o.Open.After(now) && !until.Before(o.Open) && until.Before(o.Close) {
			if rule, shut := gate.FirstClosed(gates, o.Open.Add(-time.Microsecond)); shut {
				return rule
			}
		}
	}
	return gates[0].Rule
}

// takeBack gives back what r has, where r has it. It does not ask whether the limits
// admit r: they may have been larger when the grant was made.
func (p *Policy) takeBack(ctx context.Context, r Request, back bool) ([]Promotion, error) {
	if err := p.check(&r); err != nil {
		return nil, err
	}
	if r.made == fromNowhere {
		return nil, nil
	}
	return p.takeBackIDs(ctx, p.ids(r), r, back)
}

func (p *Policy) takeBackIDs(ctx context.Context, ids []string, r Request, back bool) ([]Promotion, error) {
	if fallback := p.availability.fallback.Load(); fallback != nil {
		promoted, given, err := p.cancelAt(ctx, p.retryBy(fallback, p.lastKnown()), ids, r, back)
		if err != nil || given || r.made == fromFallback {
			return promoted, err
		}
	}
	t, err := p.retry(ctx)
	var promoted []Promotion
	if err == nil {
		promoted, _, err = p.cancelAt(ctx, t, ids, r, back)
	}
	if errors.Is(err, ErrStoredLimit) { // a caller that gives something back is not to blame
		in := make([]activeLimit, len(p.rules))
		for i, l := range p.rules {
			in[i] = l.lastActiveLimit()
		}
		promoted, _, err = p.cancelAt(ctx, p.retryBy(p.store, in), ids, r, back)
	}
	return promoted, err
}

// cancelAt gives back what r has in one store. A job gets its place back only where
// the limits can still admit it.
func (p *Policy) cancelAt(ctx context.Context, t retry, ids []string, r Request, back bool) (_ []Promotion, given bool, _ error) {
	if (t.store == p.store) != (r.made == fromStore) {
		r.grant = grant{} // this store knows only the token: its instants are those of other grants
	}
	args := luascripts.CancelArgs{Rules: p.ruleCalls(ids, r), Policy: p.name, Token: uint64(r.Token), Job: r.Job}
	var reply luascripts.CancelReply
	for again := true; again; {
		_, misfit := p.fits(t.limits, &r)
		args.Back = back && misfit == nil
		number(args.Rules, t.limits, t.begin())
		var err error
		reply, err = t.store.cancel(ctx, args)
		again, err = t.again(ctx, "cancel", answer{reply.Status, reply.Rule, reply.Version, reply.Now}, err)
		if err != nil {
			return nil, false, err
		}
	}
	return p.promotions(reply.Promoted, reply.Now), reply.Status == luascripts.Granted, nil
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
	_, err := ForWorkers.Return(ctx, p, r)
	return err
}

// leave takes r.Job out of the lines, as well as it can. A place that stays behind
// is passed 100 ms after its instant.
func (p *Policy) leave(ctx context.Context, r Request) {
	r.Token = 0
	p.withdraw(ctx, r)
}
