package memory

import "math"

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
	tally
	stored float64 // permits of idle time
	next   int64   // when all before is paid
	part   float64 // of a microsecond later
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
		out.stored, out.next, out.part = c.most, a, 0
	case a > w.next+wholeUp(w.part): // the rest of a microsecond by which a grant had to be late is not idle
		out.stored = min(c.most, w.stored+(float64(a-w.next)-w.part)/c.cooling)
		out.next, out.part = a, 0
	}
	return out
}

func (w *warmUp) slot(l *numbers, now, before, _ int64) int64 {
	a, c := max(now, w.at), l.curve()
	s := w.synced(c, a)
	p := s.part + c.price(s.stored, before)
	return max(a, s.next+wholeUp(p))
}

// dust is a rest that comes from rounding a double: it would make the next grant
// seem late by a microsecond, which it then need not wait.
const dust = 1e-6

func (w *warmUp) charge(l *numbers, at, cost int64) {
	c := l.curve()
	*w = w.synced(c, at)
	p := w.part + c.price(w.stored, cost)
	w.stored = max(0, w.stored-float64(cost))
	w.next = min(never, w.next+whole(math.Floor(p)))
	if w.part = p - math.Floor(p); w.part < dust {
		w.part = 0
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
	w.sub(at, cost, worth)
}

func (w *warmUp) free(l *numbers, now int64) int64 {
	a := max(now, w.at)
	if s := w.synced(l.curve(), a); s.next+wholeUp(s.part) <= a {
		return 1
	}
	return 0
}

func (w *warmUp) life(l *numbers) int64 { return max(w.next+1+l.warm, w.at+l.w) }

// carried keeps how warm it is, and what is not paid yet.
func (w *warmUp) carried(old, l *numbers) state {
	was, is := old.curve(), l.curve()
	c := w.synced(was, w.at)
	c.stored = float64(c.stored*is.most) / was.most
	c.fit(l.w)
	if l.stricter(old) || l.warm > old.warm || l.cold > old.cold {
		r := replay(l, w.grants(l)).(*warmUp)
		if r.next > c.next || r.next == c.next && r.part > c.part {
			c.next, c.part = r.next, r.part
		}
		c.stored = max(c.stored, r.stored)
	}
	return &c
}

// wholeUp is a float rounded up to an integer.
func wholeUp(f float64) int64 { return whole(math.Ceil(f)) }
