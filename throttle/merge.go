package throttle

import (
	"context"
	"errors"
	"net"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// flightsMax is how many calls are under way before others gather: one that
	// Redis works on, and one on the way, so that neither waits for the other.
	flightsMax = 2
	// flightTime bounds a call for several: no caller's deadline does.
	flightTime = 10 * time.Second
)

// merger makes one script call of acquires that come while others of the same
// client are under way. A call that comes alone is sent at once, as it is. What
// came meanwhile is sent together in the order of arrival, as much as is one
// script's work. On Redis Cluster, where a script sees the keys of one slot, each
// call goes by itself.
//
// Each call is answered alone: one that failed among others is sent again by itself.
// When their answer was lost they are sent again together, once; the tokens are the
// same, which the scripts charge once. While Redis can't be reached nobody waits for
// others. A caller whose context ends does not wait either; if its call was sent, the
// caller takes it back as it does any lost one.
type merger struct {
	rdb     redis.UniversalClient
	sharded atomic.Bool

	mu      sync.Mutex
	flights int
	waiting []passenger
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

// acquire answers c. After an error the call may be under way still: c is not to be
// used again.
func (m *merger) acquire(ctx context.Context, c *luascripts.Call) error {
	if m.sharded.Load() {
		return m.ask(ctx, c)
	}
	m.mu.Lock()
	if m.flights < flightsMax {
		m.flights++
		m.mu.Unlock()
		return m.alone(ctx, c)
	}
	p := passenger{c, make(chan struct{})}
	m.waiting = append(m.waiting, p)
	m.mu.Unlock()

	select {
	case <-p.landed:
	case <-ctx.Done():
		m.leave(p)
		return ctx.Err()
	}
	if errors.Is(c.Err, luascripts.ErrAskAlone) {
		return m.ask(ctx, c)
	}
	return c.Err
}

// ask sends a call by itself.
func (m *merger) ask(ctx context.Context, c *luascripts.Call) error {
	c.AcquireReply, c.Err = luascripts.Acquire(ctx, m.rdb, c.AcquireArgs)
	return c.Err
}

// alone is a flight with one call, in the goroutine of its caller.
func (m *merger) alone(ctx context.Context, c *luascripts.Call) (err error) {
	defer func() {
		if err != nil && ctx.Err() == nil && !answered(err) {
			m.disperse()
		}
		if f := m.board(nil); f != nil {
			go m.fly(f) // ends when nobody waits any more
		}
	}()
	return m.ask(ctx, c)
}

// flight is calls that are sent together, in memory that serves one after another.
type flight struct {
	crowd []passenger
	calls []*luascripts.Call // of the crowd
}

// flights are those that nobody is on.
var flights = sync.Pool{New: func() any { return &flight{} }}

// board is who is sent next, after a flight or nil; when that is nobody, one flight
// less is under way.
func (m *merger) board(f *flight) *flight {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, weight := 0, 0
	for n < len(m.waiting) {
		weight += weightOf(&m.waiting[n].AcquireArgs)
		if n > 0 && weight > luascripts.CallsMax {
			break
		}
		n++
	}
	if n == 0 {
		m.flights--
		if f != nil {
			flights.Put(f)
		}
		return nil
	}
	if f == nil {
		f = flights.Get().(*flight)
	}
	f.crowd = append(f.crowd, m.waiting[:n]...)
	m.waiting = slices.Delete(m.waiting, 0, n)
	return f
}

// leave takes a call back that was not sent yet.
func (m *merger) leave(p passenger) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.waiting, p); i >= 0 {
		m.waiting = slices.Delete(m.waiting, i, i+1)
	}
}

// disperse lets all who wait go alone: who stands behind others would wait for the
// time-out of each of them.
func (m *merger) disperse() {
	m.mu.Lock()
	all := m.waiting
	m.waiting = nil
	m.mu.Unlock()
	for _, p := range all {
		p.Err = luascripts.ErrAskAlone
		close(p.landed)
	}
}

func (m *merger) fly(f *flight) {
	for ; f != nil; f = m.board(f) {
		if err := m.send(f); err != nil && !answered(err) {
			m.disperse()
		}
	}
}

// send asks for all of a crowd, and returns what it all failed with.
func (m *merger) send(f *flight) error {
	ctx, cancel := context.WithTimeout(context.Background(), flightTime)
	defer cancel()
	for _, p := range f.crowd {
		f.calls = append(f.calls, p.Call)
	}
	err := luascripts.AcquireMany(ctx, m.rdb, f.calls)
	if err != nil && worthRepeating(err) {
		err = luascripts.AcquireMany(ctx, m.rdb, f.calls)
	}
	if redis.HasErrorPrefix(err, "CROSSSLOT") { // a Cluster that its client does not show
		m.sharded.Store(true)
	}
	for _, p := range f.crowd {
		switch {
		case err == nil:
		case m.sharded.Load():
			p.Err = luascripts.ErrAskAlone
		default:
			p.Err = err
		}
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

// answered says that Redis itself answered an error.
func answered(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// worthRepeating says that an answer was lost on its way, and Redis seems to be there:
// a time-out was waited for once.
func worthRepeating(err error) bool {
	if answered(err) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	return !ok || op.Op != "dial"
}

// mergers has one for each client that a limiter is on.
var mergers = struct {
	mu    sync.Mutex
	alive map[redis.UniversalClient]weak.Pointer[merger]
}{alive: make(map[redis.UniversalClient]weak.Pointer[merger])}

// mergerOf is the merger of a client. What can't be compared shares none.
func mergerOf(rdb redis.UniversalClient, sharded bool) *merger {
	fresh := &merger{rdb: rdb}
	fresh.sharded.Store(sharded)
	if !reflect.ValueOf(rdb).Comparable() {
		return fresh
	}
	mergers.mu.Lock()
	defer mergers.mu.Unlock()
	if earlier := mergers.alive[rdb].Value(); earlier != nil {
		return earlier
	}
	mergers.alive[rdb] = weak.Make(fresh)
	runtime.AddCleanup(fresh, forgetMerger, rdb)
	return fresh
}

func forgetMerger(rdb redis.UniversalClient) {
	mergers.mu.Lock()
	defer mergers.mu.Unlock()
	// the client may have a new one before this cleanup ran
	if mergers.alive[rdb].Value() == nil {
		delete(mergers.alive, rdb)
	}
}
