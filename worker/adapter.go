package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/internal/precheck"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/internal/tail"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Adapter brings limits to asynq servers that somebody else runs; [Pool] is
// built on it. Of each server it wants three things: its Redis client from
// [Adapter.Client], its configuration through [Adapter.Server], its handler
// through [Adapter.Handler]. [Adapter.Start] starts what wakes deferred tasks;
// call [Adapter.Stop] before the servers shut down, so that no task waits in a
// worker slot, and [Adapter.Close] after it.
//
//	a, err := worker.NewAdapter(rdb, cfg)
//	srv := asynq.NewServerFromRedisClient(a.Client(), a.Server(asynq.Config{Concurrency: 10}))
//	err = a.Start(ctx)
//	err = srv.Start(a.Handler(mux))
//	...
//	a.Stop()
//	srv.Shutdown()
//	a.Close()
//
// A task that comes to the handler while one of these is missing fails with
// [ErrIncomplete], which says what to add. The example is a whole program.
//
// An Adapter serves one set of queues and may serve several servers: call
// [Adapter.Server] once for each, for it counts their workers and wakes no more
// tasks than those can take.
// It is safe for concurrent use.
type Adapter struct {
	*core
	policies map[string]taskPolicy // by task type, never changed

	// What is known of deliveries and attempts.
	inFlight          *ttlMap[string, delivery] // by task key, from the fetch to the handler
	recentlyDone      *ttlMap[string, doneRun]  // by task key: runs whose handlers returned nil, until Redis has that in writing
	finished          *finishedTasks            // those of them whose ends could not be written
	deferrals         *deferrals
	returnedDeferrals *ttlMap[string, *deferral] // by task key, from the handler's answer until asynq writes it
	batches           *batches
	types             *typeWatch

	// The ways to Redis of asynq's servers.
	finishPipeline *finishPipeline
	idle           *idleServers
	fetcher        *fetcher

	// The background work.
	wakers        map[string]*waker // by queue
	refreshes     *refreshFilter
	promotions    *promotions
	lateGiveBacks lateGiveBacks
	batchCounts   *batchCounts
	limitWatch    *limitWatch
	subscriber    *subscriber
	policyFiles   *policyFiles
	upkeep        *upkeep
	servers       *serverWatch

	mu           sync.Mutex                    // over the queues, until Start, and the loggers
	queuesFixed  bool                          // they are Config's, or a server's
	asynqLoggers map[asynq.Logger]asynq.Logger // by the one that they write to

	started           atomic.Bool               // Start was called and succeeded
	freshContextUntil atomic.Pointer[time.Time] // when freshContextLeft is used up; nil before a shutdown, and while Redis answers
	fetchOnce         sync.Once                 // of closing noFetch
	stopOnce          sync.Once                 // of closing stop
	quit              context.CancelFunc        // ends the background work
	wg                sync.WaitGroup
}

// taskPolicy is a policy with what decides by it.
type taskPolicy struct {
	queue.Policy
	limits *throttle.Policy
	names  []string // of its limits
}

func ruleNames(p *throttle.Policy) []string {
	var names []string
	for _, l := range p.Rules() {
		names = append(names, l.Rule())
	}
	return names
}

// maxPostponesDefault is how often a task is postponed when its policy does not say.
const maxPostponesDefault = 100

func (p taskPolicy) maxPostpones() int { return cmp.Or(p.MaxPostpones, maxPostponesDefault) }

const (
	// recentlyDoneTTL is for how long tasks are remembered whose handlers returned nil: when asynq could
	// not write the end of one, it delivers the task again, and then it must not run again.
	recentlyDoneTTL = 5 * time.Minute
	// inFlightTTL is for how long a delivery is remembered when it does not reach its handler: asynq
	// cancelled it before.
	inFlightTTL = 10 * time.Minute
)

