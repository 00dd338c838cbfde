package memory

import "github.com/headwayq/headway/internal/luascripts"

// Settle corrects what a grant has paid, by part: more, or less when its cost is
// below 0. The same bill is done once.
func (s *Store) Settle(a luascripts.AdjustArgs) luascripts.CancelReply {
	var r luascripts.CancelReply
	now, no := s.on(a.Rules, a.Policy, "", func(c *call) {
		for i := range c.parts { // each remembers it as long as what it corrects counts there
			if _, done := c.parts[i].holds(a.Bill); done && c.parts[i].cost != 0 {
				return
			}
		}
		r.Status = luascripts.Granted
		for i := range c.parts {
			r.Promoted = c.parts[i].settle(a.Token, a.Bill, r.Promoted)
		}
	})
	if no.status != 0 {
		r.Status, r.Rule, r.Version = no.status, no.part, no.version
	}
	r.Now = instantOf(now)
	return r
}

func (p *part) settle(token, bill uint64, turns []luascripts.Promotion) []luascripts.Promotion {
	if p.kind == luascripts.Leases || p.cost == 0 {
		return turns
	}
	at := p.now
	if p.cost > 0 { // what was used is spent, whatever the limit says
		at = max(p.now, p.state.newest())
		p.spend(at, bill)
	} else if held := p.granted(token); held > 0 {
		p.lessen(token, held)
		turns = p.hints(turns, true)
	}
	p.tokens.bill(bill, at, p.w, p.now, p.extra)
	return turns
}

// lessen gives back some of what a token was granted. When that was all of the newest
// grant the ledger's newest instant is one before it: the token goes where it has its own.
func (p *part) lessen(token uint64, held int64) {
	newest := p.state.newest()
	if refund(p.numbers, p.state, held, -p.cost, p.worth, max(p.now, newest)) {
		p.store()
	}
	if p.ledger.token == token && p.state.newest() != newest {
		p.ledger.token = 0
		p.tokens.remember(token, newest, p.now, p.extra)
	}
}
