package memory

// tally is how many permits were granted lately: what a limit of another kind
// needs to know when it takes over. Fixed and Calendar decide with it.
type tally struct {
	start    int64 // of the counted window
	used     int64
	at       int64 // the newest grant, ever; it never goes back
	before   int64 // how many the window before had
	beforeAt int64 // its newest
	changed  int64 // the newest grant when the limit was changed, or else just before the first: nothing up to then is given back
	taken    int64 // permits ever, counted from the first grant's instant on, so that no older state's count comes near
}

func (t *tally) newest() int64 { return t.at }

func (t *tally) add(w, at, c int64) {
	if t.used == 0 || at >= t.start+w {
		t.open(at)
	}
	t.spend(at, c)
}

func (t *tally) spend(at, c int64) {
	if t.taken == 0 {
		t.taken, t.changed = at, max(t.changed, at-1)
	}
	t.used += c
	t.taken += c
	t.at = at
}

// since is how many permits went after a grant, of which a refund must leave
// the debt: whatever else was given back or changed, more than these permits
// is never freed. worth is the count at the grant.
func (t *tally) since(worth int64) (permits int64, known bool) {
	return t.taken - worth, 0 < worth && worth <= t.taken
}

func (t *tally) count() *tally { return t }

// open begins a window.
func (t *tally) open(start int64) {
	if t.used > 0 {
		t.before, t.beforeAt = t.used, t.at
	}
	t.start, t.used = start, 0
}

func (t *tally) sub(at, c, worth int64) {
	if at >= t.start {
		t.used -= min(t.used, c)
	}
	if worth != 0 && worth == t.taken { // the last one leaves no trace for those before it
		t.taken -= c
	}
}

// without is the instant without as much of a grant's time as is still to come at
// a: what time has paid, others may have spent since. The time of so many stored
// permits may lie in the past and still counts.
func (t *tally) without(l *numbers, instant rational, at, cost, worth, a, stored int64) rational {
	down, up := l.takes(cost)
	end := min(at+down, l.plus(instant, stored).us)
	if since, known := t.since(worth); known {
		end = l.plus(instant, stored-since).us
	}
	left := max(0, end-a)
	if left >= up {
		return l.plus(instant, -cost)
	}
	return rational{instant.us - left, instant.part}
}

// fit makes the tally one of windows of length w.
func (t *tally) fit(w int64) {
	if t.start+w <= t.at {
		t.start = t.at
	}
}

func (t *tally) grants(*numbers) []grant {
	var out []grant
	if t.before > 0 {
		out = append(out, grant{t.beforeAt, t.before})
	}
	if t.used > 0 {
		out = append(out, grant{t.at, t.used})
	}
	return out
}
