package memory

import (
	"slices"
)

// counter is how many permits were granted lately: what a limit of another kind
// needs to know when it takes over. Fixed and Calendar decide with it.
type counter struct {
	start    int64 // of the counted window
	used     int64
	at       int64 // the newest grant, ever; it never goes back
	before   int64 // how many the window before had
	beforeAt int64 // its newest
	changed  int64 // the newest grant when the limit was changed, or else just before the first: nothing up to then is given back
	taken    int64 // permits ever, counted from the first grant's instant on, so that no older state's count comes near
}

func (t *counter) newest() int64 { return t.at }

func (t *counter) add(w, at, c int64) {
	if t.used == 0 || at >= t.start+w {
		t.open(at)
	}
	t.spend(at, c)
}

func (t *counter) spend(at, c int64) {
	if t.taken == 0 {
		t.taken, t.changed = at, max(t.changed, at-1)
	} else if t.taken+c > 1<<53-1 { // of a grant before that it is not known any more how many followed
		t.taken = at
	}
	t.used += c
	t.taken += c
	t.at = at
}

// since is how many permits went after a grant, of which a refund must leave
// the debt: whatever else was given back or changed, more than these permits
// is never freed. worth is the count at the grant.
func (t *counter) since(worth int64) (permits int64, known bool) {
	return t.taken - worth, 0 < worth && worth <= t.taken
}

func (t *counter) count() *counter { return t }

// open begins a window.
func (t *counter) open(start int64) {
	if t.used > 0 {
		t.before, t.beforeAt = t.used, t.at
	}
	t.start, t.used = start, 0
}

func (t *counter) sub(at, c int64) {
	if at >= t.start {
		t.used -= min(t.used, c)
	}
}

// leaveNoTrace forgets the permits of a grant that is given back whole, if no later one went: those before it need not leave its
// debt. The worth of a grant that only gets smaller may come once more, and no later grant may have it.
func (t *counter) leaveNoTrace(c, worth int64) {
	if worth != 0 && worth == t.taken {
		t.taken -= c
	}
}

// without is the instant without as much of a grant's time as is still to come at
// a: what time has paid, others may have spent since. The time of so many stored
// permits may lie in the past and still counts.
func (t *counter) without(l *numbers, instant rational, at, cost, worth, a, stored int64) rational {
	down, up := l.takes(cost)
	end := min(at+down, l.plus(instant, stored).us)
	if since, known := t.since(worth); known {
		end = l.plus(instant, stored-since).us
	}
	left := max(0, end-a)
	if left >= up {
		return l.plus(instant, -cost)
	}
	return rational{instant.us - left, instant.rest}
}

// fit begins the window at the newest grant when a window of length w would have ended before that.
func (t *counter) fit(w int64) {
	if t.start+w <= t.at {
		t.start = t.at
	}
}

func (t *counter) grants(*numbers) []grant {
	var out []grant
	if t.before > 0 {
		out = append(out, grant{t.beforeAt, t.before})
	}
	if t.used > 0 {
		out = append(out, grant{t.at, t.used})
	}
	return out
}

// fixed is `fixed n/W`: n permits in a window that begins with its first grant.
//
// 2/10s, granted at 3 s and 8 s: full until 13 s, and the next window begins
// with whoever comes then.
type fixed struct{ counter }

func (f *fixed) earliest(l *numbers, now, before, cost int64) int64 {
	a, k := max(now, f.at), before+cost
	if f.used == 0 || a >= f.start+l.w {
		return a + times((k-1)/l.n, l.w)
	}
	if over := min(f.used, l.n) + k - l.n; over > 0 { // after n fell more may be used: the next window owes nothing for it
		return f.start + l.w + times((over-1)/l.n, l.w)
	}
	return a
}

func (f *fixed) charge(l *numbers, at, cost int64) { f.add(l.w, at, cost) }

func (f *fixed) back(_ *numbers, at, cost, _, _ int64) { f.sub(at, cost) }

func (f *fixed) worth(*numbers) int64 { return 0 }

func (f *fixed) free(l *numbers, now int64) int64 {
	if max(now, f.at) >= f.start+l.w {
		return l.n
	}
	return max(0, l.n-f.used)
}

