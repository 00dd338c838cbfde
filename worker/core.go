package worker

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/history"
	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/throttle"
)

// core is what all parts of an adapter share: the way to Redis, the configuration, the
// limiters, and what is counted, logged and observed. It is safe for concurrent use.
type core struct {
	rdb            redis.UniversalClient
	cfg            Config
	log            *zap.Logger
	poolName       string                            // this pool's name in Redis
	poolMark       queuescripts.PoolMark             // this adapter's mark, among all that defer tasks
	set            *policyset.Set                    // the limiters of the policies, and of the rules that handlers used
	queues         map[string]queuescripts.QueueKeys // those that are served here; never changed after Start
	counters       counters
	waits          *waits
	lead           *lead
	history        *history.Recorder // nil with Config.NoHistory
	load           load
	away           outage
	localClock     localClock
	noFetch        chan struct{} // closed when no more tasks are to be fetched
	stop           chan struct{} // closed when tasks that wait in a worker slot are to be handed back
	asynqUntrusted atomic.Bool   // asynq is not the one that is known here
	reported       sync.Map      // what was logged, and when
}

// load is how busy the servers are that were configured here.
type load struct {
	workers atomic.Int64 // of all servers
	servers atomic.Int64
	running atomic.Int64 // deliveries that are with the handler or before it
	entered atomic.Int64 // the same, with those that asynq has given up and whose handler has not returned
}

// free is how many workers are free.
func (l *load) free() int { return int(l.workers.Load() - l.running.Load()) }

// wakeAhead is the number of workers for which one task more is woken than workers are free.
const wakeAhead = 8

// ahead is how many more tasks are woken than workers are free: a worker that becomes free
// finds the next one in pending. With too many of them tasks would wait here for a worker
// while another pool has one that is free.
func (l *load) ahead() int { return int(max(1, l.workers.Load()/wakeAhead)) }

func newCore(rdb redis.UniversalClient, cfg Config) *core {
	c := &core{
		rdb: rdb, cfg: cfg, log: cfg.Logger.With(zap.String("component", "worker")),
		poolName: fmt.Sprintf("%016x", rand.Uint64()), set: policyset.New(rdb, cfg.Throttle),
		queues: make(map[string]queuescripts.QueueKeys), lead: newLead(cfg.Throttle.InlineWait), noFetch: make(chan struct{}), stop: make(chan struct{}),
	}
	if !cfg.NoHistory {
		c.history = history.New(rdb, cfg.Throttle.Prefix, c.limitText)
	}
	c.waits = newWaits(&c.counters.rules, c.history)
	binary.BigEndian.PutUint32(c.poolMark[:], rand.Uint32())
	return c
}

// keys are those of a queue; of one that is served here they are made once.
func (c *core) keys(queue string) queuescripts.QueueKeys {
	if k, ok := c.queues[queue]; ok {
		return k
	}
	return queuescripts.NewQueueKeys(c.cfg.Throttle.Prefix, queue)
}

// onCluster says that one server may stand still while the others answer.
func (c *core) onCluster() bool {
	_, ok := c.rdb.(*redis.ClusterClient)
	return ok
}

func (c *core) stopped() bool { return isClosed(c.stop) }

