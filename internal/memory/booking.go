package memory

import (
	"github.com/headwayq/headway/internal/luascripts"
)

// cancel says whether it gave a grant back. Who then goes first again waits at
// the narrowest rule, and finds its turn in the others.
func (c *call) cancel(a luascripts.CancelArgs) (given bool) {
	at := int64(0)
	found, until := c.found(a.Token)
	for i := range c.rules {
		p, held := &c.rules[i], found[i]
		p.takeBack(a.Token, held, until)
		if i == 0 {
			given, at = held > 0, max(held, c.now)
		}
		switch {
		case a.Job == "":
		case !a.Back:
			p.leave()
		case held <= 0 || !given: // a copy of this call finds nothing given: it must not take the place away
		case i == 0:
			p.joinAt(waits, p.firstTicket(), at)
		default:
			p.joinAt(aside, p.firstTicket(), at)
		}
	}
	return given
}

// found is when the grant of each rule was that a token holds, 0 or less when there is none,
// and until when a grant of any of the rules can be found by its instant.
func (c *call) found(token uint64) (held []int64, until int64) {
	held = make([]int64, len(c.rules))
	if token == 0 {
		return held, 0
	}
	first := int64(0)
	for i := range c.rules {
		p := &c.rules[i]
		held[i] = p.granted(token, first)
		if first == 0 {
			first = held[i]
		}
		stated := p.statedUntil
		if stated == 0 && held[i] > 0 && p.kind != luascripts.Leases {
			stated = held[i] + p.counts() // who knew the token alone may know the instant later: it must not come back twice
		}
		until = max(until, stated)
	}
	return held, until
}

// takeBack gives a grant back. The token refuses from now on, in the first rule for all.
func (p *ruleCall) takeBack(token uint64, held, until int64) {
	if token == 0 {
		return
	}
	own := p.index == 1 || p.kind == luascripts.Leases
	if own {
		p.tokens.drop(token)
	}
	if held > 0 && p.kind != luascripts.Leases { // a lease is gone with its token
		p.refund(token, held)
	}
	if own {
		p.tokens.withdraw(token, held, until, p.now, p.extra)
	}
}

func (p *ruleCall) refund(token uint64, held int64) {
	if p.ledger.token == token {
		p.ledger.token = 0
	}
	if refund(p.numbers, p.state, held, p.cost, p.worth, max(p.now, p.state.newest())) {
		p.store()
	}
}

// joinAt gives the job the place of a ticket.
func (p *ruleCall) joinAt(to place, ticket, at int64) {
	p.line.promised.add(p.member, at)
	p.put(to, ticket)
	p.keep(at)
}

// adjust corrects what the rule was charged, and returns how much more it holds now.
func (p *ruleCall) adjust(token, charge uint64, held int64, promoted []luascripts.Promotion) (spent int64, _ []luascripts.Promotion) {
	if p.kind == luascripts.Leases || p.cost == 0 {
		return 0, promoted
	}
	at := p.now
	if want := p.cost; want > 0 { // charge what was used; a rule that can't owe is charged what is free at most
		at = max(p.now, p.state.newest())
		if spent = want; p.noDebt() {
			spent = min(want, max(0, p.state.free(p.numbers, at)))
		}
		if p.cost = spent; spent > 0 {
			p.spend(at, charge)
		}
		p.cost = want
	} else if held > 0 {
		p.lessen(token, held)
		promoted = p.promote(promoted, true)
	}
	p.tokens.keepAdjustment(charge, at, p.counts(), p.now, p.extra)
	return spent, promoted
}

// lessen gives back some of what a token was granted. When that was all of the newest
// grant the ledger's newest instant is one before it: the token goes where it has its own.
func (p *ruleCall) lessen(token uint64, held int64) {
	newest := p.state.newest()
	if refund(p.numbers, p.state, held, -p.cost, p.worth, max(p.now, newest)) {
		p.store()
	}
	if p.ledger.token == token && p.state.newest() != newest {
		p.ledger.token = 0
		if !p.ledger.remembered {
			p.tokens.remember(token, newest, p.now, p.extra)
		}
	}
}

