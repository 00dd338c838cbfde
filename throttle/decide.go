package throttle

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle/gate"
)

// origin is where a grant was made, and so where it can be given back.
type origin uint8

const (
	fromStore    origin = iota // or not known
	fromFallback               // counted in this process while Redis was unavailable
	fromNowhere                // counted nowhere
)

// attempt is one request on its way to its decision.
type attempt struct {
	p    *Policy
	mode luascripts.Mode
	r    Request
	d    Decision
}

// begin makes d the answer to r that nothing is known about.
func (a *attempt) begin() { a.d = Decision{Request: a.r, Rule: a.p.rules[0].rule} }

// inRedis decides by the active limits where the policy counts.
func (a *attempt) inRedis(ctx context.Context) error {
	a.begin()
	t, err := newRetry(ctx, a.p)
	if err == nil {
		err = a.ask(ctx, &t)
	}
	if _, sharded := a.p.store.store.(clusterStore); sharded && err != nil && (t.outdated > 0 || ForWorkers.Answered(err)) {
		lost := a.r // a slot that was asked before may have granted, and this token is not sent again
		lost.Job = ""
		a.p.withdrawNow(context.WithoutCancel(ctx), lost)
	}
	return err
}

// ask asks a store until it decides, and reads its reply.
func (a *attempt) ask(ctx context.Context, t *retry) error {
	c := calls.Get().(*luascripts.Call)
	a.fill(c)
	for again := true; again; {
		if rule, err := a.p.rules.fits(t.limits, &a.r); err != nil {
			a.d.Rule = rule
			freeCall(c)
			return err
		}
		around := t.begin()
		number(c.Rules, t.limits, around)
		c.Gate = gateAround(a.r.Gates, around)
		var said answer
		err := t.store.acquire(ctx, c)
		if err == nil { // after an error others may work on the call still
			said = answer{c.Status, c.Rule, c.Version, c.Now}
		}
		if again, err = t.again(ctx, "acquire", said, err); err != nil {
			return err
		}
	}
	reply := c.AcquireReply
	freeCall(c)
	return a.read(&reply, t.limits, t.roundTripTimes)
}

// calls are those that came to their end: one that failed may be under way still.
var calls = sync.Pool{New: func() any { return &luascripts.Call{} }}

// freeCall lets a call be used for another, with the memory of its rules. It keeps no keys.
func freeCall(c *luascripts.Call) {
	rules := c.Rules
	clear(rules)
	*c = luascripts.Call{}
	c.Rules = rules[:0]
	calls.Put(c)
}

// fill prepares c to ask for the request. Numbers and gates are put in later, when the
// store's clock is known.
func (a *attempt) fill(c *luascripts.Call) {
	p, r := a.p, &a.r
	longest, inline := time.Duration(-1), p.cfg.InlineWait
	if r.MaxWait != 0 {
		longest = max(0, r.MaxWait)
	}
	if r.notAhead {
		inline = 0
	}
	c.AcquireArgs = luascripts.AcquireArgs{
		Rules: p.rules.appendCalls(c.Rules[:0], r), Policy: p.name, Token: uint64(r.Token), Job: r.Job,
		Mode: a.mode, Inline: inline, MaxWait: longest, Tell: r.wantLeft, Templates: &p.templates,
	}
}

// read makes a store's reply the decision.
func (a *attempt) read(reply *luascripts.AcquireReply, limits []activeLimit, when roundTripTimes) error {
	rules, r, d := a.p.rules, &a.r, &a.d
	if err := rules.fault("acquire", reply.Rule, reply.Status, nil); err != nil {
		return err
	}
	d.Rule = rules.decidedBy(reply, r.Gates)
	d.Granted, d.Refused = reply.Status == luascripts.Granted, reply.Status == luascripts.Refused
	d.Parked = reply.Status == luascripts.Booked && reply.Rule == 0
	d.At, d.From, d.Now, d.Promised, d.Fence = reply.At, reply.From, reply.Now, reply.Promised, reply.Fence
	d.Promoted, d.grant.limits = rules.promotions(reply.Promoted, reply.Now), limits
	d.start, d.surely = when.ended.Add(reply.At.Sub(reply.Now)), when.began.Add(reply.At.Sub(reply.Now))
	if r.wantLeft {
		d.Left = reply.Free
	}
	switch reply.Status {
	case luascripts.Granted:
		d.grant.made(a.p, r.Key, reply)
	case luascripts.TooLate:
		return &TooLateError{Rule: d.Rule, At: d.At, Wait: d.At.Sub(d.Now), MaxWait: r.MaxWait}
	case luascripts.Withdrawn:
		return fmt.Errorf("%w: rule %q", ErrWithdrawn, d.Rule)
	}
	return nil
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
