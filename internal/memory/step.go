package memory

// step is `bucket n/W burst b step`: n tokens at once at the end of every
// interval. Intervals begin when the first is taken from a full bucket.
//
// 2/10s, burst 3, emptied at 4 s: two more at 14 s, the third at 24 s.
type step struct {
	tally
	have   int64
	anchor int64 // when the running interval began, while the bucket is not full
}

// advanced is have and anchor at a.
func (s *step) advanced(l *numbers, a int64) (have, anchor int64) {
	if s.have >= l.burst {
		return l.burst, a
	}
	j := max(0, floorDiv(a-s.anchor, l.w))
	anchor = s.anchor + j*l.w
	// so many that it is full for sure, or j*n might not fit
	if have = min(l.burst, s.have+min(j, l.burst)*l.n); have >= l.burst {
		anchor = a
	}
	return have, anchor
}

func (s *step) slot(l *numbers, now, before, cost int64) int64 {
	a, k := max(now, s.at), before+cost
	have, anchor := s.advanced(l, a)
	if k <= have {
		return a
	}
	return max(a, anchor+times(ceilDiv(k-have, l.n), l.w))
}

func (s *step) charge(l *numbers, at, cost int64) {
	s.have, s.anchor = s.advanced(l, at)
	s.have = max(0, s.have-cost)
	s.add(l.w, at, cost)
}

func (s *step) worth(*numbers) int64 { return s.taken }

// back gives back those of the grant's tokens that did not come again since.
// The state is not advanced: the clock may go backwards.
func (s *step) back(l *numbers, at, cost, worth, a int64) {
	have, _ := s.advanced(l, a)
	missing := l.burst - have
	credit := max(0, cost-times(floorDiv(a-at, l.w)+1, l.n))
	if since, known := s.since(worth); known {
		credit = max(0, missing-since)
	}
	s.have += min(cost, credit, missing)
	s.sub(at, cost, worth)
}

func (s *step) free(l *numbers, now int64) int64 {
	have, _ := s.advanced(l, max(now, s.at))
	return have
}

func (s *step) life(l *numbers) int64 {
	return max(s.anchor+times(ceilDiv(l.burst-s.have, l.n), l.w), s.at+l.w)
}

// carried keeps the tokens that are missing.
func (s *step) carried(old, l *numbers) state {
	c := &step{tally: s.tally, have: l.burst}
	if s.have < old.burst {
		c.have, c.anchor = max(0, l.burst-(old.burst-s.have)), s.anchor
	}
	if c.anchor+l.w <= c.at {
		c.anchor = c.at // the new interval is shorter: nothing comes for the past
	}
	c.fit(l.w)
	if l.stricter(old) || l.burst < old.burst {
		r := replay(l, s.grants(l)).(*step)
		if r.have < c.have || r.have == c.have && r.anchor > c.anchor {
			c.have, c.anchor = r.have, r.anchor
		}
	}
	return c
}

func ceilDiv(a, b int64) int64 { return -floorDiv(-a, b) }
