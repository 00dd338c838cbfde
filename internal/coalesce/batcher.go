// Package coalesce sends calls together that several goroutines make to one server at one
// time. A script call, a system call and a wake-up cost both sides about as much for many
// calls as for one.
//
// A call that comes alone is sent at once, as it is. Calls that come while others are in
// flight gather into a batch. The batch goes when one of those comes back, or after a
// millisecond where that takes longer, as to a server far away. No call waits for one
// whose answer is lost.
package coalesce

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/internal/rediserr"
)

const (
	// inFlightNear is how many batches are in flight before other calls gather: one that
	// Redis works on, and one on the way, so that neither waits for the other.
	inFlightNear = 2
	// batchMany is the size at which a batch does not wait for another to come back.
	batchMany = 32
	// PatienceDefault is how long the first gathered call waits for a batch to come back.
	// A round trip to a Redis that is near takes less. Behind a longer one more batches
	// are in flight at once.
	PatienceDefault = time.Millisecond
	// overdueAfter is how long a batch to a Redis that is near may be in flight before
	// others go without it: its answer may be lost.
	overdueAfter = 10 * time.Millisecond
	// yieldMost is how long a yield to other goroutines may take. After a longer one there
	// is no yield for yieldNot.
	yieldMost = 3 * time.Millisecond
	yieldNot  = time.Second
	// inFlightMax bounds the batches in flight: each takes a connection of the client.
	inFlightMax = 8
	// batchTimeout bounds a batch: the deadline of no single caller does.
	batchTimeout = 10 * time.Second
)

// Transport is how calls get to servers. Its functions are called from several goroutines.
type Transport[C any] struct {
	// Alone sends one call, in the goroutine of its caller and with its context.
	Alone func(ctx context.Context, c C) error
	// Together sends several calls, and returns an error when their answers are lost. Calls
	// that are gathered by then go alone: otherwise each would wait for the time-outs of
	// those before it. What became of each call stands in the call.
	Together func(ctx context.Context, calls []C) error
	// Weight is how much of one script's work a call is, 1 or more. Most is how much goes
	// into one batch.
	Weight func(c C) int
	Most   int
	// Few is the batch size from which one batch in flight is enough: the next one is
	// larger for it, and costs Redis and the client less. 0 turns that off, for callers
	// whose waiting costs more than it saves.
	Few int
	// Patience is [PatienceDefault], but in tests.
	Patience time.Duration
}

// Batcher sends the calls to one server. While any call waits, a batch is in flight, and
// the last batch to come back sends the waiting calls. So no call is left behind. A batch
// that is overdue is not counted any more, and others go without it.
//
// Its zero value is not usable, see [NewBatcher]. It is safe for concurrent use.
type Batcher[C any] struct {
	transport *Transport[C]

	mu        sync.Mutex
	inFlight  int
	waiting   []request[C]
	unused    *batch[C]     // memory of a batch that has come back
	lastSize  int           // of the last batch that was sent
	roundTrip time.Duration // the shortest of late: what a busy machine adds is not distance
	since     time.Time     // when the first waiting call came, or was left behind
	overdue   int           // batches in flight that are not counted any more
	impatient bool          // the first call has waited too long, and could not be sent
	timer     *time.Timer   // fires when the first call may have waited too long
	armed     bool          // the timer will fire
	busy      atomic.Int64  // no yield until then: this process computes
}

// request is a call that waits to be sent with others.
type request[C any] struct {
	call C
	sent chan bool // receives once: true after it was sent, false when it is to go alone
}

// NewBatcher returns a batcher for one server.
func NewBatcher[C any](transport *Transport[C]) *Batcher[C] {
	return &Batcher[C]{transport: transport}
}

// Do sends a call, and returns when what became of it stands in the call. The error is
// that of a call that went alone, or of a context that has ended. In the latter case the
// call may still be in flight: do not read or use it again.
func (b *Batcher[C]) Do(ctx context.Context, c C) error {
	b.mu.Lock()
	if awaited := b.inFlight - b.overdue; b.inFlight < inFlightMax && (awaited == 0 || awaited < inFlightNear && !b.gathers()) {
		b.inFlight++
		b.mu.Unlock()
		return b.sendAlone(ctx, c)
	}
	p := request[C]{c, make(chan bool, 1)}
	if b.waiting = append(b.waiting, p); len(b.waiting) == 1 {
		b.startPatience()
	}
	if b.inFlight-b.overdue < inFlightNear && b.inFlight < inFlightMax && len(b.waiting) >= batchMany {
		b.flush()
	}
	b.mu.Unlock()

	select {
	case sent := <-p.sent:
		if !sent {
			return b.transport.Alone(ctx, c)
		}
		return nil
	case <-ctx.Done():
		b.leave(p)
		return ctx.Err()
	}
}

// gathers says that one batch in flight is enough: there are many calls, and the server is
// near. The lock is held.
func (b *Batcher[C]) gathers() bool {
	return b.transport.Few > 0 && b.lastSize >= b.transport.Few && b.roundTrip <= b.transport.Patience
}

// flush sends the waiting calls. The lock is held.
func (b *Batcher[C]) flush() {
	b.inFlight++
	go b.deliver(b.join(nil)) // ends when no call waits any more
}

// sendAlone sends one call in the goroutine of its caller.
func (b *Batcher[C]) sendAlone(ctx context.Context, c C) (err error) {
	began := time.Now()
	defer func() {
		if err != nil && ctx.Err() == nil && !rediserr.Of(err).Answered() {
			b.drain()
		}
		if f := b.next(nil, time.Since(began)); f != nil {
			go b.deliver(f) // as that of flush
		}
	}()
	return b.transport.Alone(ctx, c)
}

