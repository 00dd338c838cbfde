package memory

import "slices"

// calendar is `calendar n/unit zone`: n permits in each minute, hour or day of
// a place. The caller says where windows begin; behind the last of these they
// are taken to be as short as any.
type calendar struct{ tally }

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

// look is the later of now and the newest grant, its window, and what is used of it.
func (c *calendar) look(l *numbers, now int64) (a, index, used int64) {
	a = max(now, c.at, l.bounds[0])
	index = l.index(a)
	if c.at >= l.begin(index) {
		used = c.used
	}
	return a, index, used
}

func (c *calendar) slot(l *numbers, now, before, cost int64) int64 {
	a, index, used := c.look(l, now)
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

func (c *calendar) back(_ *numbers, at, cost, _, _ int64) { c.sub(at, cost, 0) }

func (c *calendar) worth(*numbers) int64 { return 0 }

func (c *calendar) free(l *numbers, now int64) int64 {
	_, _, used := c.look(l, now)
	return max(0, l.n-used)
}

func (c *calendar) life(l *numbers) int64 {
	return max(l.begin(l.index(c.at)+1), c.at+l.w)
}

// carried counts again: the new window may hold both that are known.
func (c *calendar) carried(_, l *numbers) state {
	return replay(l, c.grants(l))
}
