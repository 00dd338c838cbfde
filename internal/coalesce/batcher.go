// Package coalesce sends what several goroutines ask one server together: a script call, a
// system call, a wake-up cost both sides about as much for many as for one.
//
// Who comes alone is sent at once, as it is. What comes while others are under way gathers,
// and goes together when one of those comes back; where that takes longer than a
// millisecond, as to a server far away, after that. Nobody waits for one that is lost.
package coalesce

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// FlightsNear is how many calls are under way before others gather: one that
	// Redis works on, and one on the way, so that neither waits for the other.
	FlightsNear = 2
	// crowdMany is a crowd that does not wait for another flight.
	crowdMany = 32
	// PatienceDefault is how long the first of those who gather waits for one of them to
	// come back: a round trip to a Redis that is near takes less. Behind a longer one
	// more are under way at once.
	PatienceDefault = time.Millisecond
	// strayAfter is how long a flight to a Redis that is near may be away before others
	// go without it: its answer may be lost.
	strayAfter = 10 * time.Millisecond
	// yieldMost is how long goroutines that can run may take before they are not waited
	// for any more, and that for yieldNot.
	yieldMost = 3 * time.Millisecond
	yieldNot  = time.Second
	// FlightsMax bounds the calls under way: each takes a connection of the client.
	FlightsMax = 8
	// flightTime bounds a call for several: no caller's deadline does.
	flightTime = 10 * time.Second
)

// Transport is how calls get to servers. Its functions are called from several goroutines.
type Transport[C any] struct {
	// Alone sends one call, in the goroutine of its caller and with its context.
	Alone func(ctx context.Context, c C) error
	// Together sends several, and returns an error when their answers are lost: who waits
	// then goes alone, or each would wait for the time-out of those before. What became of
	// each call stands in the call.
	Together func(ctx context.Context, calls []C) error
	// Weight is how much of one script's work a call is, 1 or more, and Most how much goes
	// together.
	Weight func(c C) int
	Most   int
	// Few is how many gather at least before one flight is enough: the next crowd is larger
	// for it, and costs Redis and the client less. 0 where those who wait hold more up than
	// that saves.
	Few int
	// Patience is [PatienceDefault], but in tests.
	Patience time.Duration
}

// Batcher is the way to one server. While anybody waits there, a flight is under way, and
// the last one to come back takes along who waits: so nobody is left behind. One that has
// not come back for long is counted no more, and others go without it.
//
// Its zero value is not usable, see [NewLane]; it is safe for concurrent use.
type Batcher[C any] struct {
	way *Transport[C]

	mu      sync.Mutex
	flights int
	waiting []request[C]
	spare   *batch[C]     // one that nobody is on
	crowd   int           // how many had gathered for the last flight
	trip    time.Duration // the shortest of late flights: what a busy machine adds is no distance
	since   time.Time     // when the first who waits came, or was left behind
	stray   int           // flights that are away for so long that they count no more
	late    bool          // the first has lost patience, and could not be sent
	timer   *time.Timer   // rings when the first may have lost patience
	armed   bool          // it will ring
	busy    atomic.Int64  // until then nobody is waited for that can run: this process is busy
}

// passenger is a call that is sent with others.
type request[C any] struct {
	call   C
	landed chan bool // told once: whether it was sent; else it is to go alone
}

// NewBatcher is a lane of a way, on which nobody is.
func NewBatcher[C any](way *Transport[C]) *Batcher[C] { return &Batcher[C]{way: way} }

// Do sends a call, and returns when what became of it stands in the call. The error is
// that of a call that went alone, or of a context that has ended: then the call may be
// under way still, and is not to be read or used again.
func (l *Batcher[C]) Do(ctx context.Context, c C) error {
	l.mu.Lock()
	if flying := l.flights - l.stray; l.flights < FlightsMax && (flying == 0 || flying < FlightsNear && !l.gathers()) {
		l.flights++
		l.mu.Unlock()
		return l.sendAlone(ctx, c)
	}
	p := request[C]{c, make(chan bool, 1)}
	if l.waiting = append(l.waiting, p); len(l.waiting) == 1 {
		l.lead()
	}
	if l.flights-l.stray < FlightsNear && l.flights < FlightsMax && len(l.waiting) >= crowdMany {
		l.flush()
	}
	l.mu.Unlock()

	select {
	case sent := <-p.landed:
		if !sent {
			return l.way.Alone(ctx, c)
		}
		return nil
	case <-ctx.Done():
		l.leave(p)
		return ctx.Err()
	}
}

// gathers says that one flight is enough: many call, and it is not away for long. The
// lock is held.
func (l *Batcher[C]) gathers() bool {
	return l.way.Few > 0 && l.crowd >= l.way.Few && l.trip <= l.way.Patience
}

// depart sends those who wait. The lock is held.
func (l *Batcher[C]) flush() {
	l.flights++
	go l.deliver(l.join(nil)) // ends when nobody waits any more
}

// alone is a flight with one call, in the goroutine of its caller.
func (l *Batcher[C]) sendAlone(ctx context.Context, c C) (err error) {
	began := time.Now()
	defer func() {
		if err != nil && ctx.Err() == nil && !Answered(err) {
			l.drain()
		}
		if f := l.next(nil, time.Since(began)); f != nil {
			go l.deliver(f) // as that of depart
		}
	}()
	return l.way.Alone(ctx, c)
}