// batch is calls that are sent together. Its memory is used again.
type batch[C any] struct {
	requests []request[C]
	calls    []C // of the requests
}

// next is what is sent when a batch has come back; f is nil after a call that went alone.
// When it is nil, one batch less is in flight. That is so, too, when more are in flight
// than Redis needs, as after a moment in which it was slow: many batches hold few calls.
func (b *Batcher[C]) next(f *batch[C], took time.Duration) *batch[C] {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.roundTrip += max(0, took-b.roundTrip) / 16
	b.roundTrip = min(b.roundTrip, took)
	enough := inFlightNear
	if b.gathers() && len(b.waiting) < batchMany/2 {
		enough = 1
	}
	if took >= overdueAfter && b.overdue > 0 {
		b.overdue--
	}
	if len(b.waiting) > 0 && (b.impatient || b.inFlight-b.overdue <= enough) {
		return b.join(f)
	}
	if b.inFlight--; b.inFlight == 0 {
		b.lastSize = 0
	}
	b.overdue = min(b.overdue, b.inFlight) // one that came back in time may have been taken for overdue
	if f != nil {
		b.unused = f
	}
	return nil
}

// join moves the oldest waiting calls into a batch. The lock is held.
func (b *Batcher[C]) join(f *batch[C]) *batch[C] {
	if f == nil {
		f, b.unused = b.unused, nil
	}
	if f == nil {
		f = &batch[C]{}
	}
	n, weight := 0, 0
	for n < len(b.waiting) {
		weight += b.transport.Weight(b.waiting[n].call)
		if n > 0 && weight > b.transport.Most {
			break
		}
		n++
	}
	b.lastSize = n
	f.requests = append(f.requests, b.waiting[:n]...)
	b.waiting = slices.Delete(b.waiting, 0, n)
	if len(b.waiting) > 0 {
		b.startPatience()
	}
	return f
}

// startPatience begins to count for a new first waiting call. The lock is held.
func (b *Batcher[C]) startPatience() {
	b.impatient = false
	if b.since = time.Now(); !b.armed {
		b.arm(b.patience())
	}
}

// patience is how long the first call waits. Where Redis is near, a batch in flight comes
// back long before that, unless its answer is lost.
func (b *Batcher[C]) patience() time.Duration {
	if b.roundTrip <= b.transport.Patience {
		return max(overdueAfter, b.transport.Patience)
	}
	return b.transport.Patience
}

// arm sets the timer. The lock is held.
func (b *Batcher[C]) arm(after time.Duration) {
	if b.armed = true; b.timer == nil {
		b.timer = time.AfterFunc(after, b.flushSoon)
		return
	}
	b.timer.Reset(after)
}

// flushSoon sends the waiting calls when the first has waited too long, as far as so many
// batches may be in flight. The timer may have been set for an earlier call: that is
// cheaper than to set it for each.
func (b *Batcher[C]) flushSoon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = false
	if len(b.waiting) == 0 {
		return
	}
	if left := b.patience() - time.Since(b.since); left > 0 {
		b.arm(left)
		return
	}
	if b.roundTrip <= b.transport.Patience {
		b.overdue = b.inFlight
	}
	for len(b.waiting) > 0 && b.inFlight < inFlightMax {
		b.flush()
	}
	b.impatient = len(b.waiting) > 0
}

// leave takes a call back that was not sent yet.
func (b *Batcher[C]) leave(p request[C]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.IndexFunc(b.waiting, func(w request[C]) bool { return w.sent == p.sent }); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	}
}

// Calls is how many calls wait to be sent, and how many requests are in flight.
func (b *Batcher[C]) Calls() (waiting, inFlight int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting), b.inFlight
}

// drain lets all waiting calls go alone: behind a server that does not answer each would
// wait for the time-outs of those before it.
func (b *Batcher[C]) drain() {
	b.mu.Lock()
	all := b.waiting
	b.waiting = nil
	b.mu.Unlock()
	for _, p := range all {
		p.sent <- false
	}
}

// deliver sends a batch, and then what has gathered meanwhile. It yields in between, so
// that goroutines that are about to call come along.
func (b *Batcher[C]) deliver(f *batch[C]) {
	for f != nil {
		began := time.Now()
		if err := b.send(f); err != nil && !rediserr.Of(err).Answered() {
			b.drain()
		}
		took := time.Since(began)
		b.yield()
		f = b.next(f, took)
	}
}

// yield lets other goroutines run, unless that took long lately: callers would wait for
// handlers that compute.
func (b *Batcher[C]) yield() {
	began := time.Now()
	if began.UnixNano() < b.busy.Load() {
		return
	}
	if runtime.Gosched(); time.Since(began) > yieldMost {
		b.busy.Store(began.Add(yieldNot).UnixNano())
	}
}

// send sends all calls of a batch, and returns what Together does.
func (b *Batcher[C]) send(f *batch[C]) error {
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	for _, p := range f.requests {
		f.calls = append(f.calls, p.call)
	}
	err := b.transport.Together(ctx, f.calls)
	for _, p := range f.requests {
		p.sent <- true
	}
	f.empty()
	return err
}

// empty forgets the calls of a batch.
func (f *batch[C]) empty() {
	clear(f.requests)
	clear(f.calls)
	f.requests, f.calls = f.requests[:0], f.calls[:0]
}
