package memory

import "github.com/headwayq/headway/internal/luascripts"

// Close lets nobody go on a key for a time, or opens it.
func (s *Store) Close(a luascripts.CloseArgs) luascripts.CloseReply {
	var r luascripts.CloseReply
	now, no := s.on(a.Rules, a.Policy, a.Job, func(c *call) {
		r.Status = luascripts.Granted
		if a.Policy != "" { // a single part may be the first of several
			c.parts[0].turns = c.parts[0].key.turns(a.Policy)
		}
		shut := &c.parts[a.Rule-1]
		if a.For > 0 {
			r.Until = instantOf(c.close(shut, micros(a.For)))
			return
		}
		shut.line.promised.drop(closed)
		shut.line.promised.drop(closedSince)
		shut.open()
		r.Promoted = c.missed(shut.hints(nil, true))
	})
	if no.status != 0 {
		r.Status, r.Rule, r.Version = no.status, no.part, no.version
	}
	r.Now = instantOf(now)
	return r
}

// close closes a part's key, never for less long than it is. The job goes first when
// it is open again, in all parts: an order that differs between rules would never end.
func (c *call) close(shut *part, us int64) int64 {
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
	for i := range c.parts {
		c.parts[i].find()
	}
	if shut.me == "" || shut.place != nowhere {
		return until
	}
	for i := range c.parts {
		switch p := &c.parts[i]; {
		case p == shut:
			p.enterAt(waits, p.putOff(since), until)
		case p.place == nowhere:
			p.enterAt(turn, p.putOff(since), until)
		}
	}
	return until
}

// putOff is the ticket behind the last who was put off since the key was closed,
// before all others. Were they so many that there is no room left, it is that of the
// last.
func (p *part) putOff(since int64) int64 {
	ticket := p.front()
	last, some := p.line.marked(lastPutOff)
	if in, _ := p.line.marked(putOffIn); some && in == since && last >= ticket {
		ticket = min(last+1, (rooms(last)+1)*room-1)
		if ticket%room != 0 {
			p.line.mark(squeezed, p.line.squeezedIn()+p.cost)
		}
	}
	p.line.mark(lastPutOff, ticket)
	p.line.mark(putOffIn, since)
	return ticket
}