func (f *fixed) life(l *numbers) int64 { return f.at + l.w }

func (f *fixed) carriedOver(old, l *numbers) state {
	if l.w > old.w && f.before > 0 && f.beforeAt+l.w > f.at { // one window may hold both that are known
		return replay(l, f.grants(l))
	}
	c := *f
	c.fit(l.w)
	return &c
}

// calendar is `calendar n/unit zone`: n permits in each minute, hour or day of
// a place. The caller says where windows begin; behind the last of these they
// are taken to be as short as any.
type calendar struct{ counter }

// index is the window that an instant is in; what is before all is in the first.
func (l *numbers) index(at int64) int64 {
	last := len(l.bounds) - 1
	if at >= l.bounds[last] {
		return int64(last) + (at-l.bounds[last])/l.short
	}
	i, found := slices.BinarySearch(l.bounds, at)
	if !found {
		i = max(0, i-1)
	}
	return int64(i)
}

// begin is the start of a window.
func (l *numbers) begin(index int64) int64 {
	last := int64(len(l.bounds) - 1)
	if index <= last {
		return l.bounds[index]
	}
	return min(never, l.bounds[last]+times(index-last, l.short))
}

// window is the later of now and the newest grant, its window, and what is used of it.
func (c *calendar) window(l *numbers, now int64) (a, index, used int64) {
	a = max(now, c.at, l.bounds[0])
	index = l.index(a)
	if c.at >= l.begin(index) {
		used = c.used
	}
	return a, index, used
}

func (c *calendar) earliest(l *numbers, now, before, cost int64) int64 {
	a, index, used := c.window(l, now)
	if over := min(used, l.n) + before + cost - l.n; over > 0 { // after n fell more may be used
		return l.begin(index + 1 + (over-1)/l.n)
	}
	return a
}

func (c *calendar) charge(l *numbers, at, cost int64) {
	begin := at // what was before all windows, and is known from another limit, is in none
	if at >= l.bounds[0] {
		begin = l.begin(l.index(at))
	}
	if c.used == 0 || c.at < begin {
		c.open(begin)
	}
	c.spend(at, cost)
}

func (c *calendar) back(_ *numbers, at, cost, _, _ int64) { c.sub(at, cost) }

func (c *calendar) worth(*numbers) int64 { return 0 }

func (c *calendar) free(l *numbers, now int64) int64 {
	_, _, used := c.window(l, now)
	return max(0, l.n-used)
}

func (c *calendar) life(l *numbers) int64 {
	return max(l.begin(l.index(c.at)+1), c.at+l.w)
}

// carriedOver counts again: the new window may hold both that are known.
func (c *calendar) carriedOver(_, l *numbers) state {
	return replay(l, c.grants(l))
}

// step is `bucket n/W burst b step`: n tokens at once at the end of every
// interval. Intervals begin when the first is taken from a full bucket.
//
// 2/10s, burst 3, emptied at 4 s: two more at 14 s, the third at 24 s.
type step struct {
	counter
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
	if have = min(l.burst, s.have+times(j, l.n)); have >= l.burst {
		anchor = a
	}
	return have, anchor
}

func (s *step) earliest(l *numbers, now, before, cost int64) int64 {
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
	have, anchor := s.advanced(l, a)
	missing := l.burst - have
	credit := max(0, cost-times(max(0, floorDiv(anchor-at-1, l.w)+1), l.n)) // less what came since at the ends of intervals
	if since, known := s.since(worth); known {
		credit = max(0, missing-since)
	}
	s.have += min(cost, credit, missing)
	s.sub(at, cost)
}

func (s *step) free(l *numbers, now int64) int64 {
	have, _ := s.advanced(l, max(now, s.at))
	return have
}

func (s *step) life(l *numbers) int64 {
	return max(s.anchor+times(ceilDiv(l.burst-s.have, l.n), l.w), s.at+l.w)
}

// carriedOver keeps the tokens that are missing.
func (s *step) carriedOver(old, l *numbers) state {
	c := &step{counter: s.counter, have: l.burst}
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
