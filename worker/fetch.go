package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/rediserr"
)

const (
	// fetchMost is how many tasks are asked for at the same time.
	fetchMost = 32
	// heldFor is how long a task that was fetched may wait for its server to take it. Then it
	// goes back to the head of its queue. The lease of asynq, which no heartbeat renews before
	// the server has it, lasts 30 s.
	heldFor = time.Second
	// giveBackWithin is how old a fetch may be that is still given back. An older task may be
	// with another process by now: asynq recovers it 30 s after the end of its lease.
	giveBackWithin = 20 * time.Second
	// emptyFor is how long a queue that was found empty is not asked again while tasks of
	// another queue are held. Without it each of those would cost a round trip to the first.
	emptyFor = 5 * time.Millisecond
	// giveBackTimeout bounds the call that gives tasks back.
	giveBackTimeout = 5 * time.Second

	// A server that found nothing waits before it looks again, a sixteenth of the time for which
	// nothing has come, within these bounds. A task that is woken here ends the wait at once.
	// While a task is deferred the wait is idlePollDue at most, for another pool may wake more
	// than it can take. When more than idleMany servers are idle, each waits longer in
	// proportion, so that all together look no more often than idleMany.
	idlePollMin = 10 * time.Millisecond
	idlePollDue = 25 * time.Millisecond
	idlePollMax = 300 * time.Millisecond
	idleShare   = 16
	idleMany    = 8
	// A server whose fetches fail waits between them; asynq itself would not.
	fetchPauseMin = 20 * time.Millisecond
	fetchPauseMax = time.Second
)

// fetched holds the tasks that were fetched with another one, until a server takes them.
//
// An asynq server asks for one task at a time, so alone it would start one task per round
// trip, however many of its workers are free. While a queue has tasks and workers are free,
// a fetch therefore asks for several, by one script of asynq's for each. The server gets the
// first, and the others at once when it asks again. There are never more of them than free
// workers, so none waits for a worker while another process could run it.
//
// It is safe for concurrent use.
type fetched struct {
	*Adapter
	heldFor, emptyFor time.Duration // the constants, but in tests

	mu     sync.Mutex
	queues map[string]*fetchedQueue
	held   int // in all queues
	asked  int // calls that are under way
	timer  *time.Timer
}

// fetchedQueue is what is known of one queue.
type fetchedQueue struct {
	tasks []fetchedTask // in the order in which they run
	next  int           // how many tasks the next fetch asks for
	woken int           // tasks that were put to the head of pending since the last fetch
	empty time.Time     // when it was found empty last
}

type fetchedTask struct {
	answer *redis.Cmd
	at     time.Time // when it was asked for
}

func newFetched(a *Adapter) *fetched {
	return &fetched{Adapter: a, heldFor: heldFor, emptyFor: emptyFor, queues: make(map[string]*fetchedQueue)}
}

// of returns what is known of a queue. The lock is held.
func (f *fetched) of(queue string) *fetchedQueue {
	q := f.queues[queue]
	if q == nil {
		q = &fetchedQueue{next: 1}
		f.queues[queue] = q
	}
	return q
}

// take returns a task of a queue that is held, or nil, and then how many to ask Redis for. That
// is 0 when a server has to ask for another queue first, of which tasks are held.
func (f *fetched) take(queue string) (answer *redis.Cmd, ask int) {
	f.mu.Lock()
	q := f.of(queue)
	if len(q.tasks) > 0 && time.Since(q.tasks[0].at) > f.heldFor { // this process stood still
		f.mu.Unlock()
		f.giveBack(f.heldFor)
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	if len(q.tasks) > 0 {
		t := q.tasks[0]
		q.tasks = q.tasks[1:]
		f.held--
		return t.answer, 0
	}
	// A task that a server has taken may not have reached its handler yet.
	free := f.load.free() - f.inFlight.len() - f.held - f.asked
	if f.held > 0 && (free < 1 || q.woken == 0 && time.Since(q.empty) < f.emptyFor) {
		return nil, 0
	}
	ask = max(1, min(fetchMost, free, max(q.next, q.woken)))
	q.woken = max(0, q.woken-ask)
	f.asked += ask
	return nil, ask
}

// hold keeps the tasks of a fetch but the first, and learns from it how many to ask for next.
func (f *fetched) hold(queue string, asked int, tasks []fetchedTask) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked -= asked
	q := f.of(queue)
	q.next = min(2*asked, fetchMost)
	if len(tasks) < asked {
		q.next, q.empty = max(1, len(tasks)), time.Now()
	}
	if len(tasks) < 2 {
		return
	}
	q.tasks = append(q.tasks, tasks[1:]...)
	f.held += len(tasks) - 1
	if f.timer == nil {
		f.timer = time.AfterFunc(f.heldFor, func() { f.giveBack(f.heldFor) })
	} else {
		f.timer.Reset(f.heldFor)
	}
}

