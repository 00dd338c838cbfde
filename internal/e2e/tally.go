package e2e

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/headwayq/headway/event"
)

// Tally counts what became of the messages, by phone. The zero Tally is empty and ready.
// It is safe for concurrent use, and keeps 8 bytes per send.
type Tally struct {
	mu     sync.Mutex
	sent   map[string][]int64 // granted instants in µs, by phone in clear: it never leaves the process
	total  int
	failed int
}

// PhoneTally is what one phone got.
type PhoneTally struct {
	Phone  string // masked
	Sent   int
	MinGap *time.Duration // between the granted instants of two sends; nil with fewer than two
}

// Sent counts a message that the gateway took, granted at that instant.
func (t *Tally) Sent(phone string, grantedUs int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sent == nil {
		t.sent = map[string][]int64{}
	}
	t.sent[phone] = append(t.sent[phone], grantedUs)
	t.total++
}

// Failed counts a message that failed for good.
func (t *Tally) Failed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed++
}

// Counts returns how many were sent and how many failed for good.
func (t *Tally) Counts() (sent, failed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total, t.failed
}

// Phones returns the phones that got at least one message: most sends first,
// then the smallest gap, then by number.
func (t *Tally) Phones() []PhoneTally {
	t.mu.Lock()
	defer t.mu.Unlock()
	type row struct {
		phone string
		PhoneTally
	}
	rows := make([]row, 0, len(t.sent))
	for phone, at := range t.sent {
		rows = append(rows, row{phone, PhoneTally{Phone: Mask(phone), Sent: len(at), MinGap: minGap(at)}})
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(-cmp.Compare(a.Sent, b.Sent), compareGaps(a.MinGap, b.MinGap), cmp.Compare(a.phone, b.phone))
	})
	phones := make([]PhoneTally, len(rows))
	for i, r := range rows {
		phones[i] = r.PhoneTally
	}
	return phones
}

// minGap sorts at, instants in µs, and returns the smallest gap.
func minGap(at []int64) *time.Duration {
	slices.Sort(at)
	var least *time.Duration
	for i := 1; i < len(at); i++ {
		if gap := time.Duration(at[i]-at[i-1]) * time.Microsecond; least == nil || gap < *least {
			least = &gap
		}
	}
	return least
}

// compareGaps puts no gap last.
func compareGaps(a, b *time.Duration) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*a, *b)
}

// Watch hears from the pool how late messages start, and when deferred ones are
// due. The zero watch is ready. It is safe for concurrent use.
type Watch struct {
	mu   sync.Mutex
	late []time.Duration      // a sample per message that had waited
	due  map[string]time.Time // deferred by this process, by task id, by Redis' clock
}

// Observer is what hears for the watch.
func (w *Watch) Observer() event.Observer {
	return event.Observer{
		Deferred: func(_ context.Context, e event.Deferred) { w.waits(e.Task.ID, e.At) },
		Moved:    func(_ context.Context, e event.Moved) { w.waits(e.Task.ID, e.At) },
		Woken: func(_ context.Context, e event.Woken) {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.due, e.Task.ID)
		},
		Granted: func(_ context.Context, e event.Granted) {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.due, e.Task.ID)
			if !e.Promised.IsZero() {
				w.late = append(w.late, e.Late)
			}
		},
	}
}

func (w *Watch) waits(id string, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.due == nil {
		w.due = map[string]time.Time{}
	}
	w.due[id] = until
}

// Lateness returns the samples so far.
func (w *Watch) Lateness() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.late)
}

// NextIn returns the time from now until the next message of this process is
// due, 0 if none is known. It is for display: it compares the local clock with Redis'.
func (w *Watch) NextIn(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var next time.Duration
	for id, at := range w.due {
		in := at.Sub(now)
		if in <= 0 {
			delete(w.due, id) // another process woke it
		} else if next == 0 || in < next {
			next = in
		}
	}
	return next
}
