package memory

import (
	"math"
	"math/bits"
)

// never is further away than anybody waits, and leaves room to add to it.
const never = math.MaxInt64 / 4

// rational is the instant us + rest/n microseconds, 0 <= rest < n, of a limit
// whose permits take w/n each. Rounding stays out of a ledger, or it would add up.
type rational struct{ us, rest int64 }

// plus is t and the time of k permits later; k may be negative.
func (l *numbers) plus(t rational, k int64) rational {
	hi, lo := bits.Mul64(uint64(max(k, -k)), uint64(l.w%l.n))
	often, rest := bits.Div64(hi, lo, uint64(l.n)) // below k: the rest of a window is below n
	more, part := int64(often), int64(rest)
	if k < 0 {
		more, part = -more, -part
	}
	part += t.rest
	us := t.us + times(k, l.w/l.n) + more + floorDiv(part, l.n)
	return rational{min(us, never), floorMod(part, l.n)}
}

// ceil is the first whole microsecond that is not before t.
func (t rational) ceil() int64 {
	if t.rest == 0 {
		return t.us
	}
	return t.us + 1
}

// later compares instants of the same limit.
func later(t, u rational) rational {
	if t.us > u.us || t.us == u.us && t.rest > u.rest {
		return t
	}
	return u
}

// takes is the time of k permits in whole microseconds, rounded down and up.
func (l *numbers) takes(k int64) (down, up int64) {
	t := l.plus(rational{}, k)
	return t.us, t.ceil()
}

// fit is how many permits' time fits between t and the instant a, which is not
// before t.
func (l *numbers) fit(t rational, a int64) int64 {
	hi, lo := bits.Mul64(uint64(a-t.us), uint64(l.n))
	lo, borrow := bits.Sub64(lo, uint64(t.rest), 0)
	return divide(hi-borrow, lo, l.w)
}

// cover is how many permits it takes to get from the instant a to t, which is
// not before a.
func (l *numbers) cover(a int64, t rational) int64 {
	hi, lo := bits.Mul64(uint64(t.us-a), uint64(l.n))
	lo, carry := bits.Add64(lo, uint64(t.rest), 0)
	lo, more := bits.Add64(lo, uint64(l.w-1), 0)
	return divide(hi+carry+more, lo, l.w)
}

func divide(hi, lo uint64, by int64) int64 {
	if hi >= uint64(by) {
		return never
	}
	q, _ := bits.Div64(hi, lo, uint64(by))
	return int64(min(q, never))
}

// times is k*us, cut to never; k may be negative.
func times(k, us int64) int64 {
	hi, lo := bits.Mul64(uint64(max(k, -k)), uint64(us))
	if hi > 0 || lo > never {
		lo = never
	}
	if k < 0 {
		return -int64(lo)
	}
	return int64(lo)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }

// whole is a float's whole part as an integer, cut to never.
func whole(f float64) int64 { return int64(min(f, never)) }

// gcra is `gcra n/W burst b`, and a bucket of b that fills continuously: it
// keeps the instant at which the bucket is full again.
//
// 10/s, burst 3: after 3 at once the next one waits 100 ms, and one who comes
// at 99 ms waits 1 ms.
type gcra struct {
	counter
	full rational // when all is paid; long past is as good as now
}

// from is the later of a and the instant at which all is paid.
func (g *gcra) from(a int64) rational {
	if a > g.full.ceil() { // the rest of a microsecond by which a grant had to be late is not lost
		return rational{us: a}
	}
	return g.full
}

