package memory

// fixed is `fixed n/W`: n permits in a window that begins with its first grant.
//
// 2/10s, granted at 3 s and 8 s: full until 13 s, and the next window begins
// with whoever comes then.
type fixed struct{ tally }

func (f *fixed) slot(l *numbers, now, before, cost int64) int64 {
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

func (f *fixed) back(_ *numbers, at, cost, _, _ int64) { f.sub(at, cost, 0) }

func (f *fixed) worth(*numbers) int64 { return 0 }

func (f *fixed) free(l *numbers, now int64) int64 {
	if max(now, f.at) >= f.start+l.w {
		return l.n
	}
	return max(0, l.n-f.used)
}

func (f *fixed) life(l *numbers) int64 { return f.at + l.w }

func (f *fixed) carried(old, l *numbers) state {
	if l.w > old.w && f.before > 0 && f.beforeAt+l.w > f.at { // one window may hold both that are known
		return replay(l, f.grants(l))
	}
	c := *f
	c.fit(l.w)
	return &c
}
