package batch

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/headwayq/headway/internal/batchscripts"
)

const (
	// readAhead is how many elements are read before they are asked for.
	readAhead = 64
	// markMax is the longest mark of an element.
	markMax = 256
	// sourceGrace is how long it is waited for a source that was told to end.
	sourceGrace = time.Second
)

// given is what a source gave.
type given struct {
	Element
	err  error
	over bool // there is no more
}

// reader reads a source in its own goroutine.
type reader struct {
	out  chan given
	stop context.CancelFunc
	gone chan struct{} // closed when the source has returned

	had *given // taken out of the channel by who waited for it
}

func startReader(ctx context.Context, s Source, spec Spec, from Position) *reader {
	r := &reader{out: make(chan given, readAhead), gone: make(chan struct{})}
	ctx, r.stop = context.WithCancel(ctx)
	send := func(x given) bool {
		if ctx.Err() != nil {
			return false // also where there is room: nobody reads any more
		}
		select {
		case r.out <- x:
			return true
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		defer close(r.gone)
		var last error
		for e, err := range s(ctx, spec, from) {
			if last = err; !send(given{Element: e, err: err}) {
				return
			}
		}
		if ctx.Err() == nil { // otherwise that may be why it ended, and there is more
			send(given{over: true, err: last})
		}
	}()
	return r
}

// close stops reading, and waits a moment for it. A source that does not heed its context
// is left alone: nobody hears what it yields. It answers when that has returned, and nil
// when it did.
func (r *reader) close() (left <-chan struct{}) {
	if r == nil {
		return nil
	}
	r.stop()
	t := time.NewTimer(sourceGrace)
	defer t.Stop()
	select {
	case <-r.gone:
		return nil
	case <-t.C:
		return r.gone
	}
}

// poll is the next of the source, if it is there.
func (r *reader) poll() (x given, ok bool) {
	if r.had != nil {
		x, r.had = *r.had, nil
		return x, true
	}
	select {
	case x = <-r.out:
		return x, true
	default:
		return given{}, false
	}
}

// input is the source as a batch reads it: with every element at its position, without
// those that were settled before, and opened again after a failure.
type input struct {
	source  Source
	reader  *reader // nil while the source is not read
	cursor  cursor
	settled map[string]bool // ids that an earlier feeder enqueued or refused, and that were not read again yet
	item    *item           // read, and not prepared yet
	over    bool            // the source has ended
	reopen  time.Time       // when to read again after a failure
	fails   int             // in a row
	failed  func(err error, before int)
}

// newInput is the source of a batch from where that stands. failed is told of each error
// of the source, and how many came before it in a row.
func newInput(s Source, b batchscripts.Batch, failed func(err error, before int)) input {
	return input{source: s, cursor: cursor{next: b.Cursor, mark: b.Mark}, over: b.End, settled: make(map[string]bool), failed: failed}
}

// open starts to read the source, for the first time or again after a failure.
func (in *input) open(ctx context.Context, spec Spec, now time.Time) {
	if in.over || in.reader != nil || now.Before(in.reopen) {
		return
	}
	in.reader = startReader(ctx, in.source, spec, in.cursor.at())
}

// close stops reading, as [reader.close] does.
func (in *input) close() (left <-chan struct{}) { return in.reader.close() }

// more is the channel of the next element, to wait for it; nil when there is nothing to
// wait for.
func (in *input) more() <-chan given {
	if in.reader == nil || in.reader.had != nil {
		return nil
	}
	return in.reader.out
}

// readable says that the source is being read now.
func (in *input) readable(now time.Time) bool {
	return !in.over && in.reader != nil && !now.Before(in.reopen)
}

// read takes the next element of the source into item, unless that was settled before. It
// answers false when there is no next one now.
func (in *input) read(now func() time.Time) bool {
	x, ok := in.reader.poll()
	switch {
	case !ok:
		return false
	case x.over:
		<-in.reader.gone // that was the last it did
		in.reader.stop()
		in.reader = nil
		if in.over = x.err == nil; !in.over {
			in.reopen = now().Add(min(time.Second<<min(in.fails-1, 10), feedRetryMax))
		}
		return false
	case x.err != nil:
		in.fail(x.err, now)
		return true // there may be more
	}
	in.fails = 0
	if len(x.Mark) > markMax {
		// The mark before it stays: with none, the source would begin at the beginning.
		x.fault, x.Mark = fmt.Errorf("%w: the mark of an element is over %d bytes long", ErrInvalid, markMax), in.cursor.at().Mark
	}
	position := in.cursor.read(x.Mark)
	if x.ID == "" {
		x.ID = strconv.FormatInt(position, 10)
	}
	if in.settled[x.ID] {
		delete(in.settled, x.ID)
		in.cursor.settle([]int64{position})
		return true
	}
	in.item = &item{Element: x.Element, position: position}
	return true
}

// fail notes an error of the source. A source that yields many in a row is read ever more
// slowly.
func (in *input) fail(err error, now func() time.Time) {
	in.failed(err, in.fails)
	in.reopen = now().Add(min(time.Millisecond<<min(in.fails, 20)-time.Millisecond, feedRetryMax))
	in.fails++
}

// ended says that all elements are read and prepared, and settled once these are.
func (in *input) ended(positions []int64) bool {
	return in.over && in.item == nil && in.cursor.all(positions)
}

// cursor knows which of the elements that were read are settled: enqueued, or refused.
// All before the cursor are.
type cursor struct {
	next  int64
	mark  string // of the last element before the cursor
	slots []slot // from the cursor on, of each that was read
}

type slot struct {
	mark    string
	settled bool
}

// read notes the next element, and answers its position.
func (t *cursor) read(mark string) (position int64) {
	t.slots = append(t.slots, slot{mark: mark})
	return t.next + int64(len(t.slots)) - 1
}

// at is where a source goes on behind all that was read.
func (t *cursor) at() Position {
	p := Position{Read: t.next + int64(len(t.slots)), Mark: t.mark}
	if n := len(t.slots); n > 0 {
		p.Mark = t.slots[n-1].mark
	}
	return p
}

// settle notes elements, and moves the cursor to the first that is not settled.
func (t *cursor) settle(positions []int64) {
	for _, p := range positions {
		if i := p - t.next; i >= 0 && i < int64(len(t.slots)) {
			t.slots[i].settled = true
		}
	}
	n := 0
	for n < len(t.slots) && t.slots[n].settled {
		t.mark = t.slots[n].mark
		n++
	}
	t.next += int64(n)
	clear(t.slots[:n]) // their marks
	t.slots = t.slots[n:]
}

// with is where the cursor will be once these elements are settled too.
func (t *cursor) with(positions []int64) (cursor int64, mark string) {
	more := make(map[int64]bool, len(positions))
	for _, p := range positions {
		more[p] = true
	}
	cursor, mark = t.next, t.mark
	for _, s := range t.slots {
		if !s.settled && !more[cursor] {
			break
		}
		cursor, mark = cursor+1, s.mark
	}
	return cursor, mark
}

// all says that all that was read is settled, once these are.
func (t *cursor) all(positions []int64) bool {
	cursor, _ := t.with(positions)
	return cursor == t.at().Read
}