// fetches says whether tasks are fetched, or will be when the servers start.
func (c *core) fetches() bool { return !isClosed(c.noFetch) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// outage notes since when Redis does not answer, by the monotonic clock. The zero value is ready.
type outage struct {
	since atomic.Pointer[time.Time] // nil while it answers
	ended atomic.Pointer[time.Time] // when it did not answer last, as far as it is known; nil before the start
}

// lately says whether Redis does not answer, or did not a time ago.
func (o *outage) lately(d time.Duration) bool {
	ended := o.ended.Load()
	return o.since.Load() != nil || ended != nil && time.Since(*ended) < d
}

// sawError notes the error of a call to Redis.
func (c *core) sawError(ctx context.Context, err error) {
	kind := rediserr.Of(err)
	if ctx.Err() != nil || c.stopped() || kind.Answered() && kind != rediserr.Passing {
		return
	}
	if c.away.since.CompareAndSwap(nil, new(time.Now())) {
		c.log.Error("Redis is away: no task is fetched until it answers", zap.Error(err))
		if tell := c.cfg.Observer.RedisAway; tell != nil {
			tell(ctx, event.RedisAway{Err: err})
		}
	}
}

// sawAnswer notes that Redis has answered a call.
func (c *core) sawAnswer(ctx context.Context) {
	if c.away.since.Load() == nil {
		return
	}
	c.away.ended.Store(new(time.Now()))
	if since := c.away.since.Swap(nil); since != nil {
		c.log.Warn("Redis is back", zap.Duration("after", time.Since(*since)))
		if tell := c.cfg.Observer.RedisBack; tell != nil {
			tell(ctx, event.RedisBack{For: time.Since(*since)})
		}
	}
}

// limitEvents are the events that the pool's limiters tell. The pool itself tells those of tasks,
// with their queue and their type.
func limitEvents(o event.Observer) event.Observer {
	return event.Observer{LimitChanged: o.LimitChanged, KeyClosed: o.KeyClosed}
}

// logOnce logs a thing the first time that it is seen.
func (c *core) logOnce(what string, log func()) {
	if _, seen := c.reported.LoadOrStore(what, true); !seen {
		log()
	}
}

// logQuiet is the least time between two lines about the same trouble.
const logQuiet = 5 * time.Second

// logFew logs the same trouble at most every [logQuiet].
func (c *core) logFew(what string, log func()) {
	now := time.Now()
	if last, ok := c.reported.Load(what); ok && now.Sub(last.(time.Time)) < logQuiet {
		return
	}
	c.reported.Store(what, now)
	log()
}

// logAndPause logs that a call of the background work failed, and waits a moment.
func (c *core) logAndPause(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	c.sawError(ctx, err)
	c.logFew(what, func() { c.log.Warn(what, zap.Error(err)) })
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}

// every calls f after each d, one call behind the other, until ctx ends.
func every(ctx context.Context, d time.Duration, f func(now time.Time)) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			f(now)
		}
	}
}

// checkAsynq distrusts an asynq that is not the one whose scripts are pinned, by its name or by
// what it does.
func (c *core) checkAsynq() {
	if err := asynqwire.Identify(); err != nil {
		c.distrust("this asynq is not known", zap.NamedError("reason", err))
	}
	if err := asynqwire.SelfCheck(); err != nil {
		c.distrust("asynq does not end a throttled task as it should", zap.NamedError("reason", err))
	}
}

// distrust makes tasks on their last attempt wait in their worker slot: an unknown version
// of asynq would archive them instead of deferring them.
func (c *core) distrust(why string, fields ...zap.Field) {
	c.asynqUntrusted.Store(true)
	c.logOnce(why, func() {
		c.log.Warn(why+": on their last attempt tasks now wait in a worker slot instead of being deferred", fields...)
	})
}

// limitText is the limit of a rule as it is in force, for the history; "" for a gate.
func (c *core) limitText(rule string) string {
	if l := c.set.Limiter(rule); l != nil {
		return throttle.ForWorkers.LimitLastKnown(l).String()
	}
	return ""
}

// recordGrant notes in the history what a grant spent, by each of its rules.
func (c *core) recordGrant(p *throttle.Policy, d throttle.Decision) {
	if c.history == nil {
		return
	}
	ref := throttle.ForWorkers.Ref(p, d.Request)
	for i, l := range p.Rules() {
		c.history.Of(l.Rule()).Granted(ref.IDs[i], ref.Costs[i])
	}
}

// countWait counts a deferral for the rule that holds the task up, in the statistics and the history;
// for no rule when it waits for something else: the wait for the rule before is over then, too.
func (c *core) countWait(d *deferral) {
	rule := ""
	switch d.reason {
	case event.Booked, event.Gated, event.RetryAfter:
		rule = d.rule
		c.counters.rules.bound(rule)
		c.history.Of(rule).Deferred(d.key, d.at)
	}
	c.waits.begin(c.keys(d.task.Queue).Task(d.task.ID), rule, d.made, d.wait)
}

// recordWait notes in the history until when a task waits for a rule. record is the stored
// [queuescripts.WaitRecord] of the task.
func (c *core) recordWait(rule, record string, until time.Time) {
	parsed, ok := queuescripts.ParseWaitRecord(record)
	if c.history == nil || !ok {
		return
	}
	ids, _, _ := parsed.Booking.Read()
	if n := slices.Index(strings.Split(parsed.Booking.Policy(), "+"), rule); n >= 0 && n < len(ids) {
		c.history.Of(rule).Waits(ids[n], until)
	}
}

// keyOf is the key of the rule that holds a task, as it stands in Redis; "" of a gate.
func keyOf(p *throttle.Policy, d throttle.Decision) string {
	if n := slices.IndexFunc(p.Rules(), func(l *throttle.Limiter) bool { return l.Rule() == d.Rule }); n >= 0 {
		return throttle.ForWorkers.Ref(p, d.Request).IDs[n]
	}
	return ""
}