// NewAdapter makes an adapter and does not talk to Redis yet. It refuses a bad
// configuration with all its faults; each unwraps to [ErrInvalidConfig] or to
// the error of the part it is in.
func NewAdapter(rdb redis.UniversalClient, cfg Config) (*Adapter, error) {
	if policyset.IsNil(rdb) {
		panic("worker: nil Redis client")
	}
	cfg, files, err := cfg.readPolicyFiles()
	if err != nil {
		return nil, err
	}
	given := len(cfg.Asynq.Queues) > 0
	cfg = cfg.fill()
	cfg.Throttle.Observer = event.Join(cfg.Throttle.Observer, limitEvents(cfg.Observer))
	teller := tail.NewTeller(rdb, cfg.Throttle.Prefix)
	cfg.Observer = event.Join(cfg.Observer, teller.Observer())
	c := newCore(rdb, cfg)
	files.core = c
	a := &Adapter{
		core: c, policies: make(map[string]taskPolicy),
		inFlight: newTTLMap[string, delivery](inFlightTTL), recentlyDone: newTTLMap[string, doneRun](recentlyDoneTTL),
		deferrals: newDeferrals(), returnedDeferrals: newTTLMap[string, *deferral](deferralTTL), batches: newBatches(c),
		finishPipeline: newFinishPipeline(rdb), idle: newIdleServers(c),
		wakers: make(map[string]*waker), refreshes: newRefreshFilter(), promotions: newPromotions(c), batchCounts: newBatchCounts(c), policyFiles: files,
		asynqLoggers: make(map[asynq.Logger]asynq.Logger),
	}
	a.fetcher = newFetcher(a)
	ends := &client{UniversalClient: a.rdb, a: a}
	a.finished = newFinishedTasks(c, ends.endFinished, ends.forgetDone)
	a.lateGiveBacks, a.types = newLateGiveBacks(c, a.promotions), newTypeWatch(c)
	a.limitWatch, a.subscriber = &limitWatch{c, a.wakers}, &subscriber{c, a.wakers, teller}
	a.upkeep = &upkeep{c, a.policies, files, a.types, []interface{ purge(time.Time) }{a.deferrals, a.recentlyDone, a.batches.dropped, a.inFlight,
		a.waits, a.returnedDeferrals}}
	a.servers = &serverWatch{core: c}
	for _, p := range cfg.Policies {
		rules := make([]policyset.Rule, len(p.Rules))
		for i, r := range p.Rules {
			rules[i] = policyset.Rule{Name: r.Name, Limit: r.Limit, LimitOf: r.LimitOf}
		}
		decide, err := a.set.Compile(rules)
		if err != nil {
			return nil, err
		}
		a.policies[p.Type] = taskPolicy{p, decide, ruleNames(decide)}
	}
	a.serve(cfg.Asynq.Queues, given)
	return a, nil
}

// serve lets the adapter serve these queues. Until they are fixed, a server may replace them
// by its own.
func (a *Adapter) serve(queues map[string]int, fixed bool) {
	a.cfg.Asynq.Queues, a.queuesFixed = queues, fixed
	clear(a.queues)
	clear(a.wakers)
	for name := range queues {
		a.queues[name] = queuescripts.NewQueueKeys(a.cfg.Throttle.Prefix, name)
		a.wakers[name] = newWaker(a.core, name, a.promotions, a.refreshes, a.fetcher)
	}
}

// queuesOf returns the queues of a server whose configuration names some, or none. It panics
// about a contradiction.
func (a *Adapter) queuesOf(server map[string]int) map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(server) == 0 {
		a.queuesFixed = true
		return a.cfg.Asynq.Queues
	}
	var errs []error
	checkQueues("Queues of Adapter.Server", server, func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalidConfig}, args...)...))
	})
	if err := errors.Join(errs...); err != nil {
		panic(err)
	}
	switch {
	case maps.Equal(server, a.cfg.Asynq.Queues):
		a.queuesFixed = true
	case a.queuesFixed:
		panic(fmt.Errorf("%w: Adapter.Server was given the queues %v, and the adapter serves %v. All servers of an adapter have the same queues: "+
			"name them in Config.Asynq.Queues, or in the first Adapter.Server, before Adapter.Start; other queues need an adapter of their own",
			ErrInvalidConfig, server, a.cfg.Asynq.Queues))
	default:
		a.serve(maps.Clone(server), true)
	}
	return a.cfg.Asynq.Queues
}

