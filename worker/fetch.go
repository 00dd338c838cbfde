package worker

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
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
	// fetchTimeout bounds one call. go-redis would try for half a minute to connect to a server that drops packets.
	// How long it waits for an answer on an open connection is the client's ReadTimeout, 5 s by default.
	fetchTimeout = 5 * time.Second
	// leaseMin is how much of asynq's lease must be left when a server gets a task. asynq takes the time before
	// it calls us, and a call may take long. With a lease that has ended asynq would run the task and then not
	// write its end, so that it would run again. asynq renews a lease every 5 s.
	leaseMin = 15 * time.Second
	// fetchPatience is how long a server of several queues waits for the answer about one of them before it goes on
	// to the next: on a Redis Cluster one node may be silent while others are not. The call goes on, and what it
	// brings is held for whoever asks next.
	fetchPatience = time.Second
	// failedPatience is the same for a queue whose last fetch failed.
	failedPatience = 50 * time.Millisecond
	// keptMost bounds how much longer tasks are held that came when no server waited for them.
	keptMost = 5 * time.Second

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
	// A queue whose fetches fail is not asked again for a while, which doubles with each failure in a row. A
	// server whose queues all fail waits until then; asynq itself would not.
	fetchPauseMin = 20 * time.Millisecond
	fetchPauseMax = time.Second
)

// errSilent is what a fetch answers that does not wait any longer for the answer about its queue.
var errSilent = errors.New("worker: Redis has not answered a fetch yet")

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
// it is answered, and Redis gives it the tasks that it had given before. go-redis does not repeat
// it: Redis has to know that it is a repeat, because the first copy may come after it, see fetch.lua.
//
// On a Redis Cluster one node may be away and the others not. So a queue that fails is left
// out for a while, and a server goes on to its next queue.
//
// It is safe for concurrent use.
type fetcher struct {
	*Adapter
	heldFor, emptyFor, waitFor time.Duration // the constants, but in tests

	mu     sync.Mutex // over this and over what is said below
	queues map[string]*fetchQueue
	asked  int // tasks that calls under way ask for
	closed bool
}

