package memory

// book gives the job its places: it waits where it is held up, keeps its turn in
// the parts before, which admitted it, and is in nobody's way in those behind. A
// closed gate leaves it none, or its places would hold up others until it opens.
// The answer is its instant.
func (c *call) book(v verdict, g gate) int64 {
	if v.by == nil {
		c.leave()
		if wide := c.widest(); wide != nil && v.at < g.until {
			return wide.await(g, v.at)
		}
		return v.at
	}
	c.stand(v.by, v.at)
	return v.at
}

// stand gives the job its places while a part puts it off until an instant.
func (c *call) stand(by *part, at int64) {
	admitted := c.admitted(by)
	for i := range c.parts {
		switch p := &c.parts[i]; {
		case p == by && p.follows(at):
			p.enter(turn, at)
		case p == by:
			p.enter(waits, at)
		case p.group > 0 && p.group <= admitted:
			p.enter(turn, at)
		default:
			p.setAside(at)
		}
	}
}

// admitted is the last group in which a job keeps its turn while a part holds it
// up. A lease holds up nobody at rates of its own key and wider ones.
func (c *call) admitted(by *part) int {
	if by.group > 0 {
		return by.group
	}
	last := 0
	for i := range c.parts {
		switch p := &c.parts[i]; {
		case p.group == 0:
		case p.id == by.id:
			return p.group - 1
		default:
			last = p.group
		}
	}
	return last
}