// Start looks whether Redis is fit for it ([ErrRedisUnfit]) and whether the clocks agree: it refuses a local clock that is more than
// [ClockSkewMax] off Redis' ([ErrClockSkew]). Then it starts what wakes deferred tasks. While Redis is away it fails, or waits,
// see WaitForRedis of [Config]. The context is for the start only. An adapter starts once.
func (a *Adapter) Start(ctx context.Context) error {
	if a.quit != nil || a.stopped() {
		return errors.New("worker: an adapter runs once")
	}
	if err := a.awaitRedis(ctx); err != nil {
		return err
	}
	a.queuesOf(nil) // from now on they stay
	err := a.checkRedis(ctx)
	if err == nil || errors.Is(err, ErrRedisUnfit) { // it answers
		if skew := a.upkeep.compareClocks(ctx); err == nil || errors.Is(skew, ErrClockSkew) {
			err = errors.Join(err, skew)
		}
	}
	if err != nil {
		return err
	}
	a.started.Store(true)
	a.away.ended.Store(new(time.Now()))
	if a.cfg.Throttle.Shadow {
		a.log.Warn("shadow mode: limits are counted and not kept")
	}
	a.checkAsynq()
	a.types.start()
	a.policyFiles.settle(ctx)
	a.upkeep.shareRules(ctx)
	ctx, a.quit = context.WithCancel(context.WithoutCancel(ctx))
	for _, w := range a.wakers {
		a.wg.Go(func() { w.run(ctx) })
		a.wg.Go(func() { w.planLoop(ctx) })
		a.wg.Go(func() { (&sweeper{waker: w}).run(ctx) })
	}
	a.wg.Go(func() { a.limitWatch.run(ctx) })
	a.wg.Go(func() { a.subscriber.run(ctx) })
	a.wg.Go(func() { a.subscriber.teller.Run(ctx) })
	a.wg.Go(func() { a.promotions.run(ctx, a.wakers) })
	a.wg.Go(func() {
		(&unwrittenDeferrals{a.core, a.deferrals, (&client{UniversalClient: a.rdb, a: a}).deferBy}).run(ctx)
	})
	a.wg.Go(func() { a.finished.run(ctx) })
	a.wg.Go(func() { a.upkeep.run(ctx) })
	a.servers.look(ctx) // later looks are compared with this one
	a.wg.Go(func() { a.servers.run(ctx) })
	a.wg.Go(func() { a.history.Run(ctx) })
	a.wg.Go(func() { a.policyFiles.run(ctx) })
	a.wg.Go(func() { present(ctx, a.core, a.policyFiles) })
	a.batchCounts.begin()
	a.wg.Go(func() { a.batchCounts.run(ctx) })
	return nil
}

// awaitRedis returns when Redis answers, or the adapter is shut down, if it is configured to wait.
func (a *Adapter) awaitRedis(ctx context.Context) error {
	if !a.cfg.WaitForRedis {
		return nil
	}
	for pause, warned := awaitMin, false; ; pause = min(2*pause, awaitMax) {
		err := a.rdb.Time(ctx).Err()
		if kind := rediserr.Of(err); kind.Answered() && kind != rediserr.Passing {
			return nil // what it refuses is said by the check
		}
		if !warned {
			a.log.Warn("Redis does not answer: the start waits for it", zap.Error(err))
			warned = true
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.stop:
			return ErrClosed
		case <-time.After(pause):
		}
	}
}

const (
	// How long the start waits between two questions to a Redis that does not answer.
	awaitMin = 50 * time.Millisecond
	awaitMax = time.Second
	// When the check of Redis says that it still waits: go-redis dials for seconds before it gives up.
	slowCheck = 500 * time.Millisecond
)