// flight is calls that are sent together, in memory that serves one after another.
type batch[C any] struct {
	crowd []request[C]
	calls []C // of the crowd
}

// next is who is sent when a flight has come back, which is nil for a call that was
// alone. When that is nobody, one flight less is under way; and so it is where there
// are more than Redis needs, as after a moment in which it was slow: in many flights
// there are few calls each.
func (l *Batcher[C]) next(f *batch[C], took time.Duration) *batch[C] {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trip += max(0, took-l.trip) / 16
	l.trip = min(l.trip, took)
	enough := FlightsNear
	if l.gathers() && len(l.waiting) < crowdMany/2 {
		enough = 1
	}
	if took >= strayAfter && l.stray > 0 {
		l.stray--
	}
	if len(l.waiting) > 0 && (l.late || l.flights-l.stray <= enough) {
		return l.join(f)
	}
	if l.flights--; l.flights == 0 {
		l.crowd, l.stray = 0, 0
	}
	if f != nil {
		l.spare = f
	}
	return nil
}

// board puts those who came first on a flight. The lock is held.
func (l *Batcher[C]) join(f *batch[C]) *batch[C] {
	if f == nil {
		f, l.spare = l.spare, nil
	}
	if f == nil {
		f = &batch[C]{}
	}
	n, weight := 0, 0
	for n < len(l.waiting) {
		weight += l.way.Weight(l.waiting[n].call)
		if n > 0 && weight > l.way.Most {
			break
		}
		n++
	}
	l.crowd = n
	f.crowd = append(f.crowd, l.waiting[:n]...)
	l.waiting = slices.Delete(l.waiting, 0, n)
	if len(l.waiting) > 0 {
		l.lead()
	}
	return f
}

// lead is for a new first of those who wait. The lock is held.
func (l *Batcher[C]) lead() {
	l.late = false
	if l.since = time.Now(); !l.armed {
		l.arm(l.bound())
	}
}

// bound is how long the first waits. Where Redis is near, one of those under way comes
// back long before that, if any ever does.
func (l *Batcher[C]) bound() time.Duration {
	if l.trip <= l.way.Patience {
		return max(strayAfter, l.way.Patience)
	}
	return l.way.Patience
}

// arm has the timer ring. The lock is held.
func (l *Batcher[C]) arm(after time.Duration) {
	if l.armed = true; l.timer == nil {
		l.timer = time.AfterFunc(after, l.flushSoon)
		return
	}
	l.timer.Reset(after)
}

// hurry sends all who wait when the first has lost patience, as far as that many
// flights may be under way. The timer may have been armed for one before: that is
// cheaper than to set it for each.
func (l *Batcher[C]) flushSoon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	if len(l.waiting) == 0 {
		return
	}
	if left := l.bound() - time.Since(l.since); left > 0 {
		l.arm(left)
		return
	}
	if l.trip <= l.way.Patience {
		l.stray = l.flights
	}
	for len(l.waiting) > 0 && l.flights < FlightsMax {
		l.flush()
	}
	l.late = len(l.waiting) > 0
}

// leave takes a call back that was not sent yet.
func (l *Batcher[C]) leave(p request[C]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.waiting, func(w request[C]) bool { return w.landed == p.landed }); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// Idle says that nobody is on the lane.
func (l *Batcher[C]) Idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flights == 0 && len(l.waiting) == 0
}

// Gathered is how many wait for others to come back.
func (l *Batcher[C]) Gathered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// disperse lets all who wait go alone: who stands behind others would wait for the
// time-out of each of them.
func (l *Batcher[C]) drain() {
	l.mu.Lock()
	all := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for _, p := range all {
		p.landed <- false
	}
}

// fly sends those on a flight, and when that has come back who waits then. Who is about
// to call comes along: goroutines that can run do so first.
func (l *Batcher[C]) deliver(f *batch[C]) {
	for f != nil {
		began := time.Now()
		if err := l.send(f); err != nil && !Answered(err) {
			l.drain()
		}
		took := time.Since(began)
		l.yield()
		f = l.next(f, took)
	}
}

// yield lets goroutines that can run do so, but where that took long: handlers that
// compute would have all who wait for an answer wait for them.
func (l *Batcher[C]) yield() {
	began := time.Now()
	if began.UnixNano() < l.busy.Load() {
		return
	}
	if runtime.Gosched(); time.Since(began) > yieldMost {
		l.busy.Store(began.Add(yieldNot).UnixNano())
	}
}

// send asks for all of a crowd, and returns what Together does.
func (l *Batcher[C]) send(f *batch[C]) error {
	ctx, cancel := context.WithTimeout(context.Background(), flightTime)
	defer cancel()
	for _, p := range f.crowd {
		f.calls = append(f.calls, p.call)
	}
	err := l.way.Together(ctx, f.calls)
	for _, p := range f.crowd {
		p.landed <- true
	}
	f.empty()
	return err
}

// empty forgets who was there.
func (f *batch[C]) empty() {
	clear(f.crowd)
	clear(f.calls)
	f.crowd, f.calls = f.crowd[:0], f.calls[:0]
}

// Answered says that Redis itself answered an error.
func Answered(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// TimedOut says that an answer was waited for, and did not come.
func TimedOut(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout() || errors.Is(err, context.DeadlineExceeded)
}
