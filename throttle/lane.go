package throttle

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// flightsNear is how many calls are under way before others gather: one that
	// Redis works on, and one on the way, so that neither waits for the other.
	flightsNear = 2
	// crowdFew is how many gather at least before one flight is enough: the next crowd
	// is larger for it, and costs Redis and the client less. A crowd of crowdMany is
	// large enough, and does not wait for another flight.
	crowdFew  = 2
	crowdMany = 32
	// patienceDefault is how long the first of those who gather waits for one of them to
	// come back: a round trip to a Redis that is near takes less. Behind a longer one
	// more are under way at once.
	patienceDefault = time.Millisecond
	// strayAfter is how long a flight to a Redis that is near may be away before others
	// go without it: its answer may be lost.
	strayAfter = 10 * time.Millisecond
	// yieldMost is how long goroutines that can run may take before they are not waited
	// for any more, and that for yieldNot.
	yieldMost = 3 * time.Millisecond
	yieldNot  = time.Second
	// flightsMax bounds that: each takes a connection of the client.
	flightsMax = 8
	// flightTime bounds a call for several: no caller's deadline does.
	flightTime = 10 * time.Second
)

// lane is the way to one server. While anybody waits there, a flight is under way, and
// the last one to come back takes along who waits: so nobody is left behind. One that has
// not come back for long is counted no more, and others go without it.
type lane struct {
	of *merger

	mu      sync.Mutex
	flights int
	waiting []passenger
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
type passenger struct {
	*luascripts.Call
	landed chan struct{} // closed when there is an answer; then the caller may use the call for another
}

// weightOf is how much of one script's work a call is: 1 for a rule and a permit.
func weightOf(a *luascripts.AcquireArgs) int {
	w := len(a.Parts)
	for i := range a.Parts {
		w += a.Parts[i].Cost / 128
	}
	return w
}

func (l *lane) acquire(ctx context.Context, c *luascripts.Call) error {
	l.mu.Lock()
	if flying := l.flights - l.stray; l.flights < flightsMax && (flying == 0 || flying < flightsNear && !l.gathers()) {
		l.flights++
		l.mu.Unlock()
		return l.alone(ctx, c)
	}
	p := passenger{c, make(chan struct{})}
	if l.waiting = append(l.waiting, p); len(l.waiting) == 1 {
		l.lead()
	}
	if l.flights-l.stray < flightsNear && l.flights < flightsMax && len(l.waiting) >= crowdMany {
		l.depart()
	}
	l.mu.Unlock()

	select {
	case <-p.landed:
	case <-ctx.Done():
		l.leave(p)
		return ctx.Err()
	}
	if errors.Is(c.Err, luascripts.ErrAskAlone) {
		return l.of.ask(ctx, c)
	}
	return c.Err
}

// gathers says that one flight is enough: many call, and it is not away for long. The
// lock is held.
func (l *lane) gathers() bool { return l.crowd >= crowdFew && l.trip <= l.of.patience }

// depart sends those who wait. The lock is held.
func (l *lane) depart() {
	l.flights++
	go l.fly(l.board(nil)) // ends when nobody waits any more
}

// alone is a flight with one call, in the goroutine of its caller.
func (l *lane) alone(ctx context.Context, c *luascripts.Call) (err error) {
	began := time.Now()
	defer func() {
		if err != nil && ctx.Err() == nil && !answered(err) {
			l.disperse()
		}
		if f := l.next(nil, time.Since(began)); f != nil {
			go l.fly(f) // as that of depart
		}
	}()
	return l.of.ask(ctx, c)
}

// flight is calls that are sent together, in memory that serves one after another.
type flight struct {
	crowd []passenger
	calls []*luascripts.Call // of the crowd
}

// flights are those that nobody is on.
var flights = sync.Pool{New: func() any { return &flight{} }}

// next is who is sent when a flight has come back, which is nil for a call that was
// alone. When that is nobody, one flight less is under way; and so it is where there
// are more than Redis needs, as after a moment in which it was slow: in many flights
// there are few calls each.
func (l *lane) next(f *flight, took time.Duration) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trip += max(0, took-l.trip) / 16
	l.trip = min(l.trip, took)
	enough := flightsNear
	if l.gathers() && len(l.waiting) < crowdMany/2 {
		enough = 1
	}
	if took >= strayAfter && l.stray > 0 {
		l.stray--
	}
	if len(l.waiting) > 0 && (l.late || l.flights-l.stray <= enough) {
		return l.board(f)
	}
	if l.flights--; l.flights == 0 {
		l.crowd, l.stray = 0, 0
	}
	if f != nil {
		flights.Put(f)
	}
	return nil
}