// checkRedis refuses a server that can't do what the adapter needs, with all its faults, and
// says so of one that is away.
func (a *Adapter) checkRedis(ctx context.Context) error {
	slow := time.AfterFunc(slowCheck, func() {
		a.log.Warn("Redis has not answered yet: the start fails if it does not in a few seconds", zap.String("addr", precheck.Address(a.rdb)))
	})
	defer slow.Stop()
	found, err := precheck.Run(ctx, a.rdb, precheck.Needs{
		Role: precheck.Worker, Prefix: a.cfg.Throttle.Prefix, AllowEviction: a.cfg.AllowEviction, Functions: a.cfg.Throttle.HoldAfterFailover,
		Replicas: a.cfg.Throttle.Replicas, Queue: slices.Min(slices.Collect(maps.Keys(a.cfg.Asynq.Queues))),
	})
	if err != nil && !rediserr.Of(err).Answered() {
		return fmt.Errorf("worker: Redis does not answer: %w; start it, or let the start wait for it with worker.Config.WaitForRedis", err)
	}
	if err != nil {
		a.log.Warn("Redis could not be checked", zap.Error(err))
	}
	for _, f := range found {
		if f.Level == precheck.Warning {
			a.log.Warn("Redis is not as it should be", zap.String("check", f.Name), zap.String("addr", f.Where), zap.String("what", f.What),
				zap.String("remedy", f.Remedy))
		}
	}
	if err := precheck.Err(found); err != nil {
		return fmt.Errorf("%w:\n%w", ErrRedisUnfit, err)
	}
	return nil
}

// ErrRedisUnfit is what a refusal to start because of the Redis server unwraps to. Its text
// names each fault, the address of the server, and what to do.
var ErrRedisUnfit = errors.New("worker: Redis is not fit for use")

// ErrIncomplete is what a task fails with when its handler stands in [Adapter.Handler], and its server
// lacks something else of the adapter.
var ErrIncomplete = errors.New("worker: the adapter is not complete")

// incomplete says what is missing around a handler that is given a task, or nil. seen is
// whether the adapter's client has fetched the task.
func (a *Adapter) incomplete(seen bool) error {
	var add []string
	if !a.started.Load() {
		add = append(add, "call Adapter.Start before the server starts: without it no deferred task is woken")
	}
	if a.load.servers.Load() == 0 {
		add = append(add, "make the server's configuration with Adapter.Server: without it a throttle counts as a failure")
	}
	if !seen && !a.asynqUntrusted.Load() {
		add = append(add, "give the server Adapter.Client as its Redis client, by asynq.NewServerFromRedisClient: without it a throttled task is not deferred; "+
			"if it has it, a middleware around Adapter.Handler called it again in one attempt: let it return the error, for asynq tries again")
	}
	if len(add) == 0 {
		return nil
	}
	err := fmt.Errorf("%w: %s", ErrIncomplete, strings.Join(add, "; "))
	a.logFew(err.Error(), func() { a.log.Error("a task fails: the adapter around its handler is not complete", zap.Error(err)) })
	return err
}

// Stop ends the fetching of tasks by all servers of the adapter, for good, and hands tasks
// that wait in a worker slot back at once. Handlers that run go on. Idempotent. [Pool.Stop] does not
// hand tasks back; [Pool.Shutdown] begins with this call.
func (a *Adapter) Stop() {
	a.stopFetching()
	a.stopOnce.Do(func() { close(a.stop) })
}

// stopFetching ends the fetching of tasks. Those that wait in a worker slot go on.
func (a *Adapter) stopFetching() { a.fetchOnce.Do(func() { close(a.noFetch) }) }

// returnWithin is how long a shutdown waits for handlers that asynq has given up.
const returnWithin = time.Second

// Close ends the background work and waits for it. Handlers that asynq has given up get a second
// to return, so that their leases are free before the process ends. Idempotent.
func (a *Adapter) Close() {
	a.Stop()
	a.fetcher.close()
	for end := time.Now().Add(returnWithin); a.load.entered.Load() > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if a.quit != nil {
		a.quit()
	}
	a.wg.Wait()
	// Nobody here passes promotions on any more. The sweeper of another pool finds the next task of a slot that is
	// free, and other tasks come when they were promised.
	a.lateGiveBacks.Close(afterTimeout)
}

// Stats returns a snapshot of the counters.
func (a *Adapter) Stats() Stats {
	s := a.counters.snapshot()
	s.Lead = a.lead.get()
	return s
}

// ReloadPolicies reads Config.PolicyFiles again, at once: a running adapter does so when they
// have changed. An error has all that is wrong with them, or needs a restart, and nothing is
// changed then; or Redis does not answer, and what is changed counts when it does. Without files
// it does nothing.
func (a *Adapter) ReloadPolicies(ctx context.Context) error { return a.policyFiles.reload(ctx) }

