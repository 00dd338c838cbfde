package memory

import "github.com/headwayq/headway/internal/luascripts"

// Close lets nobody go on a key for a time, or opens it.
func (s *Store) Close(a luascripts.CloseArgs) luascripts.CloseReply {
	var r luascripts.CloseReply
	now, no := s.on(a.Parts, a.Policy, a.Job, func(c *call) {
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
		shut.open()
		r.Next = shut.hints(nil, true)
	})
	if no.status != 0 {
		r.Status, r.Part, r.Version = no.status, no.part, no.version
	}
	r.Now = instantOf(now)
	return r
}

// close closes a part's key, never for less long than it is. The job goes first when
// it is open again, in all parts: an order that differs between rules would never end.
func (c *call) close(shut *part, us int64) int64 {
	promised := &shut.line.promised
	until, _ := promised.score(closed)
	until = max(until, c.now+us)
	promised.add(closed, until)
	promised.live(c.now, until-c.now+1_000_000+c.extra)
	for i := range c.parts {
		c.parts[i].find()
	}
	if shut.me == "" || shut.place != nowhere {
		return until
	}
	for i := range c.parts {
		switch p := &c.parts[i]; {
		case p == shut:
			p.enterFirst(waits, until)
		case p.place == nowhere:
			p.enterFirst(turn, until)
		}
	}
	return until
}
