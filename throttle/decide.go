package throttle

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/rediserr"
)

// origin is where a grant was made, and so where it can be given back.
type origin uint8

const (
	fromStore    origin = iota // or not known
	fromFallback               // counted in this process while Redis was unavailable
	fromNowhere                // counted nowhere
)

// acquisition is one request on its way to its decision.
type acquisition struct {
	p    *Policy
	mode luascripts.Mode
	r    Request
	d    Decision
}

// decide answers a request: it checks the request, asks Redis or the fallback by the
// limits in force, and counts the answer. A grant that the request had before is forgotten.
func decide(ctx context.Context, p *Policy, mode luascripts.Mode, r Request) (Decision, error) {
	r.grant, r.made = grant{}, fromStore
	if r.Token == 0 {
		r.Token = NewToken()
	}
	a := acquisitions.Get().(*acquisition)
	*a = acquisition{p: p, mode: mode, r: r}
	err := a.r.check(p.rules)
	if err == nil {
		switch {
		case p.cfg.Shadow:
			err = a.inShadow(ctx)
		case p.fallback.mode == FailClosed:
			err = a.inRedis(ctx)
		default:
			err = p.fallback.decide(ctx, a)
		}
	}
	a.count(ctx, err)
	d := a.d
	*a = acquisition{} // it keeps no keys
	acquisitions.Put(a)
	return d, err
}

// acquisitions keeps those that are decided, to be used again: they are more than half of the memory in the
// benchmark's row "client's memory for a call". One whose call panicked is not kept.
var acquisitions = sync.Pool{New: func() any { return &acquisition{} }}

// begin starts with a decision that says no more than the request.
func (a *acquisition) begin() { a.d = Decision{Request: a.r, Rule: a.p.rules[0].rule} }

// inRedis decides by the limits in force where the policy counts.
func (a *acquisition) inRedis(ctx context.Context) error {
	a.begin()
	t, err := newStoreCallAssuming(ctx, a.p, byRequest(&a.r))
	if err == nil {
		if t.assumed != nil { // also when a hook of the client panics
			defer func() { t.assumed.end(ctx, time.Time{}, cmp.Or(err, errOtherLimit)) }()
		}
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
func (a *acquisition) ask(ctx context.Context, t *storeCall) error {
	c := calls.Get().(*luascripts.Call)
	a.fill(c)
	for again := true; again; {
		around := t.begin()
		if len(a.r.Gates) > 0 {
			c.Gate = gateAround(a.r.Gates, around)
		}
		c.Known = t.assumed.toCheck()
		if rule, err := a.p.rules.setFittingLimits(c.Rules, t.limits, around); err != nil {
			if t.assumed == nil {
				a.d.Rule = rule
			} else if err = t.readLimitsAgain(ctx, a.p, 0); err == nil { // the limit may be a larger one by now
				continue
			}
			freeCall(c)
			return err
		}
		var said answer
		err := t.store.acquire(ctx, c)
		if err == nil { // after an error others may work on the call still
			said = answer{c.Status, c.Rule, c.Version, c.Now}
		}
		if t.assumed != nil && (said.status == luascripts.Outdated || err != nil && rediserr.Of(err).Answered()) {
			if err := t.readLimitsAgain(ctx, a.p, said.rule); err != nil {
				return err
			}
			continue
		}
		if again, err = t.again(ctx, "acquire", said, err); err != nil {
			return err
		}
	}
	t.assumed.end(ctx, t.began, nil) // the limits are in force, whatever the decision is
	t.assumed = nil
	reply := c.AcquireReply
	t.localTimes(&reply, slack(c.Rules))
	freeCall(c)
	return a.read(&reply, t.limits, t.roundTripTimes)
}

// calls keeps calls that were answered, to be used again. One that failed may be under way still.
var calls = sync.Pool{New: func() any { return &luascripts.Call{} }}

// freeCall lets a call be used for another, with the memory of its rules. It keeps no keys.
func freeCall(c *luascripts.Call) {
	rules := c.Rules
	clear(rules)
	*c = luascripts.Call{}
	c.Rules = rules[:0]
	calls.Put(c)
}

// fill prepares c to ask for the request. It uses the memory of c.Rules again. Numbers and gates are put in later,
// when the store's clock is known.
func (a *acquisition) fill(c *luascripts.Call) {
	p, r := a.p, &a.r
	longest, inline := time.Duration(-1), p.cfg.InlineWait // -1: any wait; in a request that is 0
	if r.MaxWait != 0 {
		longest = max(0, r.MaxWait)
	}
	if r.notAhead {
		inline = 0
	}
	ruleCalls := c.Rules[:0]
	for i, l := range p.rules {
		of := r.keyCost(i)
		ruleCalls = append(ruleCalls, luascripts.RuleCall{LimitKeys: l.names.Of(l.ID(of.Key)), Cost: of.Cost})
	}
	p.oneKey.mark(ruleCalls)
	c.AcquireArgs = luascripts.AcquireArgs{
		Rules: ruleCalls, Policy: p.name, Token: uint64(r.Token), Job: r.Job,
		Mode: a.mode, Inline: inline, MaxWait: longest, WantLeft: r.wantLeft, Hold: p.cfg.HoldAfterFailover,
		Durable: luascripts.Durability{Replicas: p.cfg.Replicas, Within: p.cfg.ReplicasWithin}, Forms: &p.forms,
	}
}

// read makes a store's reply the decision.
func (a *acquisition) read(reply *luascripts.AcquireReply, limits []limitInForce, when roundTripTimes) error {
	rules, r, d := a.p.rules, &a.r, &a.d
	if err := rules.fault(context.Background(), "acquire", reply.Rule, reply.Status, nil); err != nil { // it was answered
		return err
	}
	d.Rule = rules.decidedBy(reply, r.Gates)
	d.Granted, d.Refused = reply.Status == luascripts.Granted, reply.Status == luascripts.Refused
	d.Gated = reply.Status == luascripts.Booked && reply.Rule == 0
	d.At, d.From, d.Now, d.Promised, d.Fence = reply.At, reply.From, reply.Now, reply.Promised, reply.Fence
	d.grant.limits = limits
	if len(reply.Promoted) > 0 { // few calls promote a job: the others need no ids
		d.Promoted = rules.promotions(reply.Promoted, rules.ids(*r), reply.Now)
	}
	d.start, d.until, d.startEarliest = reply.Local.Start, reply.Local.Until, when.began.Add(reply.At.Sub(reply.Now))
	if r.wantLeft {
		d.Left = reply.Left
	}
	switch reply.Status {
	case luascripts.Granted:
		d.grant.fromReply(a.p, r.Key, reply)
	case luascripts.TooLate:
		return &TooLateError{Rule: d.Rule, At: d.At, Wait: d.At.Sub(d.Now), MaxWait: r.MaxWait}
	case luascripts.Withdrawn:
		return fmt.Errorf("%w: rule %q", ErrWithdrawn, d.Rule)
	}
	return nil
}

// fromReply takes in the reply that is the grant.
func (g *grant) fromReply(p *Policy, key string, r *luascripts.AcquireReply) {
	g.worth, g.by, g.key, g.at, g.each = r.Worth, p, key, r.At, r.Each
}

// count counts the decision and tells the observer.
func (a *acquisition) count(ctx context.Context, err error) {
	p := a.p
	if !p.cfg.Shadow || !a.mode.NeverGrants() { // in shadow mode nobody gets a place
		p.counters.add(a.mode, &a.d, err)
	}
	if p.decided != nil {
		p.decided(a.d, err)
	}
	a.tell(ctx, err)
}
