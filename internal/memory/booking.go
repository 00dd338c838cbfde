package memory

import (
	"github.com/headwayq/headway/internal/limitscripts"
)

// cancel says whether it gave a grant back. Who then goes first again waits at
// the narrowest rule, and finds its turn in the others.
func (c *call) cancel(a limitscripts.CancelArgs) (given bool) {
	at := int64(0)
	found, until := c.found(a.Token)
	again := false // it has come again since its grant, and this call knows less than that one
	for i := range c.rules {
		if rule := &c.rules[i]; a.Park || !a.Away.IsZero() {
			rule.findTicket()
			again = again || rule.place != nowhere
		}
	}
	for i := range c.rules {
		rule, held := &c.rules[i], found[i]
		rule.takeBack(a.Token, held, until)
		if i == 0 {
			given, at = held > 0, max(held, c.now)
		}
		switch {
		case a.Job == "":
		case !a.Back && !a.Park && a.Away.IsZero():
			rule.leave()
		case a.Token == 0 && !a.Back:
			rule.stepAside(c.now)
		case held <= 0 || !given: // a copy of this call finds nothing given: it must not take the place away
		case again:
		case a.Park:
			rule.joinAt(parked, rule.ticketAgain(), at)
		case !a.Away.IsZero():
			rule.joinAt(turn, rule.ticketAgain(), max(at, microsOf(a.Away)))
		case i == 0:
			rule.joinAt(waits, rule.firstTicket(), at)
		default:
			rule.joinAt(parked, rule.firstTicket(), at)
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
		rule := &c.rules[i]
		held[i] = rule.granted(token, first)
		if first == 0 {
			first = held[i]
		}
		stated := rule.statedUntil
		if stated == 0 && held[i] > 0 && rule.kind != limitscripts.Leases {
			stated = held[i] + rule.counts() // who knew the token alone may know the instant later: it must not come back twice
		}
		until = max(until, stated)
	}
	return held, until
}

// takeBack gives a grant back. The token refuses from now on, in the first rule for all.
func (r *ruleCall) takeBack(token uint64, held, until int64) {
	if token == 0 {
		return
	}
	own := r.index == 1 || r.kind == limitscripts.Leases
	if own {
		r.tokens.drop(token)
	}
	if held > 0 && r.kind != limitscripts.Leases { // a lease is gone with its token
		r.refund(token, held)
	}
	if own {
		r.tokens.withdraw(token, held, until, r.now, r.extra)
	}
}

func (r *ruleCall) refund(token uint64, held int64) {
	if r.ledger.token == token {
		r.ledger.token = 0
	}
	if r.takeOut(held) {
		r.store()
	}
}

// takeOut takes a grant out of the state, and says whether that changed it.
func (r *ruleCall) takeOut(held int64) bool {
	if !refund(r.numbers, r.state, held, r.cost, r.worth, max(r.now, r.state.newest())) {
		return false
	}
	if c, ok := r.state.(counted); ok {
		c.count().leaveNoTrace(r.cost, r.worth)
	}
	return true
}

// admitsAnew says whether the rule would admit a grant now that was made at `held`, 0 when that is not known. Afterwards the state of any
// kind but sliding and leases is a copy without the grant.
func (r *ruleCall) admitsAnew(held int64, token uint64) bool {
	switch s := r.state.(type) {
	case *leases:
		end, known := r.tokens.score(token)
		return known && end > r.now && !r.promisedAway(end, r.now)
	case *sliding:
		own := int64(0)
		if held > 0 && held <= s.newest() && held > r.now-r.w {
			own = min(r.cost, int64(s.after(held-1)-s.after(held)))
		}
		return s.newest() <= r.now && r.n-int64(s.after(r.now-r.w))+own >= r.cost
	}
	r.state = copied(r.state)
	if held > 0 {
		r.takeOut(held)
	}
	return r.earliest(r.now, 0, r.cost) <= r.now
}

// joinAt gives the job the place of a ticket.
func (r *ruleCall) joinAt(to place, ticket, at int64) {
	r.line.promised.add(r.member, at)
	r.put(to, ticket)
	r.keep(at)
}

// adjust corrects what the rule was charged, and returns how much more it holds now.
func (r *ruleCall) adjust(token, charge uint64, held int64, promoted []limitscripts.Promotion) (spent int64, _ []limitscripts.Promotion) {
	if r.kind == limitscripts.Leases || r.cost == 0 {
		return 0, promoted
	}
	at := r.now
	if want := r.cost; want > 0 { // charge what was used; a rule that can't owe is charged what is free at most
		at = max(r.now, r.state.newest())
		if spent = want; r.noDebt() {
			spent = min(want, max(0, r.state.free(r.numbers, at)))
		}
		if r.cost = spent; spent > 0 {
			r.spend(at, charge)
		}
		r.cost = want
	} else if held > 0 {
		r.lessen(token, held)
		promoted = r.promote(promoted, true)
	}
	r.tokens.keepAdjustment(charge, at, r.counts(), r.now, r.extra)
	return spent, promoted
}

// lessen gives back some of what a token was granted. When that was all of the newest
// grant the ledger's newest instant is one before it: the token goes where it has its own.
func (r *ruleCall) lessen(token uint64, held int64) {
	newest := r.state.newest()
	if refund(r.numbers, r.state, held, -r.cost, r.worth, max(r.now, newest)) {
		r.store()
	}
	if r.ledger.token == token && r.state.newest() != newest {
		r.ledger.token = 0
		if !r.ledger.remembered {
			r.tokens.remember(token, newest, r.now, r.extra)
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
		switch rule := &c.rules[i]; {
		case rule == shut:
			rule.joinAt(waits, rule.ticketOfPostponed(since), until)
		case rule.place == nowhere:
			rule.joinAt(turn, rule.ticketOfPostponed(since), until)
		}
	}
	return until
}

// ticketOfPostponed is the ticket behind the last job that was postponed since the key was
// closed, and before all other jobs. When so many were postponed that no ticket is left
// between them, it is that of the last one.
func (r *ruleCall) ticketOfPostponed(since int64) int64 {
	ticket := r.firstTicket()
	last, some := r.line.marked(lastPostponed)
	if in, _ := r.line.marked(postponedIn); some && in == since && last >= ticket {
		ticket = min(last+1, (rooms(last)+1)*room-1)
		if ticket%room != 0 {
			r.line.mark(squeezed, r.line.squeezedIn()+r.unitsOf(r.cost))
		}
	}
	r.line.mark(lastPostponed, ticket)
	r.line.mark(postponedIn, since)
	return ticket
}

// spend makes a grant at an instant that is not before earliest's.
func (r *ruleCall) spend(at int64, token uint64) {
	was, wasAt, remembered := r.ledger.token, r.state.newest(), r.ledger.remembered
	atOnce := r.index == 1 && (r.w < resentWithin || was != 0 && wasAt+resentWithin > r.now)
	r.state.charge(r.numbers, at, r.cost)
	r.ledger.token, r.ledger.remembered = token, r.kind != limitscripts.Leases && (r.index > 1 || atOnce)
	r.store()
	if r.kind == limitscripts.Leases {
		r.tokens.lend(token, at+r.w, r.now, r.extra)
		return
	}
	if !remembered {
		r.tokens.remember(was, wasAt, r.now, r.extra)
	}
	if atOnce {
		r.tokens.remember(token, at, r.now, r.extra)
	}
}

// standsAt is the rule where the job waits, or else the first where it has a
// place; nil when it has none.
func (c *call) standsAt() *ruleCall {
	var first *ruleCall
	for i := range c.rules {
		switch rule := &c.rules[i]; {
		case rule.place == waits:
			return rule
		case rule.place != nowhere && first == nil:
			first = rule
		}
	}
	return first
}

// refresh asks as far as where the job stands. What it stands in no line for is
// not asked, or it would be told later and later by those who join that line. A
// narrower rule that admits it before its turn comes there puts nothing off.
func (c *call) refresh(stands *ruleCall) limitscripts.RefreshReply {
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
		if delayedBy.kind == limitscripts.Leases {
			turns = heldTurns
		}
		c.takePlaces(delayedBy, at, turns)
	}
	for i := range c.rules {
		c.rules[i].park()
		c.rules[i].outlive()
	}
	return limitscripts.RefreshReply{
		Status: limitscripts.Booked, Rule: delayedBy.index, At: instantOf(at), Before: int(before), Promoted: c.tellMissed(c.promoteInLinesLeft()),
	}
}