// wake has the servers fetch n tasks of a queue that were put to the head of pending.
func (f *fetched) wake(queue string, n int) {
	f.mu.Lock()
	q := f.of(queue)
	q.woken = min(q.woken+n, fetchMost)
	f.mu.Unlock()
	f.idle.ring(n, int(f.load.servers.Load()))
}

// giveBack puts tasks that are held for so long back to the heads of their queues.
func (f *fetched) giveBack(after time.Duration) {
	f.mu.Lock()
	back := make(map[string][]fetchedTask)
	for name, q := range f.queues {
		var n int
		for n < len(q.tasks) && time.Since(q.tasks[n].at) >= after {
			n++
		}
		if n > 0 {
			back[name] = slices.Clone(q.tasks[:n])
			q.tasks = q.tasks[n:]
			f.held -= n
		}
	}
	if f.held > 0 {
		f.timer.Reset(f.heldFor)
	}
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTimeout)
	defer cancel()
	for name, tasks := range back {
		for _, t := range slices.Backward(tasks) { // the last first: each goes to the head
			if err := f.giveOneBack(ctx, name, t); err != nil {
				f.logFew("giving back", func() {
					f.log.Warn("a task that was fetched and not started can't be given back: asynq recovers it when its lease has ended", zap.String("queue", name), zap.Error(err))
				})
			}
		}
	}
}

var errFetchTooOld = errors.New("worker: this process stood still for too long")

func (f *fetched) giveOneBack(ctx context.Context, queue string, t fetchedTask) error {
	text, err := t.answer.Text()
	if err != nil {
		return err
	}
	m, err := asynqwire.DecodeMessage([]byte(text))
	if err != nil {
		return err
	}
	if time.Since(t.at) > giveBackWithin {
		return errFetchTooOld
	}
	if err := asynqwire.Requeue(ctx, f.rdb, queue, m.ID); err != nil && !isNotFound(err) {
		return err
	}
	return nil
}

// fetch lets asynq fetch a task. When all queues are empty it waits, and not asynq.
func (c *client) fetch(ctx context.Context, call asynqwire.Call, run func(context.Context) *redis.Cmd) *redis.Cmd {
	if !c.a.fetches() { // asynq's loop goes on until its server is shut down
		c.a.fetched.giveBack(0)
		time.Sleep(fetchPauseMin)
		return nothing(ctx)
	}
	cmd, ask := c.a.fetched.take(call.Queue)
	if cmd == nil && ask == 0 {
		return nothing(ctx) // asynq asks for another queue next, of which tasks are held
	}
	if cmd == nil {
		cmd = c.ask(ctx, call.Queue, ask, run)
	}
	switch {
	case errors.Is(cmd.Err(), redis.Nil):
		c.fails.Store(0)
		c.a.sawAnswer(ctx)
		if int(c.misses.Add(1)) >= len(c.a.queues) { // every queue was empty
			c.misses.Store(0)
			c.a.idle.wait(c.a.fetched.waitsForDue())
		}
	case cmd.Err() != nil:
		if rediserr.Of(cmd.Err()) == rediserr.NoScript {
			return cmd // asynq sends the text next
		}
		c.a.sawError(ctx, cmd.Err())
		c.misses.Store(0)
		pause := fetchPauseMin << min(c.fails.Add(1), 6)
		c.a.idle.pause(min(pause, fetchPauseMax))
	default:
		c.misses.Store(0)
		c.fails.Store(0)
		c.a.sawAnswer(ctx)
		c.a.idle.came()
		c.noteDelivery(call.Queue, cmd)
	}
	return cmd
}

