package memory

import "github.com/headwayq/headway/internal/luascripts"

// Cancel gives a grant back, or leaves the lines, or both.
func (s *Store) Cancel(a luascripts.CancelArgs) luascripts.CancelReply {
	var r luascripts.CancelReply
	now, no := s.on(a.Rules, a.Policy, a.Job, func(c *call) {
		if c.cancel(a) {
			r.Status = luascripts.Granted
		}
		r.Promoted = c.missed(c.hints(func(*part) bool { return true }))
	})
	if no.status != 0 {
		r.Status, r.Rule, r.Version = no.status, no.part, no.version
	}
	r.Now = instantOf(now)
	return r
}

// cancel says whether it gave a grant back. Who then goes first again waits at
// the narrowest part, and finds its turn in the others.
func (c *call) cancel(a luascripts.CancelArgs) (given bool) {
	at := int64(0)
	for i := range c.parts {
		p := &c.parts[i]
		held := p.takeBack(a.Token)
		if i == 0 {
			given, at = held > 0, max(held, c.now)
		}
		switch {
		case a.Job == "":
		case !a.Back:
			p.leave()
		case held <= 0 || !given: // a copy of this call finds nothing given: it must not take the place away
		case i == 0:
			p.enterAt(waits, p.front(), at)
		default:
			p.enterAt(aside, p.front(), at)
		}
	}
	return given
}

// takeBack is when the grant was that is given back, 0 or less when there is
// none. The token refuses from now on.
func (p *part) takeBack(token uint64) int64 {
	if token == 0 {
		return 0
	}
	held := p.granted(token)
	p.tokens.drop(token)
	until := p.toldUntil
	if held > 0 && p.kind != luascripts.Leases { // a lease is gone with its token
		p.refund(token, held)
		if until == 0 { // who knew the token alone may know the instant later: it must not come back twice
			until = held + p.w
		}
	}
	p.tokens.withdraw(token, held, until, p.now, p.extra)
	return held
}

func (p *part) refund(token uint64, held int64) {
	if p.ledger.token == token {
		p.ledger.token = 0
	}
	if refund(p.numbers, p.state, held, p.cost, p.worth, max(p.now, p.state.newest())) {
		p.store()
	}
}

// enterAt gives the job the place of a ticket.
func (p *part) enterAt(to place, ticket, at int64) {
	p.line.promised.add(p.me, at)
	p.put(to, ticket)
	p.keep(at)
}
