package memory

import "github.com/headwayq/headway/internal/luascripts"

// Settle corrects what a grant has paid, by part: more, or less when its cost is
// below 0. The same bill is done once.
func (s *Store) Settle(a luascripts.SettleArgs) luascripts.CancelReply {
	var r luascripts.CancelReply
	now, no := s.on(a.Parts, a.Policy, "", func(c *call) {
		if _, done := c.parts[0].holds(a.Bill); done {
			return
		}
		r.Status = luascripts.Granted
		for i := range c.parts {
			r.Next = c.parts[i].settle(a.Token, a.Bill, r.Next)
		}
		first := &c.parts[0]
		first.tokens.remember(a.Bill, c.now, first.w, c.now, c.extra)
	})
	if no.status != 0 {
		r.Status, r.Part, r.Version = no.status, no.part, no.version
	}
	r.Now = instantOf(now)
	return r
}

func (p *part) settle(token, bill uint64, turns []luascripts.Turn) []luascripts.Turn {
	if p.kind == luascripts.Leases || p.cost == 0 {
		return turns
	}
	if p.cost > 0 { // what was used is spent, whatever the limit says
		p.spend(max(p.now, p.state.newest()), bill)
		return turns
	}
	if held, _ := p.holds(token); held > 0 {
		if refund(p.numbers, p.state, held, -p.cost, p.worth, max(p.now, p.state.newest())) {
			p.store()
		}
		return p.hints(turns, true)
	}
	return turns
}