// ask asks Redis n times for a task, at the same time. It returns a task when one came, or else
// an error when there was one. It holds the other tasks.
func (c *client) ask(ctx context.Context, queue string, n int, run func(context.Context) *redis.Cmd) *redis.Cmd {
	at := time.Now()
	answers := make([]*redis.Cmd, n)
	var others sync.WaitGroup
	for i := 1; i < n; i++ {
		others.Go(func() { answers[i] = run(ctx) })
	}
	answers[0] = run(ctx)
	others.Wait()
	first := answers[0]
	var tasks []fetchedTask
	for _, cmd := range answers {
		switch {
		case cmd.Err() == nil:
			tasks = append(tasks, fetchedTask{cmd, at})
		case errors.Is(first.Err(), redis.Nil):
			first = cmd
		}
	}
	c.a.fetched.hold(queue, n, tasks)
	if len(tasks) > 0 {
		return tasks[0].answer
	}
	return first
}

// waitsForDue says whether tasks are deferred that may come to this process.
func (f *fetched) waitsForDue() bool {
	for _, w := range f.wakers {
		if w.hasDeferred() {
			return true
		}
	}
	return false
}

// nothing is the answer that a queue is empty.
func nothing(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.Nil)
	return cmd
}

// noteDelivery remembers the message of a task: asynq hands its handler only a part of it.
func (c *client) noteDelivery(queue string, cmd *redis.Cmd) {
	text, err := cmd.Text()
	if err != nil {
		return
	}
	m, err := asynqwire.DecodeMessage([]byte(text))
	if err != nil {
		c.a.distrust("a message of asynq can't be read", zap.Error(err))
		return
	}
	key, now := c.a.keys(queue).Task(m.ID), time.Now()
	_, _ = c.a.answered.take(key, now) // of an earlier delivery
	c.a.inFlight.put(key, m, now)
}

// idleServers holds the asynq servers of this process while they have nothing to do.
type idleServers struct {
	bell    chan struct{} // rung when tasks are woken: an idle server fetches at once
	noFetch <-chan struct{}
	waiting atomic.Int64
	last    atomic.Int64 // when a task came, in nanoseconds
}

func newIdleServers(c *core) *idleServers {
	s := &idleServers{bell: make(chan struct{}, ServersMax), noFetch: c.noFetch}
	s.came()
	return s
}

// came notes that a server has got a task.
func (s *idleServers) came() { s.last.Store(time.Now().UnixNano()) }

// wait returns when a task was woken, no more are to be fetched, or it is time to look again:
// soon when a task is deferred. The waits differ at random: servers that look in step find a new task no
// sooner than one.
func (s *idleServers) wait(deferred bool) {
	most := idlePollMax
	if deferred {
		most = idlePollDue
	}
	idle := time.Duration(time.Now().UnixNano() - s.last.Load())
	d := min(max(idlePollMin, idle/idleShare), most)
	d = d * time.Duration(max(idleMany, s.waiting.Add(1))) / idleMany
	defer s.waiting.Add(-1)
	t := time.NewTimer((d*3/4 + rand.N(d/2)).Truncate(time.Microsecond)) // whole microseconds, which Redis counts: virtual time moves from timer to timer
	defer t.Stop()
	select {
	case <-s.bell:
	case <-s.noFetch:
	case <-t.C:
	}
}

// pause waits d, or until no more tasks are to be fetched.
func (s *idleServers) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.noFetch:
	case <-t.C:
	}
}

// ring lets idle servers fetch at once, when n tasks were woken.
func (s *idleServers) ring(n, servers int) {
	for range min(n, servers) {
		select {
		case s.bell <- struct{}{}:
		default:
			return
		}
	}
}