// fetchQueue is a queue from which tasks are fetched.
type fetchQueue struct {
	name string
	keys queuescripts.QueueKeys

	// calling is locked while Redis is asked about this queue. Another server that wants a task
	// of it waits, and gets one of those that come.
	calling chanLock
	call    uint64 // the number of the last call
	lost    bool   // it was not answered

	// Changed under fetcher.mu.
	silent bool      // a server has not waited for the answer to the call that is under way
	fails  int       // calls in a row that failed
	err    error     // of the last call, if it failed
	again  time.Time // when it is asked again after that

	tasks []fetchedTask // of the last call, in the order in which they run
	until time.Time     // from then on they are not taken any more, and given back
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

// lockWithin locks, unless that takes longer than until the timer ends.
func (l chanLock) lockWithin(t *time.Timer) bool {
	select {
	case l <- struct{}{}:
		return true
	default:
	}
	select {
	case l <- struct{}{}:
		return true
	case <-t.C:
		return false
	}
}

type fetchedTask struct {
	text string // asynq's message, as a server wants it
	delivery
}

func newFetcher(a *Adapter) *fetcher {
	return &fetcher{Adapter: a, heldFor: heldFor, emptyFor: emptyFor, waitFor: fetchPatience, queues: make(map[string]*fetchQueue)}
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

// fetch returns a task of a queue, or none. foundEmpty says that Redis has answered, and that there
// is no task of this queue. When there is no task and foundEmpty is false, nothing is known about the queue: a server has to take the tasks first
// that are held of another queue, or to come again with a lease that lasts longer. An error says that the
// queue is to be left out for now.
func (f *fetcher) fetch(ctx context.Context, call asynqwire.Call) (task *fetchedTask, foundEmpty bool, err error) {
	f.mu.Lock()
	q := f.of(call.Queue)
	f.mu.Unlock()
	if len(f.core.queues) > 1 {
		return f.fetchPatiently(ctx, q, call)
	}
	q.calling.Lock() // there is no other queue to go on to
	defer q.calling.Unlock()
	n, task, err := f.prepare(q, call)
	if n == 0 {
		return task, false, err
	}
	return f.answer(q, call, f.refill(ctx, q, call.LeaseEnds, n))
}

// fetchPatiently is fetch, but it leaves a queue that is not answered about in time: the call goes on, and
// what it brings is held for whoever asks next.
func (f *fetcher) fetchPatiently(ctx context.Context, q *fetchQueue, call asynqwire.Call) (task *fetchedTask, foundEmpty bool, err error) {
	f.mu.Lock()
	before := cmp.Or(q.err, errSilent)
	patience := time.NewTimer(f.patience(q))
	f.mu.Unlock()
	defer patience.Stop()
	if !q.calling.lockWithin(patience) {
		return nil, false, before
	}
	n, task, err := f.prepare(q, call)
	if n == 0 {
		q.calling.Unlock()
		return task, false, err
	}
	answered, left := make(chan error), make(chan struct{})
	go func() {
		err := f.refill(ctx, q, call.LeaseEnds, n)
		select {
		case answered <- err: // q stays locked until the server has its task
		case <-left:
			f.keep(q, err)
			q.calling.Unlock()
		}
	}()
	select {
	case <-patience.C:
		f.mu.Lock()
		q.silent = true
		f.mu.Unlock()
		close(left)
		return nil, false, before
	case err := <-answered:
		defer q.calling.Unlock()
		return f.answer(q, call, err)
	}
}

// answer is what a server gets after a call. q.calling is locked.
func (f *fetcher) answer(q *fetchQueue, call asynqwire.Call, err error) (task *fetchedTask, foundEmpty bool, _ error) {
	if err != nil {
		return nil, false, err
	}
	task = f.take(q)
	// When the lease ends soon, what the call brought may have gone back to the queue, see refill.
	return task, task == nil && !endsSoon(call.LeaseEnds), nil
}

// patience is how long a server waits for an answer about a queue. The lock is held.
func (f *fetcher) patience(q *fetchQueue) time.Duration {
	switch {
	case q.silent:
		return 0
	case q.err != nil:
		return min(failedPatience, f.waitFor)
	}
	return f.waitFor
}

// endsSoon says that a lease does not last long enough to run a task under it.
func endsSoon(leaseEnds int64) bool { return time.Until(time.Unix(leaseEnds, 0)) < leaseMin }

// prepare says how many tasks to ask for, or what a server gets without that. q.calling is locked.
func (f *fetcher) prepare(q *fetchQueue, call asynqwire.Call) (n int, task *fetchedTask, err error) {
	if endsSoon(call.LeaseEnds) { // another server's call took long
		return 0, nil, nil
	}
	if t := f.take(q); t != nil {
		return 0, t, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return 0, nil, nil
	case q.err != nil && time.Now().Before(q.again):
		return 0, nil, q.err
	}
	return f.reserve(q), nil, nil
}

// take returns a task of a queue that is held, or nil. It leaves tasks that are held for too long.
func (f *fetcher) take(q *fetchQueue) *fetchedTask {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(q.tasks) == 0 || !time.Now().Before(q.until) {
		return nil
	}
	t := q.tasks[0]
	q.tasks = q.tasks[1:]
	return &t
}

// reserve says how many tasks to ask for, and counts them as asked for. The lock is held.
func (f *fetcher) reserve(q *fetchQueue) int {
	// A task that a server has taken may not have reached its handler yet.
	held := 0
	for _, other := range f.queues {
		if time.Now().Before(other.until) {
			held += len(other.tasks)
		}
	}
	free := f.load.free() - f.inFlight.len() - held - f.asked
	if held > 0 && (free < 1 || q.woken == 0 && time.Since(q.empty) < f.emptyFor) {
		return 0
	}
	n := max(1, min(fetchMost, free, max(q.next, q.woken)))
	q.woken = max(0, q.woken-n)
	f.asked += n
	return n
}

// refill asks for n tasks, which were reserved, and notes how that went. q.calling is locked.
func (f *fetcher) refill(ctx context.Context, q *fetchQueue, leaseEnds int64, n int) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	err := f.requeueOld(ctx, q) // tasks are held for too long when this process stood still
	if err == nil {
		err = f.ask(ctx, q, leaseEnds, n)
	}
	if err == nil && endsSoon(leaseEnds) {
		// The answer took so long that asynq would run the tasks without a lease. Its next fetch brings a new one.
		if err = f.requeue(context.WithoutCancel(ctx), q); err != nil {
			f.holdUntil(q, time.Time{}) // nobody takes them: another pool may have them by now
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked -= n
	if q.err = err; err == nil {
		q.fails = 0
		return nil
	}
	q.fails++
	q.again = time.Now().Add(min(fetchPauseMin<<min(q.fails, 6), fetchPauseMax))
	return err
}

// ask fetches n tasks from Redis, or those of the last call if that was not answered. It holds
// them, and learns from the answer how many to ask for next.
func (f *fetcher) ask(ctx context.Context, q *fetchQueue, leaseEnds int64, n int) error {
	if !q.lost {
		q.call++
	}
	var fetched []queuescripts.FetchedTask
	var err error
	for range 2 { // when the connection broke, once more on another one
		fetched, err = queuescripts.Fetch(ctx, f.rdb, q.keys,
			queuescripts.FetchArgs{Pool: f.poolName, Call: q.call, LeaseEnds: f.localClock.moveSeconds(leaseEnds), Most: n, Again: q.lost})
		q.lost = err != nil
		if rediserr.Of(err) != rediserr.Lost {
			break
		}
	}
	if err != nil {
		return err
	}
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
	f.hold(q, tasks, n)
	return nil
}

// hold keeps the answer to a call for n tasks.
func (f *fetcher) hold(q *fetchQueue, tasks []fetchedTask, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	q.tasks, q.until = tasks, now.Add(f.heldFor)
	if len(tasks) < n {
		q.next, q.empty = max(1, len(tasks)), now
	} else {
		q.next = min(2*n, fetchMost)
	}
	if len(tasks) > 1 {
		f.requeueLater(q)
	}
}

// keep holds what a call has brought for which no server waits any more: until the servers, which have gone on
// to the other queues, have come round. After an error the call has brought
// nothing. What is held then is older, and another pool may have it by now: requeueOld gives it back. q.calling is locked.
func (f *fetcher) keep(q *fetchQueue, err error) {
	f.mu.Lock()
	q.silent = false
	closed, n, until := f.closed, len(q.tasks), q.until
	f.mu.Unlock()
	switch {
	case closed:
		_ = f.requeue(context.Background(), q) // it logs what is left to asynq
	case err == nil && n > 0:
		f.holdUntil(q, until.Add(min(time.Duration(len(f.core.queues))*f.waitFor, keptMost)))
		f.idle.wakeUp(n, int(f.load.servers.Load()))
	}
}

// holdUntil lets servers take what is held of a queue until an instant; then it is given back.
func (f *fetcher) holdUntil(q *fetchQueue, until time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q.until = until
	f.requeueLater(q)
}

// pause is how long a server waits whose queues all fail: until one of them is asked again.
func (f *fetcher) pause() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	until := time.Now().Add(fetchPauseMax)
	for name := range f.core.queues {
		if q := f.queues[name]; q != nil && q.again.Before(until) {
			until = q.again
		}
	}
	return max(fetchPauseMin, time.Until(until))
}

// fetchSoon has the servers fetch n tasks of a queue that were put to the front of pending.
func (f *fetcher) fetchSoon(queue string, n int) {
	f.mu.Lock()
	q := f.of(queue)
	q.woken = min(q.woken+n, fetchMost)
	f.mu.Unlock()
	f.idle.wakeUp(n, int(f.load.servers.Load()))
}

// requeueLater puts tasks back that no server takes in time. The lock is held.
func (f *fetcher) requeueLater(q *fetchQueue) {
	d := max(f.heldFor, time.Until(q.until))
	if q.late != nil {
		q.late.Reset(d)
		return
	}
	q.late = time.AfterFunc(d, func() {
		q.calling.Lock()
		defer q.calling.Unlock()
		if f.requeueOld(context.Background(), q) != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			q.late.Reset(f.heldFor)
		}
	})
}

// requeueOld puts the tasks of a queue back that are held for too long. q.calling is locked.
func (f *fetcher) requeueOld(ctx context.Context, q *fetchQueue) error {
	f.mu.Lock()
	old := !time.Now().Before(q.until)
	f.mu.Unlock()
	if !old {
		return nil
	}
	return f.requeue(ctx, q)
}

// requeue puts the tasks of a queue that are held back to its front, in their
// order. They stay held when that fails. q.calling is locked.
func (f *fetcher) requeue(ctx context.Context, q *fetchQueue) error {
	f.mu.Lock()
	var ids []string
	for _, t := range q.tasks {
		ids = append(ids, t.ID)
	}
	f.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	back, err := queuescripts.Requeue(ctx, f.rdb, q.keys, queuescripts.RequeueArgs{Pool: f.poolName, Call: q.call, IDs: ids})
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
	q.tasks = nil
	return nil
}

// close gives all tasks back, also those of a call that was not answered.
func (f *fetcher) close() {
	f.mu.Lock()
	f.closed = true
	queues := slices.Collect(maps.Values(f.queues))
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, q := range queues {
		f.closeQueue(ctx, q)
	}
}

func (f *fetcher) closeQueue(ctx context.Context, q *fetchQueue) {
	select {
	case q.calling <- struct{}{}:
	case <-ctx.Done(): // a call is under way, and gives back what it brings
		return
	}
	defer q.calling.Unlock()
	if q.lost {
		_ = f.ask(ctx, q, 0, 0) // it notes its number, so that a late copy takes nothing
	}
	_ = f.requeue(ctx, q) // it logs what is left to asynq
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
	task, foundEmpty, err := c.a.fetcher.fetch(ctx, call)
	switch {
	case errors.Is(err, errSilent):
		c.missed()
	case err != nil && !c.allFail(call.Queue, err):
		c.missed() // asynq goes on to the next queue
	case err != nil:
		c.a.sawError(ctx, err)
		c.misses.Store(0)
		c.a.idle.pause(c.a.fetcher.pause())
		cmd.SetErr(err)
	case task != nil:
		c.misses.Store(0)
		c.queueAnswered(ctx)
		c.a.idle.came()
		c.a.noteDelivery(call.Queue, task.delivery)
		cmd.SetErr(nil)
		cmd.SetVal(task.text)
	case foundEmpty:
		c.queueAnswered(ctx)
		c.missed()
	}
	return cmd
}

// missed notes that a queue had no task. The server waits when none of its queues had one.
func (c *client) missed() {
	if int(c.misses.Add(1)) >= len(c.a.queues) {
		c.misses.Store(0)
		c.a.idle.wait(len(c.a.queues), c.a.fetcher.dueSoon())
	}
}

// allFail notes that a queue fails, and says whether all queues have failed since one was answered. Only
// then asynq gets the error: it would not go on to the next queue.
func (c *client) allFail(queue string, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failing == nil {
		c.failing = make(map[string]error)
	}
	c.failing[queue] = err
	if len(c.failing) < len(c.a.queues) {
		return false
	}
	clear(c.failing)
	return true
}

// queueAnswered notes that Redis has answered about a queue.
func (c *client) queueAnswered(ctx context.Context) {
	c.a.sawAnswer(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failing) == 0 {
		return
	}
	queues := slices.Sorted(maps.Keys(c.failing))
	c.a.logFew("failing queues", func() {
		c.a.log.Warn("no task can be fetched from some queues, and others go on", zap.Strings("queues", queues), zap.Error(c.failing[queues[0]]))
	})
	clear(c.failing)
}

// delivery is a task on its way to its handler. asynq hands the handler only a part of the message.
type delivery struct {
	asynqwire.Message
	runNow bool              // an operator lets it run without asking its rules
	wait   queuescripts.Wait // how it waited
}

// noteDelivery remembers a delivery until its handler is called.
func (a *Adapter) noteDelivery(queue string, d delivery) {
	if d.ID == "" { // it could not be read
		return
	}
	key, now := a.keys(queue).Task(d.ID), time.Now()
	_, _ = a.returnedDeferrals.take(key, now) // of an earlier delivery
	a.inFlight.put(key, d, now)
}

// idleServers holds the asynq servers of this process while they have nothing to do.
type idleServers struct {
	wakeUps chan struct{} // written to when tasks are woken: an idle server fetches at once
	noFetch <-chan struct{}
	waiting atomic.Int64
	last    atomic.Pointer[time.Time] // when a task came
}

func newIdleServers(c *core) *idleServers {
	s := &idleServers{wakeUps: make(chan struct{}, ServersMax), noFetch: c.noFetch}
	s.came()
	return s
}

// came notes that a server has got a task.
func (s *idleServers) came() { s.last.Store(new(time.Now())) }

// wait returns when a task was woken, no more are to be fetched, or it is time to look again
// into that many queues: sooner when a deferred task is due soon. The waits differ at random: servers that
// look in step find a new task no sooner than one.
func (s *idleServers) wait(queues int, dueSoon bool) {
	most := min(time.Duration(queues)*idlePollMax, idlePollTop)
	if dueSoon {
		most = idlePollDue
	}
	idle := time.Since(*s.last.Load())
	d := min(max(idlePollMin, time.Duration(queues)*idle/idleShare), most)
	d = d * time.Duration(max(idleMany, s.waiting.Add(1))) / idleMany
	defer s.waiting.Add(-1)
	t := time.NewTimer((d*3/4 + rand.N(d/2)).Truncate(time.Microsecond)) // whole microseconds, which Redis counts: virtual time moves from timer to timer
	defer t.Stop()
	select {
	case <-s.wakeUps:
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

// wakeUp lets idle servers fetch at once, when n tasks were woken.
func (s *idleServers) wakeUp(n, servers int) {
	for range min(n, servers) {
		select {
		case s.wakeUps <- struct{}{}:
		default:
			return
		}
	}
}
