package memory

import "github.com/headwayq/headway/internal/luascripts"

// Check is the current instant of a booking, which becomes its last promise.
func (s *Store) Check(a luascripts.RefreshArgs) luascripts.RefreshReply {
	var r luascripts.RefreshReply
	now, no := s.on(a.Rules, a.Policy, a.Job, func(c *call) {
		c.look()
		if at := c.standsAt(); at != nil {
			r = c.check(at)
		}
	})
	if no.status != 0 {
		r.Status, r.Rule, r.Version = no.status, no.part, no.version
	}
	r.Now = instantOf(now)
	return r
}

// standsAt is the part where the job waits, or else the first where it has a
// place; nil when it has none.
func (c *call) standsAt() *ruleCall {
	var first *ruleCall
	for i := range c.parts {
		switch p := &c.parts[i]; {
		case p.place == waits:
			return p
		case p.place != nowhere && first == nil:
			first = p
		}
	}
	return first
}

// check asks as far as where the job stands. What it stands in no line for is
// not asked, or it would be told later and later by those who join that line. A
// narrower rule that admits it before its turn comes there puts nothing off.
func (c *call) check(stands *ruleCall) luascripts.RefreshReply {
	at, by, before := c.now, stands, stands.ahead.permits()
	c.sets(func(set []ruleCall) bool {
		due, last := joint(set, c.now, c.now)
		if last != nil && due >= at {
			at, by = due, last
		}
		return stands.number > set[len(set)-1].number
	})
	// an instant that is past is no new promise: how late it gets must show. Who is
	// held up by a narrower part than before stands there, and in nobody's way behind it
	if at > c.now && stands.place != aside {
		c.stand(by, at)
	}
	for i := range c.parts {
		c.parts[i].park()
		c.parts[i].outlive()
	}
	var next []luascripts.Promotion
	for i := range c.parts {
		if p := &c.parts[i]; p.leftLine() {
			next = p.promotions(next, false)
		}
	}
	return luascripts.RefreshReply{
		Status: luascripts.Booked, Rule: by.number, At: instantOf(at), Before: int(before), Promoted: c.missed(next),
	}
}
