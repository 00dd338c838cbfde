package worker

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// fetchMost is how many tasks are asked for in one call.
	fetchMost = 32
	// heldFor is how long a task that was fetched may wait for a server to take it. Then it
	// goes back to the front of its queue. asynq's lease, which no heartbeat renews before the
	// server has the task, lasts 30 s.
	heldFor = time.Second
	// emptyFor is how long a queue that was found empty is not asked again while tasks of
	// another queue are held. Without it each of those would cost a round trip to the first.
	emptyFor = 5 * time.Millisecond
	// closeTimeout bounds how long all queues together are given to take their tasks back.
	closeTimeout = 5 * time.Second

	// A server that found nothing waits before it looks again, a sixteenth of the time for which
	// nothing has come, for each queue, within these bounds. A task that is woken here ends the wait at once.
	// While a deferred task is due soon the wait is idlePollDue at most, for another pool may
	// wake more than it can take. When more than idleMany servers are idle, each waits longer in
	// proportion, so that all together look no more often than idleMany. Each queue is asked by
	// a call of its own. So a server of several queues waits idlePollMax at most for each, and no
	// longer than idlePollTop, which is how long asynq waits.
	idlePollMin = 10 * time.Millisecond
	idlePollDue = 25 * time.Millisecond
	idlePollMax = 300 * time.Millisecond
	idlePollTop = time.Second
	idleShare   = 16
	idleMany    = 8
	// A server whose fetches fail waits between them; asynq itself would not.
	fetchPauseMin = 20 * time.Millisecond
	fetchPauseMax = time.Second
)

// fetcher fetches tasks for the asynq servers of an adapter.
//
// An asynq server asks for one task at a time, so alone it would start one task per round
// trip, however many of its workers are free. While a queue has tasks and workers are free,
// one call therefore fetches several. The server gets the first, and the others when it asks
// again. There are never more of them than free workers, so none waits for a worker while
// another process could run it.
//
// An asynq server that loses the answer to a fetch does not know which task it has. Nobody
// runs that task before asynq takes the process for dead, and that costs it an attempt. So
// each call has a number. A call that was not answered is sent again with its number, until
// it is answered, and Redis gives it the tasks that it had given before.
//
// It is safe for concurrent use.
type fetcher struct {
	*Adapter
	heldFor, emptyFor time.Duration // the constants, but in tests

	mu      sync.Mutex // over this and over what is said below
	queues  map[string]*fetchQueue
	fetched int // tasks that no server has taken yet, in all queues
	asked   int // tasks that calls under way ask for
}

// fetchQueue is a queue from which tasks are fetched.
type fetchQueue struct {
	name string
	keys luascripts.QueueKeys

	// calling is locked while Redis is asked about this queue. Another server that wants a task
	// of it waits, and gets one of those that come.
	calling chanLock
	call    uint64 // the number of the last call
	lost    bool   // it was not answered

	// Changed under fetcher.mu.
	tasks []fetchedTask // of the last call, in the order in which they run
	at    time.Time     // when they were asked for
	late  *time.Timer   // gives them back
	next  int           // how many tasks the next call asks for
	woken int           // tasks that were put to the front of pending since the last call
	empty time.Time     // when it was found empty last
}

// chanLock is a lock that is held while Redis is asked. It is a channel: in a test with virtual time
// (testing/synctest) a goroutine that waits for a mutex stops the clock, and one that waits for a
// channel does not.
type chanLock chan struct{}

func (l chanLock) Lock()   { l <- struct{}{} }
func (l chanLock) Unlock() { <-l }

type fetchedTask struct {
	text string // asynq's message, as a server wants it
	delivery
}

func newFetcher(a *Adapter) *fetcher {
	return &fetcher{Adapter: a, heldFor: heldFor, emptyFor: emptyFor, queues: make(map[string]*fetchQueue)}
}

// of is a queue. The lock is held.
func (f *fetcher) of(name string) *fetchQueue {
	q := f.queues[name]
	if q == nil {
		q = &fetchQueue{name: name, keys: f.keys(name), next: 1, calling: make(chanLock, 1)}
		f.queues[name] = q
	}
	return q
}

