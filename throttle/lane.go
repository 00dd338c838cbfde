package throttle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// flightsNear is how many calls are under way before others gather: one that
	// Redis works on, and one on the way, so that neither waits for the other.
	flightsNear = 2
	// patienceDefault is how long the first of those who gather waits for one of them to
	// come back: a round trip to a Redis that is near takes less. Behind a longer one
	// more are under way at once.
	patienceDefault = time.Millisecond
	// flightsMax bounds that: each takes a connection of the client.
	flightsMax = 8
	// flightTime bounds a call for several: no caller's deadline does.
	flightTime = 10 * time.Second
)

// lane is the way to one server. While anybody waits there, a flight is under way, and
// the last one to come back takes along who waits: so nobody is left behind.
type lane struct {
	of *merger

	mu      sync.Mutex
	flights int
	waiting []passenger
	trip    time.Duration // the shortest of late flights: what a busy machine adds is no distance
	since   time.Time     // when the first who waits came, or was left behind
	late    bool          // the first has lost patience, and could not be sent
	timer   *time.Timer   // rings when the first may have lost patience; where Redis is near it would cost, and find nobody
	armed   bool          // it will ring
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
	if l.flights < flightsNear {
		l.flights++
		l.mu.Unlock()
		return l.alone(ctx, c)
	}
	p := passenger{c, make(chan struct{})}
	if l.waiting = append(l.waiting, p); len(l.waiting) == 1 {
		l.lead()
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

// alone is a flight with one call, in the goroutine of its caller.
func (l *lane) alone(ctx context.Context, c *luascripts.Call) (err error) {
	began := time.Now()
	defer func() {
		if err != nil && ctx.Err() == nil && !answered(err) {
			l.disperse()
		}
		if f := l.next(nil, began); f != nil {
			go l.fly(f) // ends when nobody waits any more
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
func (l *lane) next(f *flight, began time.Time) *flight {
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trip += max(0, took-l.trip) / 16
	l.trip = min(l.trip, took)
	if len(l.waiting) > 0 && (l.late || l.flights <= flightsNear) {
		if f == nil {
			f = flights.Get().(*flight)
		}
		l.board(f)
		return f
	}
	l.flights--
	if f != nil {
		flights.Put(f)
	}
	return nil
}

// board puts those who came first on a flight. The lock is held.
func (l *lane) board(f *flight) {
	n, weight := 0, 0
	for n < len(l.waiting) {
		weight += weightOf(&l.waiting[n].AcquireArgs)
		if n > 0 && weight > luascripts.CallsMax {
			break
		}
		n++
	}
	f.crowd = append(f.crowd, l.waiting[:n]...)
	l.waiting = slices.Delete(l.waiting, 0, n)
	if len(l.waiting) > 0 {
		l.lead()
	}
}

// lead is for a new first of those who wait. The lock is held.
func (l *lane) lead() {
	l.late = false
	if l.trip <= l.of.patience {
		return
	}
	if l.since = time.Now(); !l.armed {
		l.arm(l.of.patience)
	}
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
	if left := l.of.patience - time.Since(l.since); left > 0 {
		l.arm(left)
		return
	}
	for len(l.waiting) > 0 && l.flights < flightsMax {
		f := flights.Get().(*flight)
		l.board(f)
		l.flights++
		go l.fly(f) // as that of alone
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

func (l *lane) fly(f *flight) {
	for f != nil {
		began := time.Now()
		if err := l.send(f); err != nil && !answered(err) {
			l.disperse()
		}
		f = l.next(f, began)
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