func (g *gcra) earliest(l *numbers, now, before, cost int64) int64 {
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
	g.sub(at, cost)
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

// carriedOver keeps the permits that are owed, at the pace of the new numbers.
func (g *gcra) carriedOver(old, l *numbers) state {
	a := g.at
	c := &gcra{counter: g.counter}
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

// smooth is `smooth n/W burst S`, and with S = 0 `leaky n/W`: a job goes when
// those before it are paid for, and does not wait for its own cost. Time in
// which nobody came pays for up to S permits. It starts with none.
//
// 1/s, burst 1: 1, 1, 2, 4 and 1 permits at once go at 0, 1, 2, 4 and 8 s.
type smooth struct {
	counter
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

func (s *smooth) earliest(l *numbers, now, before, _ int64) int64 {
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
	s.sub(at, cost)
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

// carriedOver keeps the instant at which all is paid, and scales the permits that are stored,
// as Guava's setRate does.
func (s *smooth) carriedOver(old, l *numbers) state {
	c := &smooth{counter: s.counter, paid: rational{us: s.paid.ceil()}}
	c.fit(l.w)
	if a := s.at; c.paid.us < a && old.burst > 0 {
		stored := float64(a-c.paid.us) * (float64(l.w) * float64(old.n)) / (float64(l.n) * float64(old.w))
		c.paid.us = a - whole(math.Floor(stored*float64(l.burst)/float64(old.burst)))
	}
	return c
}

// warmUp is `warmup n/W over D cold c`: a permit takes W/n when jobs come
// steadily, and up to c times that after idle time, which cools down. As with
// smooth a job waits for the cost of those before it.
//
// 2/s over 4 s, cold 3: permits one by one from cold wait 0, 1.375, 1.125,
// 0.875, 0.625, and then 0.5 s each.
//
// Doubles decide here: every product that is added is converted, so that no
// compiler fuses the two and rounds once less than Redis does.
type warmUp struct {
	counter
	stored   float64 // permits of idle time
	next     int64   // when all before is paid
	fraction float64 // of a microsecond later
}

// curve is how long a permit takes, by how many are stored.
type curve struct {
	steady    float64 // microseconds a permit, up to the threshold
	threshold float64
	most      float64 // stored when cold
	slope     float64 // microseconds a permit, for each permit stored above the threshold
	cooling   float64 // microseconds to store one
}

func (l *numbers) curve() curve {
	warm, cold := float64(l.warm), float64(l.cold)/1000
	c := curve{steady: float64(l.w) / float64(l.n)}
	coldest := float64(cold * c.steady)
	c.threshold = float64(0.5*warm) / c.steady
	c.most = c.threshold + float64(2*warm)/(c.steady+coldest)
	c.slope = (coldest - c.steady) / (c.most - c.threshold)
	c.cooling = warm / c.most
	return c
}

// price is the time of k permits when so many are stored.
func (c curve) price(stored float64, k int64) float64 {
	var w float64
	many := float64(k)
	spend := min(many, stored)
	fresh := many - spend
	if above := stored - c.threshold; above > 0 && spend > 0 {
		g := min(above, spend)
		from := c.steady + float64(above*c.slope)
		to := c.steady + float64((above-g)*c.slope)
		w = float64(float64(g*(from+to)) * 0.5)
		spend -= g
	}
	w += float64(c.steady * spend)
	return w + float64(c.steady*fresh)
}

// synced is w at a: idle time since all was paid is stored.
func (w *warmUp) synced(c curve, a int64) warmUp {
	out := *w
	switch {
	case w.taken == 0:
		out.stored, out.next, out.fraction = c.most, a, 0
	case a > w.next+wholeUp(w.fraction): // the rest of a microsecond by which a grant had to be late is not idle
		out.stored = min(c.most, w.stored+(float64(a-w.next)-w.fraction)/c.cooling)
		out.next, out.fraction = a, 0
	}
	return out
}

func (w *warmUp) earliest(l *numbers, now, before, _ int64) int64 {
	a, c := max(now, w.at), l.curve()
	s := w.synced(c, a)
	p := s.fraction + c.price(s.stored, before)
	return max(a, s.next+wholeUp(p))
}

// dust is a rest that comes from rounding a double: it would make the next grant
// seem late by a microsecond, which it then need not wait.
const dust = 1e-6

func (w *warmUp) charge(l *numbers, at, cost int64) {
	c := l.curve()
	*w = w.synced(c, at)
	p := w.fraction + c.price(w.stored, cost)
	w.stored = max(0, w.stored-float64(cost))
	w.next = min(never, w.next+whole(math.Floor(p)))
	if w.fraction = p - math.Floor(p); w.fraction < dust {
		w.fraction = 0
	}
	w.add(l.w, at, cost)
}

func (w *warmUp) worth(*numbers) int64 { return w.taken }

// back gives back the grant's time, at the steady pace, as far as it is still
// to come. What was stored stays spent: warm is warm.
func (w *warmUp) back(l *numbers, at, cost, worth, a int64) {
	pace := l.curve().steady
	steady := whole(math.Floor(float64(cost) * pace))
	end := min(at+steady, w.next)
	if since, known := w.since(worth); known {
		end = w.next - wholeUp(float64(since)*pace)
	}
	w.next -= min(max(0, end-a), steady)
	w.sub(at, cost)
}

func (w *warmUp) free(l *numbers, now int64) int64 {
	a := max(now, w.at)
	if s := w.synced(l.curve(), a); s.next+wholeUp(s.fraction) <= a {
		return 1
	}
	return 0
}

func (w *warmUp) life(l *numbers) int64 { return max(w.next+1+l.warm, w.at+l.w) }

// carriedOver keeps how warm it is, and what is not paid yet.
func (w *warmUp) carriedOver(old, l *numbers) state {
	was, is := old.curve(), l.curve()
	c := w.synced(was, w.at)
	c.stored = float64(c.stored*is.most) / was.most
	c.fit(l.w)
	return &c
}

// wholeUp is a float rounded up to an integer.
func wholeUp(f float64) int64 { return whole(math.Ceil(f)) }