// fetch returns a task of a queue, or none. asked says whether Redis was asked. When there is no
// task and Redis was not asked, a server has to take the tasks first that are held of another queue.
func (f *fetcher) fetch(ctx context.Context, call asynqwire.Call) (task *fetchedTask, asked bool, err error) {
	f.mu.Lock()
	q := f.of(call.Queue)
	f.mu.Unlock()
	q.calling.Lock()
	defer q.calling.Unlock()
	if err := f.giveBack(ctx, q, f.heldFor); err != nil { // tasks are that old when this process stood still
		return nil, true, err
	}
	if t := f.take(q); t != nil {
		return t, false, nil
	}
	n := f.reserve(q)
	if n == 0 {
		return nil, false, nil
	}
	err = f.ask(ctx, q, call.LeaseEnds, n)
	return f.take(q), true, err
}

// take returns a task of a queue that is held, or nil.
func (f *fetcher) take(q *fetchQueue) *fetchedTask {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(q.tasks) == 0 {
		return nil
	}
	t := q.tasks[0]
	q.tasks = q.tasks[1:]
	f.fetched--
	return &t
}

// reserve says how many tasks to ask for, and counts them as asked for.
func (f *fetcher) reserve(q *fetchQueue) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	// A task that a server has taken may not have reached its handler yet.
	free := f.load.free() - f.inFlight.len() - f.fetched - f.asked
	if f.fetched > 0 && (free < 1 || q.woken == 0 && time.Since(q.empty) < f.emptyFor) {
		return 0
	}
	n := max(1, min(fetchMost, free, max(q.next, q.woken)))
	q.woken = max(0, q.woken-n)
	f.asked += n
	return n
}

// ask fetches n tasks from Redis, or those of the last call if that was not answered. It holds
// them, and learns from the answer how many to ask for next.
func (f *fetcher) ask(ctx context.Context, q *fetchQueue, leaseEnds int64, n int) error {
	if !q.lost {
		q.call++
	}
	at := time.Now()
	fetched, err := luascripts.Fetch(ctx, f.rdb, q.keys, luascripts.FetchArgs{Pool: f.poolName, Call: q.call, LeaseEnds: leaseEnds, Most: n})
	q.lost = err != nil
	tasks := make([]fetchedTask, len(fetched))
	for i, t := range fetched {
		m, err := asynqwire.DecodeMessage([]byte(t.Message))
		if err != nil {
			f.logFew("unreadable", func() { // whoever wrote it: asynq reads messages as we do
				f.log.Error("the message of a task can't be read, and asynq can't run it", zap.String("queue", q.name), zap.Error(err))
			})
		}
		tasks[i] = fetchedTask{t.Message, delivery{m, t.RunNow, t.Wait}}
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked -= n
	switch {
	case err != nil:
		return err
	case len(tasks) < n:
		q.next, q.empty = max(1, len(tasks)), at
	default:
		q.next = min(2*n, fetchMost)
	}
	q.tasks, q.at = tasks, at
	f.fetched += len(tasks)
	if len(tasks) > 1 {
		f.giveBackLater(q)
	}
	return nil
}

// wake has the servers fetch n tasks of a queue that were put to the front of pending.
func (f *fetcher) wake(queue string, n int) {
	f.mu.Lock()
	q := f.of(queue)
	q.woken = min(q.woken+n, fetchMost)
	f.mu.Unlock()
	f.idle.ring(n, int(f.load.servers.Load()))
}

// giveBackLater gives tasks back that no server takes. The lock is held.
func (f *fetcher) giveBackLater(q *fetchQueue) {
	if q.late != nil {
		q.late.Reset(f.heldFor)
		return
	}
	q.late = time.AfterFunc(f.heldFor, func() {
		q.calling.Lock()
		defer q.calling.Unlock()
		if f.giveBack(context.Background(), q, f.heldFor) != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			q.late.Reset(f.heldFor)
		}
	})
}