// board puts those who came first on a flight. The lock is held.
func (l *lane) board(f *flight) *flight {
	if f == nil {
		f = flights.Get().(*flight)
	}
	n, weight := 0, 0
	for n < len(l.waiting) {
		weight += weightOf(&l.waiting[n].AcquireArgs)
		if n > 0 && weight > luascripts.CallsMax {
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
func (l *lane) lead() {
	l.late = false
	if l.since = time.Now(); !l.armed {
		l.arm(l.bound())
	}
}

// bound is how long the first waits. Where Redis is near, one of those under way comes
// back long before that, if any ever does.
func (l *lane) bound() time.Duration {
	if l.trip <= l.of.patience {
		return max(strayAfter, l.of.patience)
	}
	return l.of.patience
}

// arm has the timer ring. The lock is held.
func (l *lane) arm(after time.Duration) {
	if l.armed = true; l.timer == nil {
		l.timer = time.AfterFunc(after, l.hurry)
		return
	}
	l.timer.Reset(after)
}

// hurry sends all who wait when the first has lost patience, as far as that many
// flights may be under way. The timer may have been armed for one before: that is
// cheaper than to set it for each.
func (l *lane) hurry() {
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
	if l.trip <= l.of.patience {
		l.stray = l.flights
	}
	for len(l.waiting) > 0 && l.flights < flightsMax {
		l.depart()
	}
	l.late = len(l.waiting) > 0
}

// leave takes a call back that was not sent yet.
func (l *lane) leave(p passenger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, p); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// idle says that nobody is on the lane.
func (l *lane) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flights == 0 && len(l.waiting) == 0
}

// disperse lets all who wait go alone: who stands behind others would wait for the
// time-out of each of them.
func (l *lane) disperse() {
	l.mu.Lock()
	all := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for _, p := range all {
		p.Err = luascripts.ErrAskAlone
		close(p.landed)
	}
}

// fly sends those on a flight, and when that has come back who waits then. Who is about
// to call comes along: goroutines that can run do so first.
func (l *lane) fly(f *flight) {
	for f != nil {
		began := time.Now()
		if err := l.send(f); err != nil && !answered(err) {
			l.disperse()
		}
		took := time.Since(began)
		l.yield()
		f = l.next(f, took)
	}
}

// yield lets goroutines that can run do so, but where that took long: handlers that
// compute would have all who wait for an answer wait for them.
func (l *lane) yield() {
	began := time.Now()
	if began.UnixNano() < l.busy.Load() {
		return
	}
	if runtime.Gosched(); time.Since(began) > yieldMost {
		l.busy.Store(began.Add(yieldNot).UnixNano())
	}
}

// send asks for all of a crowd, and returns what [askMany] does.
func (l *lane) send(f *flight) error {
	ctx, cancel := context.WithTimeout(context.Background(), flightTime)
	defer cancel()
	for _, p := range f.crowd {
		f.calls = append(f.calls, p.Call)
	}
	err := askMany(ctx, l.of.rdb, f.calls)
	if redis.HasErrorPrefix(err, "CROSSSLOT") {
		l.of.scattered.Store(true)
	}
	for _, p := range f.crowd {
		close(p.landed)
	}
	f.empty()
	return err
}

// empty forgets who was there.
func (f *flight) empty() {
	clear(f.crowd)
	clear(f.calls)
	f.crowd, f.calls = f.crowd[:0], f.calls[:0]
}