// Limiter returns the limiter of a policy's rule, or nil.
func (a *Adapter) Limiter(rule string) *throttle.Limiter { return a.set.Limiter(rule) }

// Client returns the Redis client for one asynq server. Each server needs its
// own. Closing it closes the client that the adapter was made with.
func (a *Adapter) Client() redis.UniversalClient {
	return &client{UniversalClient: a.rdb, a: a}
}

// Server returns asynq's configuration of one server: base with what the
// adapter needs around the user's functions. TaskCheckInterval is set to the
// least: the client waits in asynq's stead, and can be woken.
//
// The queues are those of base. When it names none, they are those of
// Config.Asynq.Queues, and when that names none either, "default". All servers of an
// adapter have the same queues: Server panics when base contradicts Config or
// another server, and when it comes with queues of its own after [Adapter.Start].
// Whatever else base leaves zero is that of Config.Asynq.
func (a *Adapter) Server(base asynq.Config) asynq.Config {
	base = orElse(base, a.cfg.Asynq, a.load.servers.Load() == 0)
	a.load.servers.Add(1)
	if base.Concurrency < 1 {
		base.Concurrency = runtime.NumCPU() // as asynq does
	}
	a.load.workers.Add(int64(base.Concurrency))
	base.Queues = maps.Clone(a.queuesOf(base.Queues))
	base.TaskCheckInterval = time.Nanosecond
	base.IsFailure = a.isFailure(base.IsFailure)
	base.RetryDelayFunc = a.retryDelay(base.RetryDelayFunc)
	if base.ErrorHandler != nil {
		base.ErrorHandler = a.errorHandler(base.ErrorHandler)
	}
	base.Logger = a.asynqLogger(base.Logger)
	return base
}

// asynqLogger is where asynq logs to, nil for our own logger. Servers with one logger share what is
// known of repeated lines.
func (a *Adapter) asynqLogger(to asynq.Logger) asynq.Logger {
	if to != nil && !reflect.ValueOf(to).Comparable() {
		return asynqwire.Collapse(to, a.dropLine)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asynqLoggers[to] == nil {
		l := asynqwire.NewLogger(a.cfg.Logger, a.dropLine)
		if to != nil {
			l = asynqwire.Collapse(to, a.dropLine)
		}
		a.asynqLoggers[to] = l
	}
	return a.asynqLoggers[to]
}

// orElse is base with the fields of other where base has none, but for the queues. The health
// check is that of one server, for all use one client.
func orElse(base, other asynq.Config, first bool) asynq.Config {
	other.Queues = nil
	if !first {
		other.HealthCheckFunc = nil
	}
	to, from := reflect.ValueOf(&base).Elem(), reflect.ValueOf(other)
	for i := range to.NumField() {
		if to.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return base
}

func (a *Adapter) isFailure(user func(error) bool) func(error) bool {
	return func(err error) bool {
		if d := a.deferrals.of(err); d != nil {
			a.deferrals.judge(d)
			return false
		}
		if user == nil {
			return true
		}
		return user(err)
	}
}

func (a *Adapter) retryDelay(user asynq.RetryDelayFunc) asynq.RetryDelayFunc {
	if user == nil {
		user = asynq.DefaultRetryDelayFunc
	}
	return func(n int, err error, task *asynq.Task) time.Duration {
		if d := a.deferrals.of(err); d != nil {
			// Only an unknown asynq takes this; whole seconds, rounded down there.
			return time.Until(d.made.Add(d.wait)).Truncate(time.Second) + 2*time.Second
		}
		return user(n, err, task)
	}
}

func (a *Adapter) errorHandler(user asynq.ErrorHandler) asynq.ErrorHandler {
	return asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
		if a.deferrals.of(err) == nil {
			user.HandleError(ctx, task, err)
		}
	})
}

// dropLine says whether asynq warns about a task that is only being deferred.
func (a *Adapter) dropLine(line string) bool {
	id, ok := asynqwire.RetryExhaustedID(line)
	return ok && a.deferrals.underWay(id)
}