// giveBack puts the tasks of a queue that are held for so long back to its front, in their
// order. They stay held when that fails. q.calling is locked.
func (f *fetcher) giveBack(ctx context.Context, q *fetchQueue, after time.Duration) error {
	f.mu.Lock()
	var ids []string
	if time.Since(q.at) >= after {
		for _, t := range q.tasks {
			ids = append(ids, t.ID)
		}
	}
	f.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	back, err := luascripts.Requeue(ctx, f.rdb, q.keys, luascripts.RequeueArgs{Pool: f.poolName, Call: q.call, IDs: ids})
	if err != nil || back < len(ids) {
		f.logFew("giving back", func() {
			f.log.Warn("tasks that were fetched and not started can't be given back: asynq recovers them when their lease has ended",
				zap.String("queue", q.name), zap.Int("tasks", len(ids)-back), zap.Error(err))
		})
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fetched -= len(q.tasks)
	q.tasks = nil
	return nil
}

// close gives all tasks back, also those of a call that was not answered.
func (f *fetcher) close() {
	f.mu.Lock()
	queues := slices.Collect(maps.Values(f.queues))
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, q := range queues {
		f.closeQueue(ctx, q)
	}
}

func (f *fetcher) closeQueue(ctx context.Context, q *fetchQueue) {
	q.calling.Lock()
	defer q.calling.Unlock()
	if q.lost {
		_ = f.ask(ctx, q, 0, 0)
	}
	_ = f.giveBack(ctx, q, 0) // it logs what is left to asynq
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.late != nil {
		q.late.Stop()
	}
}

// dueSoon says whether deferred tasks are due soon that may come to this process.
func (f *fetcher) dueSoon() bool {
	for _, w := range f.wakers {
		if w.dueSoon() {
			return true
		}
	}
	return false
}

// fetch lets asynq fetch a task. When all queues are empty it waits, and not asynq.
func (c *client) fetch(ctx context.Context, call asynqwire.Call) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.Nil) // the queue is empty
	if !c.a.fetches() {   // asynq's loop goes on until its server is shut down
		time.Sleep(fetchPauseMin)
		return cmd
	}
	task, asked, err := c.a.fetcher.fetch(ctx, call)
	switch {
	case err != nil:
		c.a.sawError(ctx, err)
		c.misses.Store(0)
		c.a.idle.pause(min(fetchPauseMin<<min(c.fails.Add(1), 6), fetchPauseMax))
		cmd.SetErr(err)
	case task != nil:
		c.misses.Store(0)
		c.fails.Store(0)
		c.a.sawAnswer(ctx)
		c.a.idle.came()
		c.a.noteDelivery(call.Queue, task.delivery)
		cmd.SetErr(nil)
		cmd.SetVal(task.text)
	case asked:
		c.fails.Store(0)
		c.a.sawAnswer(ctx)
		if int(c.misses.Add(1)) >= len(c.a.queues) { // every queue was empty
			c.misses.Store(0)
			c.a.idle.wait(len(c.a.queues), c.a.fetcher.dueSoon())
		}
	}
	return cmd
}

// delivery is a task on its way to its handler. asynq hands the handler only a part of the message.
type delivery struct {
	asynqwire.Message
	runNow bool            // an operator lets it run without asking its rules
	wait   luascripts.Wait // how it waited
}

// noteDelivery remembers a delivery until its handler is called.
func (a *Adapter) noteDelivery(queue string, d delivery) {
	if d.ID == "" { // it could not be read
		return
	}
	key, now := a.keys(queue).Task(d.ID), time.Now()
	_, _ = a.answered.take(key, now) // of an earlier delivery
	a.inFlight.put(key, d, now)
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

// wait returns when a task was woken, no more are to be fetched, or it is time to look again
// into that many queues: sooner when a deferred task is due soon. The waits differ at random: servers that
// look in step find a new task no sooner than one.
func (s *idleServers) wait(queues int, dueSoon bool) {
	most := min(time.Duration(queues)*idlePollMax, idlePollTop)
	if dueSoon {
		most = idlePollDue
	}
	idle := time.Duration(time.Now().UnixNano() - s.last.Load())
	d := min(max(idlePollMin, time.Duration(queues)*idle/idleShare), most)
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
