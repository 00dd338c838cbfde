package memory

import "math"

// smooth is `smooth n/W burst S`, and with S = 0 `leaky n/W`: a job goes when
// those before it are paid for, and does not wait for its own cost. Time in
// which nobody came pays for up to S permits. It starts with none.
//
// 1/s, burst 1: 1, 1, 2, 4 and 1 permits at once go at 0, 1, 2, 4 and 8 s.
type smooth struct {
	tally
	paid rational // when all is paid; the time since then is stored
}

// from is the instant from which on a job would be paid for.
func (s *smooth) from(l *numbers, a int64) rational {
	if s.taken == 0 {
		return rational{us: a}
	}
	if a > s.stored(l).ceil() { // the rest of a microsecond by which a grant had to be late is not lost
		return l.plus(rational{us: a}, -l.burst)
	}
	return s.paid
}

func (s *smooth) slot(l *numbers, now, before, _ int64) int64 {
	a := max(now, s.at)
	return max(a, l.plus(s.from(l, a), before).ceil())
}

func (s *smooth) charge(l *numbers, at, cost int64) {
	s.paid = l.plus(s.from(l, at), cost)
	s.add(l.w, at, cost)
}

// stored is the instant at which no more is stored.
func (s *smooth) stored(l *numbers) rational { return l.plus(s.paid, l.burst) }

func (s *smooth) worth(*numbers) int64 { return s.taken }

// back gives back what of the grant time would still pay or store.
func (s *smooth) back(l *numbers, at, cost, worth, a int64) {
	if s.taken == 0 {
		return
	}
	s.paid = s.without(l, s.paid, at, cost, worth, a, l.burst)
	s.sub(at, cost, worth)
}

func (s *smooth) free(l *numbers, now int64) int64 {
	a := max(now, s.at)
	from := s.from(l, a)
	if from.ceil() > a {
		return 0
	}
	return max(1, l.fit(from, a))
}

// idle is how long a key is kept that has all stored: a new one has nothing.
const idle = 3_600_000_000

func (s *smooth) life(l *numbers) int64 {
	end := s.stored(l).ceil()
	if l.burst > 0 {
		end += idle
	}
	return max(end, s.at+l.w)
}

// carried keeps the time at which all is paid. Stored time does not become more
// permits when these get shorter, or what was spent of it would be there again.
func (s *smooth) carried(old, l *numbers) state {
	c := &smooth{tally: s.tally, paid: rational{us: s.paid.ceil()}}
	c.fit(l.w)
	if a := s.at; c.paid.us < a && old.stricter(l) {
		stored := float64(a-c.paid.us) * (float64(l.w) * float64(old.n)) / (float64(l.n) * float64(old.w))
		c.paid.us = a - whole(math.Floor(stored))
	}
	if l.stricter(old) || l.burst < old.burst {
		c.paid = later(c.paid, replay(l, s.grants(l)).(*smooth).paid)
	}
	return c
}
