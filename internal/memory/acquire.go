package memory

import (
	"math"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// repeated answers a copy of a call as the call was answered.
func (c *call) repeated(token uint64, held int64) limitscripts.AcquireReply {
	if held < 0 {
		return limitscripts.AcquireReply{Status: limitscripts.Withdrawn}
	}
	r := limitscripts.AcquireReply{Status: limitscripts.Granted, At: instantOf(held), From: instantOf(held)}
	for i := range c.rules {
		rule := &c.rules[i]
		worth := int64(0)
		if rule.ledger.token == token {
			worth = rule.state.worth(rule.numbers)
		}
		if l, ok := rule.state.(*leases); ok {
			if end, _ := rule.heldAt(token); rule.ledger.token == token {
				r.Fence = l.fence
			} else if end > 0 {
				r.Fence = l.anew()
			}
		}
		r.Worth = append(r.Worth, worth)
	}
	return r
}

// grantAnew moves a grant to this instant. Its caller got the answer too late to act on it. The jobs that wait behind the grant wait that
// much longer. If a rule does not admit the grant now, the answer is Refused, and nothing changes.
func (c *call) grantAnew(a limitscripts.AcquireArgs, g gate) limitscripts.AcquireReply {
	r := limitscripts.AcquireReply{At: instantOf(c.now)}
	if g.opened(c.now) > c.now {
		return r
	}
	found, _ := c.found(a.Token)
	for i := range c.rules {
		if rule := &c.rules[i]; rule.closed > c.now || !rule.admitsAnew(found[i], a.Token) {
			r.Rule = rule.index
			return r
		}
	}
	r.Status = limitscripts.Granted
	newest := make([]int64, len(c.rules))
	for i := range c.rules {
		rule := &c.rules[i]
		newest[i] = rule.state.newest()
		if rule.kind == limitscripts.Leases {
			continue
		}
		if i == 0 {
			rule.tokens.drop(a.Token)
		}
		if rule.kind == limitscripts.Sliding && found[i] > 0 {
			rule.refund(a.Token, found[i])
		}
		if rule.ledger.token == a.Token {
			rule.ledger.token = 0
		}
	}
	c.spend(&r, c.now, a.Token)
	for i := range c.rules {
		if l, ok := c.rules[i].state.(*leases); ok {
			l.last = max(newest[i], c.now) // somebody may have been granted ahead
			c.rules[i].store()
		}
	}
	return r
}

func (c *call) acquire(a limitscripts.AcquireArgs, g gate) limitscripts.AcquireReply {
	c.findAndMeasure()
	inline := int64(0)
	if a.Mode != limitscripts.Try {
		inline = micros(a.Inline)
	}
	latest := int64(math.MaxInt64)
	if a.MaxWait >= 0 {
		latest = c.now + int64(a.MaxWait/time.Microsecond)
	}
	v := c.instant(g, c.now+inline, a.Mode)
	if gated := v.binds && v.rule == nil && !v.noPlace; gated && a.Mode != limitscripts.Try && v.at <= latest {
		v.at = c.afterOpening(g, v.at, latest)
	}
	r := limitscripts.AcquireReply{From: instantOf(c.admitsSince()), Promised: instantOf(c.promisedBefore(v))}
	if v.rule != nil {
		r.Rule = v.rule.index
	}
	switch {
	case a.Mode == limitscripts.Try && v.binds:
		c.endWithoutGrant()
		r.Promoted = c.offerUnheard(v, nil)
	case v.at > latest && (latest <= c.now || !v.atMost(latest)):
		c.leave()
		c.endWithoutGrant()
		r.Status, r.Promoted = limitscripts.TooLate, c.promote(func(rule *ruleCall) bool { return rule.place != nowhere })
	case v.noPlace:
		c.leave()
		c.endWithoutGrant()
		r.Promoted = c.promoteInLinesLeft()
	case !v.binds:
		// the next turn may have been told to come far in the future, after a job that another rule held up, for instance until the end of a
		// lease. Leases are given back before they end, and so that job may have gone long ago
		turns := map[*ruleCall]bool{}
		for i := range c.rules {
			rule, own := &c.rules[i], 0
			if rule.place == turn {
				own = 1
			}
			turns[rule] = rule.turns.len()-len(rule.findDeadTurns()) > own
		}
		c.grant(&r, v.at, a.Token, a.Later && a.Policy != "")
		r.Status, r.Rule, r.Promoted = limitscripts.Granted, 0, c.promote(func(rule *ruleCall) bool { return turns[rule] })
	default:
		r.Status = limitscripts.Booked
		c.book(v, g)
		c.endWithoutGrant()
		r.Promoted = c.offerUnheard(v, c.promoteInLinesLeft())
		if rule := v.rule; rule != nil && rule.kind == limitscripts.Leases && len(r.Promoted) > 0 { // it may have just been promised the end of a lease
			v.at, _ = rule.line.promised.score(rule.member)
		}
	}
	r.At, r.Promoted = instantOf(v.at), c.tellMissed(r.Promoted)
	if a.WantLeft {
		for i := range c.rules {
			rule := &c.rules[i]
			r.Left = append(r.Left, rule.free(rule.line.anybody()))
		}
	}
	return r
}

// offerUnheard lets the next in line know of a lease that is free, when it has not heard of it.
func (c *call) offerUnheard(v verdict, promoted []limitscripts.Promotion) []limitscripts.Promotion {
	rule := v.rule
	if rule == nil || rule.kind != limitscripts.Leases || rule.view.front == "" || rule.view.front == rule.member || rule.closed > 0 {
		return promoted
	}
	if promised, _ := rule.line.promised.score(rule.view.front); promised <= rule.now+offeredFor || rule.state.free(rule.numbers, rule.now) <= 0 {
		return promoted
	}
	return rule.promote(promoted, false)
}

// promoteInLinesLeft promotes the next job of each line that the call's job has left, and the first turn where it has left
// its turn: that one was told to come after the job, which may have waited for another rule until far in the future.
func (c *call) promoteInLinesLeft() (next []limitscripts.Promotion) {
	for i := range c.rules {
		if rule := &c.rules[i]; rule.leftLine() || rule.leftTurn {
			next = rule.promote(next, rule.leftTurn)
		}
	}
	return next
}

// admitsSince is from when on all ledgers admit the job.
func (c *call) admitsSince() int64 {
	from := int64(0)
	for i := range c.rules {
		from = max(from, c.rules[i].admitsSince())
	}
	return from
}

// promisedBefore is what the job was promised at its place on the key of the rule that holds it up, or
// else at the narrowest one.
func (c *call) promisedBefore(v verdict) int64 {
	if v.binds && v.rule != nil && v.rule.place != nowhere {
		return v.rule.lastPromise
	}
	for i := range c.rules {
		if c.rules[i].place != nowhere {
			return c.rules[i].lastPromise
		}
	}
	return 0
}

// endWithoutGrant writes what a call that spends nothing has to write of each rule, beside its places: the ledger lives on, and
// the late jobs are parked.
func (c *call) endWithoutGrant() {
	for i := range c.rules {
		c.rules[i].outlive()
		c.rules[i].park() // or newcomers that only try would never get past more than 20
	}
}

// leave gives up all places.
func (c *call) leave() {
	for i := range c.rules {
		if rule := &c.rules[i]; rule.place != nowhere {
			rule.leftTurn = rule.place == turn
			rule.leave()
		}
	}
}

// grant takes the job out of its lines. Where a later hash slot may refuse, its tickets are kept.
func (c *call) grant(r *limitscripts.AcquireReply, at int64, token uint64, later bool) {
	c.spend(r, at, token)
	for i := range c.rules {
		c.rules[i].park()
	}
	if !later {
		c.leave()
		return
	}
	for i := range c.rules {
		c.rules[i].leaveGranted()
	}
}

// spend spends permits of all rules.
func (c *call) spend(r *limitscripts.AcquireReply, at int64, token uint64) {
	for i := range c.rules {
		rule := &c.rules[i]
		rule.spend(at, token)
		r.Worth = append(r.Worth, rule.state.worth(rule.numbers))
		if l, ok := rule.state.(*leases); ok {
			r.Fence = l.fence
		}
	}
}

// book gives the job its places: it waits where it is held up, keeps its turn in
// the rules before, which admitted it, and is in nobody's way in those after it. A
// closed gate leaves it none, or its places would hold up others until it opens. A job that waits for a lease, which ends
// when the gate is closed, keeps no turn.
func (c *call) book(v verdict, g gate) {
	if v.rule == nil {
		c.leave()
		return
	}
	turns := allTurns
	if g.opened(v.at) > v.at {
		turns = noTurns
	}
	c.takePlaces(v.rule, v.at, turns)
}

// afterOpening is the instant of a job that waits for a gate. One that would come after `latest` does not wait.
func (c *call) afterOpening(g gate, opens, latest int64) int64 {
	if wide := c.widest(); wide != nil && opens < g.until {
		return wide.await(g, opens, latest)
	}
	return opens
}

// turnsKept says at which of the rates that admitted a job it has turns while another rule holds it up.
type turnsKept int

const (
	allTurns turnsKept = iota
	noTurns
	heldTurns // at those where it has a place and is not parked
)

// takePlaces gives the job its places while the binding rule holds it up until an instant.
func (c *call) takePlaces(binding *ruleCall, at int64, turns turnsKept) {
	for i := range c.rules {
		switch rule := &c.rules[i]; {
		case rule == binding && rule.onlyTurnsDelay(at):
			rule.takePlace(turn, at)
		case rule == binding:
			rule.takePlace(waits, at)
		case rule.keepsTurn(binding, turns):
			rule.takePlace(turn, at)
		default:
			rule.stepAside(at)
		}
	}
}
