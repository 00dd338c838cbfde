// Package giveback repeats calls that give back what Redis still counts, because it did not take it back at once: the permits of
// a grant that was not used, or the slots of a job that is done.
package giveback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/bounded"
)

const (
	// Most bounds the calls of a Queue, with those that are being tried. When one finds no room, a permit stays charged that
	// was not used, or a slot stays taken until its lease ends. No limit is exceeded by that.
	Most = 4096
	// together is how many calls are tried without a pause.
	together = 64
	// The pause doubles while Redis takes nothing back.
	pauseLeast = 20 * time.Millisecond
	pauseMost  = 500 * time.Millisecond
	// warnQuiet is the least time between two warnings of the same trouble.
	warnQuiet = 5 * time.Second
)

// errPanicked is the error of a call in which a hook of the client panicked.
var errPanicked = errors.New("giveback: a hook of the client panicked")

// errGivenUp is the error of a call that takes too long.
var errGivenUp = errors.New("giveback: no answer in time")

// Func gives something back. To call it twice does no harm, also at the same time: one that takes too long is called again while the
// first call is under way.
type Func func(context.Context) error

// Verdict says what an error means for the call that ended with it.
type Verdict int

// What an error may mean.
const (
	Final  Verdict = iota // the call is not made again: Redis refuses it for good
	Again                 // Redis answered, and may take it back later
	Silent                // Redis did not answer. It would hardly answer the next call
)

// Queue repeats calls in the background, until Redis has done what they ask for, or refuses it for good. Calls of other servers have
// a queue of their own: a server of a Cluster that is silent holds up only its own. A Queue has goroutines only while
// something is left, so it need not be closed. It is safe for concurrent use.
type Queue struct {
	within time.Duration
	judge  func(error) Verdict
	warn   func(line string, err error) // nil for nobody

	begin func(*serverQueue) // lets a goroutine try the calls of a queue
	stop  context.CancelFunc
	wg    sync.WaitGroup // of their goroutines

	mu     sync.Mutex
	queues map[string]*serverQueue // by servers
	left   int                     // calls of all queues
	closed time.Time               // until when it tries what is left; zero before Close
	full   time.Time               // when a warning said so last
	final  time.Time               // the same of a call that is refused for good
}

// serverQueue has the calls of the same servers. A goroutine tries the first one.
type serverQueue struct {
	servers string
	calls   []call
}

type call struct {
	do    Func
	until time.Time // then Redis counts nothing of it any more
}

// New makes a queue. A call that takes longer than within, or than the queue, is waited for no longer and made again, whether it heeds its
// context or not. At a master that stands still it would go on until the client's time-outs are over, when another master has been
// elected long before. judge says what its error means. warn hears of calls that are dropped, a
// few times; nil for nobody.
func New(within time.Duration, judge func(error) Verdict, warn func(line string, err error)) *Queue {
	q := &Queue{within: within, judge: judge, warn: warn, queues: make(map[string]*serverQueue)}
	ctx, stop := context.WithCancel(context.Background())
	q.begin, q.stop = func(s *serverQueue) { q.wg.Go(func() { q.run(ctx, s) }) }, stop
	return q
}

// Add lets a call be repeated that gives something back on some servers, and says whether it is kept. counts is for how long that
// counts. Add never blocks. After Close it keeps nothing.
func (q *Queue) Add(servers string, counts time.Duration, do Func) (kept bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed.IsZero() {
		return false
	}
	if q.left >= Most {
		q.warnFewLocked(&q.full, "too much waits to be given back: a slot stays taken until its lease ends, or permits stay charged", nil)
		return false
	}
	q.left++
	s := q.queues[servers]
	if s == nil {
		s = &serverQueue{servers: servers}
		q.queues[servers] = s
		q.begin(s)
	}
	s.calls = append(s.calls, call{do, time.Now().Add(counts)})
	return true
}

// Close ends the queue. Each call that is left is made once more, as far as d is enough for that.
func (q *Queue) Close(d time.Duration) {
	q.mu.Lock()
	if q.closed.IsZero() {
		q.closed = time.Now().Add(d)
	}
	q.mu.Unlock()
	q.stop()
	q.wg.Wait()
}

// run tries the calls of a queue in turn, until none is left, or ctx ends. Then it tries them once more.
func (q *Queue) run(ctx context.Context, s *serverQueue) {
	for pause := pauseLeast; wait(ctx, pause); {
		n := min(q.size(s), together)
		left, empty := q.round(ctx, s, n)
		switch {
		case empty:
			return
		case left == 0:
			pause = 0
		case left < n:
			pause = pauseLeast
		default:
			pause = min(max(2*pause, pauseLeast), pauseMost)
		}
	}
	q.mu.Lock()
	until := q.closed
	q.mu.Unlock()
	last, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	q.round(last, s, q.size(s))
}

// wait says whether ctx has not ended after a pause.
func wait(ctx context.Context, pause time.Duration) bool {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}

func (q *Queue) size(s *serverQueue) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(s.calls)
}

// round tries n calls of a queue, and says how many of them are left. It ends with the first that Redis does not answer: Redis would
// hardly answer the next one. Each that is left goes behind all others of its queue: it may be the only one that fails.
func (q *Queue) round(ctx context.Context, s *serverQueue, n int) (left int, empty bool) {
	for i := range n {
		q.mu.Lock()
		first := s.calls[0]
		q.mu.Unlock()
		err := q.try(ctx, first)
		verdict := Final
		switch {
		case errors.Is(err, errGivenUp):
			verdict = Silent
		case err != nil:
			verdict = q.judge(err)
		}
		if verdict != Final {
			left++
		}
		if empty = q.next(s, err, verdict != Final); empty {
			return left, true
		}
		if verdict == Silent {
			return left + n - 1 - i, false
		}
	}
	return left, false
}

// next moves on from the first call of a queue, which ended with err. The queue ends with its last call.
func (q *Queue) next(s *serverQueue, err error, again bool) (empty bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := s.calls[0]
	s.calls[0] = call{} // the array outlives it
	s.calls = s.calls[1:]
	if again {
		s.calls = append(s.calls, first)
		return false
	}
	q.left--
	if err != nil {
		q.warnFewLocked(&q.final, "Redis refuses to take something back: a slot stays taken until its lease ends, or permits stay charged", err)
	}
	if len(s.calls) > 0 {
		return false
	}
	delete(q.queues, s.servers)
	return true
}

// try makes a call, unless it has no effect any more. A hook of the client that panics ends no process: in a handler it
// would not either.
func (q *Queue) try(ctx context.Context, c call) (err error) {
	if time.Now().After(c.until) {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w with a %T", errPanicked, p) // its value may hold a key
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, q.within)
	defer cancel()
	err, inTime := bounded.Call(ctx, func() error { return c.do(ctx) })
	if !inTime {
		return errGivenUp
	}
	return err
}

// warnFewLocked tells of a trouble at most every [warnQuiet].
func (q *Queue) warnFewLocked(last *time.Time, line string, err error) {
	if now := time.Now(); q.warn != nil && (last.IsZero() || now.Sub(*last) >= warnQuiet) {
		*last = now
		q.warn(line, err)
	}
}