// close closes a rule's key, never for less long than it is. The job goes first when
// it is open again, in all rules: an order that differs between rules would never end.
func (c *call) close(shut *ruleCall, us int64) int64 {
	promised := &shut.line.promised
	before, _ := promised.score(closed)
	since, known := shut.line.marked(closedSince)
	if before <= c.now || !known {
		since = c.now
	}
	until := max(before, c.now+us)
	promised.add(closed, until)
	shut.line.mark(closedSince, since)
	shut.line.live(c.now, until-c.now+1_000_000+c.extra)
	for i := range c.rules {
		c.rules[i].findTicket()
	}
	if shut.member == "" || shut.place != nowhere {
		return until
	}
	for i := range c.rules {
		switch p := &c.rules[i]; {
		case p == shut:
			p.joinAt(waits, p.ticketOfPostponed(since), until)
		case p.place == nowhere:
			p.joinAt(turn, p.ticketOfPostponed(since), until)
		}
	}
	return until
}

// ticketOfPostponed is the ticket behind the last job that was postponed since the key was
// closed, and before all other jobs. When so many were postponed that no ticket is left
// between them, it is that of the last one.
func (p *ruleCall) ticketOfPostponed(since int64) int64 {
	ticket := p.firstTicket()
	last, some := p.line.marked(lastPostponed)
	if in, _ := p.line.marked(postponedIn); some && in == since && last >= ticket {
		ticket = min(last+1, (rooms(last)+1)*room-1)
		if ticket%room != 0 {
			p.line.mark(squeezed, p.line.squeezedIn()+p.unitsOf(p.cost))
		}
	}
	p.line.mark(lastPostponed, ticket)
	p.line.mark(postponedIn, since)
	return ticket
}

// spend makes a grant at an instant that is not before earliest's.
func (p *ruleCall) spend(at int64, token uint64) {
	was, wasAt, remembered := p.ledger.token, p.state.newest(), p.ledger.remembered
	atOnce := p.index == 1 && (p.w < resentWithin || was != 0 && wasAt+resentWithin > p.now)
	p.state.charge(p.numbers, at, p.cost)
	p.ledger.token, p.ledger.remembered = token, p.kind != luascripts.Leases && (p.index > 1 || atOnce)
	p.store()
	if p.kind == luascripts.Leases {
		p.tokens.lend(token, at+p.w, p.now, p.extra)
		return
	}
	if !remembered {
		p.tokens.remember(was, wasAt, p.now, p.extra)
	}
	if atOnce {
		p.tokens.remember(token, at, p.now, p.extra)
	}
}

// standsAt is the rule where the job waits, or else the first where it has a
// place; nil when it has none.
func (c *call) standsAt() *ruleCall {
	var first *ruleCall
	for i := range c.rules {
		switch p := &c.rules[i]; {
		case p.place == waits:
			return p
		case p.place != nowhere && first == nil:
			first = p
		}
	}
	return first
}

// refresh asks as far as where the job stands. What it stands in no line for is
// not asked, or it would be told later and later by those who join that line. A
// narrower rule that admits it before its turn comes there puts nothing off.
func (c *call) refresh(stands *ruleCall) luascripts.RefreshReply {
	at, delayedBy, before := c.now, stands, stands.ahead.permits()
	c.sets(func(set []ruleCall) bool {
		due, last := joint(set, c.now, c.now)
		if last != nil && due >= at {
			at, delayedBy = due, last
		}
		return stands.index > set[len(set)-1].index
	})
	// An instant that is past is not promised anew: the job shall see how late it is. A job that a narrower
	// rule holds up now gets its place there, and is parked in the wider lines. A parked job gets its place in
	// the line again: nobody would tell it otherwise that it may come earlier. Of a job that waits for a lease nobody here
	// knows whether the gate is closed when the lease ends. Then it got no turns when it asked, and it gets none now
	if at > c.now {
		turns := allTurns
		if delayedBy.kind == luascripts.Leases {
			turns = heldTurns
		}
		c.takePlaces(delayedBy, at, turns)
	}
	for i := range c.rules {
		c.rules[i].park()
		c.rules[i].outlive()
	}
	return luascripts.RefreshReply{
		Status: luascripts.Booked, Rule: delayedBy.index, At: instantOf(at), Before: int(before), Promoted: c.tellMissed(c.promoteInLinesLeft()),
	}
}
