package memory

// gcra is `gcra n/W burst b`, and a bucket of b that fills continuously: it
// keeps the instant at which the bucket is full again.
//
// 10/s, burst 3: after 3 at once the next one waits 100 ms, and one who comes
// at 99 ms waits 1 ms.
type gcra struct {
	tally
	full rational // when all is paid; long past is as good as now
}

// from is the later of a and the instant at which all is paid.
func (g *gcra) from(a int64) rational {
	if a > g.full.ceil() { // the rest of a microsecond by which a grant had to be late is not lost
		return rational{us: a}
	}
	return g.full
}

func (g *gcra) slot(l *numbers, now, before, cost int64) int64 {
	a := max(now, g.at)
	return max(a, l.plus(g.from(a), before+cost-l.burst).ceil())
}

func (g *gcra) charge(l *numbers, at, cost int64) {
	g.full = l.plus(g.from(at), cost)
	if most := l.plus(rational{us: at}, l.burst); later(g.full, most) != most {
		g.full = most // only in a replay
	}
	g.add(l.w, at, cost)
}

func (g *gcra) worth(*numbers) int64 { return g.taken }

// back gives back what of the grant is not paid yet: what time has paid, others
// may have spent since.
func (g *gcra) back(l *numbers, at, cost, worth, a int64) {
	g.full = g.without(l, g.full, at, cost, worth, a, 0)
	g.sub(at, cost, worth)
}

func (g *gcra) free(l *numbers, now int64) int64 {
	a := max(now, g.at)
	from := g.from(a)
	if from.us < a {
		return l.burst
	}
	return max(0, l.burst-l.cover(a, from))
}

func (g *gcra) life(l *numbers) int64 { return max(g.full.ceil(), g.at+l.w) }

// carried keeps the permits that are owed, at the pace of the new numbers.
func (g *gcra) carried(old, l *numbers) state {
	a := g.at
	c := &gcra{tally: g.tally}
	c.fit(l.w)
	debt := float64(max(0, g.full.ceil()-a))
	c.full.us = a + wholeUp(debt*(float64(l.w)*float64(old.n))/(float64(l.n)*float64(old.w)))
	if most := l.plus(rational{us: a}, l.burst); later(c.full, most) != most {
		c.full = most
	}
	if l.stricter(old) || l.burst < old.burst {
		c.full = later(c.full, replay(l, g.grants(l)).(*gcra).full)
	}
	return c
}
