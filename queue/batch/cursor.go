package batch

// track knows which of the elements that were read are settled: enqueued, or refused.
// All before the cursor are.
type track struct {
	cursor int64
	mark   string // of the last element before the cursor
	open   []slot // from the cursor on, of each that was read
}

type slot struct {
	mark    string
	settled bool
}

// read notes the next element, and answers its position.
func (t *track) read(mark string) (position int64) {
	t.open = append(t.open, slot{mark: mark})
	return t.cursor + int64(len(t.open)) - 1
}

// at is where a source goes on behind all that was read.
func (t *track) at() Position {
	p := Position{Read: t.cursor + int64(len(t.open)), Mark: t.mark}
	if n := len(t.open); n > 0 {
		p.Mark = t.open[n-1].mark
	}
	return p
}

// settle notes elements, and moves the cursor to the first that is not settled.
func (t *track) settle(positions []int64) {
	for _, p := range positions {
		if i := p - t.cursor; i >= 0 && i < int64(len(t.open)) {
			t.open[i].settled = true
		}
	}
	n := 0
	for n < len(t.open) && t.open[n].settled {
		t.mark = t.open[n].mark
		n++
	}
	t.cursor += int64(n)
	clear(t.open[:n]) // their marks
	t.open = t.open[n:]
}

// with is where the cursor will be once these elements are settled too.
func (t *track) with(positions []int64) (cursor int64, mark string) {
	more := make(map[int64]bool, len(positions))
	for _, p := range positions {
		more[p] = true
	}
	cursor, mark = t.cursor, t.mark
	for _, s := range t.open {
		if !s.settled && !more[cursor] {
			break
		}
		cursor, mark = cursor+1, s.mark
	}
	return cursor, mark
}

// all says that all that was read is settled, once these are.
func (t *track) all(positions []int64) bool {
	cursor, _ := t.with(positions)
	return cursor == t.at().Read
}
