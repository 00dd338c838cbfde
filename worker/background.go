package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/precheck"
	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/throttle"
)

const (
	// withdrawalsMax bounds the refunds that wait for Redis to come back. When one finds no
	// room, a permit stays charged that was not used. No limit is exceeded by that.
	withdrawalsMax = 4096
	// withdrawFor is how long a refund is tried at least. It is tried for as long as the grant
	// that it takes back counts, if that is longer.
	withdrawFor   = 2 * time.Minute
	withdrawPause = 500 * time.Millisecond
	// promotionsMax bounds the promotions that wait to be passed on.
	promotionsMax = 1024
	// goneAfter is how long a task must have been missing before its place is given up.
	goneAfter = 500 * time.Millisecond
	// leaveTogether is how many places are given up at the same time.
	leaveTogether = 16
	// promotionsTogether bounds how many of them are passed on in one call.
	promotionsTogether = 256
)

// withdrawal is a grant that is not used, or may have been made: its call had no answer, or Redis did
// not answer when it was to be given back.
type withdrawal struct {
	policy *throttle.Policy
	throttle.Request
	until time.Time
}

// withdrawals gives such grants back once Redis answers.
type withdrawals struct {
	*core
	promotions *promotions
	waiting    chan withdrawal
}

func newWithdrawals(c *core, p *promotions) *withdrawals {
	return &withdrawals{core: c, promotions: p, waiting: make(chan withdrawal, withdrawalsMax)}
}

// later takes a call back in the background. The booking of the job stays: only
// the token is withdrawn. It never blocks.
func (f *withdrawals) later(p *throttle.Policy, r throttle.Request) {
	r.Job = ""
	counts := time.Duration(0)
	for _, l := range p.Rules() { // without an answer it is not known by which limits it was charged
		counts = max(counts, l.Limit().Window(), throttle.ForWorkers.LimitLastKnown(l).Window())
	}
	select {
	case f.waiting <- withdrawal{p, r, time.Now().Add(max(withdrawFor, counts))}:
	default:
		f.logFew("withdrawals", func() { f.log.Warn("too many grants wait to be given back: some permits stay charged") })
	}
}

// run tries each withdrawal until Redis answers it. They are tried in turn, so that one that
// is refused holds up no other.
func (f *withdrawals) run(ctx context.Context) {
	var left []withdrawal
	t := time.NewTicker(withdrawPause)
	defer t.Stop()
	for {
		more := f.waiting
		if len(left) >= withdrawalsMax {
			more = nil
		}
		select {
		case <-ctx.Done():
			f.tryLast(left)
			return
		case r := <-more:
			left = append(left, r)
		case <-t.C:
			left = f.try(ctx, left)
		}
	}
}

// try makes the withdrawals that it can, and returns those that are left. It ends with the
// first that Redis does not answer: Redis would not answer the next one either.
func (f *withdrawals) try(ctx context.Context, all []withdrawal) []withdrawal {
	var left []withdrawal
	for i, r := range all {
		promoted, err := r.policy.Refund(ctx, r.Request)
		f.promotions.add(promoted...)
		if err == nil || time.Now().After(r.until) {
			continue
		}
		left = append(left, r)
		if errors.Is(err, throttle.ErrUnavailable) && !throttle.ForWorkers.Answered(err) {
			return append(left, all[i+1:]...)
		}
	}
	return left
}

// tryLast tries once more, for a moment, what is left at the end.
func (f *withdrawals) tryLast(left []withdrawal) {
	ctx, cancel := context.WithTimeout(context.Background(), afterTimeout)
	defer cancel()
	for {
		select {
		case r := <-f.waiting:
			left = append(left, r)
			continue
		default:
		}
		break
	}
	for _, r := range left {
		if ctx.Err() != nil {
			return
		}
		_, _ = r.policy.Refund(ctx, r.Request)
	}
}

// promotions moves tasks forward that may come earlier than they were promised, in any
// queue.
type promotions struct {
	*core
	waiting chan throttle.Promotion
	missing map[string]time.Time // jobs whose tasks were not there, since when; only run has it
}

func newPromotions(c *core) *promotions {
	return &promotions{core: c, waiting: make(chan throttle.Promotion, promotionsMax), missing: make(map[string]time.Time)}
}

// add lets jobs come earlier, in the background. It never blocks: a promotion that finds
// no room is dropped, and its job comes later than it could.
func (q *promotions) add(promoted ...throttle.Promotion) {
	for _, p := range promoted {
		select {
		case q.waiting <- p:
		default:
		}
	}
}

// run passes promotions on. All that have come in meanwhile are handled in one call. While
// a slot is free every call names the jobs that may have it, and one by one the work would
// never catch up.
func (q *promotions) run(ctx context.Context, wakers map[string]*waker) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-q.waiting:
			for queue, tasks := range q.gather(p) {
				q.passOn(ctx, queue, tasks, wakers[queue])
			}
		}
	}
}

// gather returns a promotion and those that wait behind it, by queue.
func (q *promotions) gather(first throttle.Promotion) map[string]promotion.Tasks {
	promoted := []throttle.Promotion{first}
	for len(promoted) < promotionsTogether {
		select {
		case p := <-q.waiting:
			promoted = append(promoted, p)
			continue
		default:
		}
		break
	}
	return promotion.ByQueue(promoted...)
}

// passOn lets the promoted tasks of a queue come earlier. Of those that are offered a
// lease it wakes as many as there is room for. Without it all come at the instants that
// they were promised. w is nil for a queue that is not served here.
func (q *promotions) passOn(ctx context.Context, queue string, tasks promotion.Tasks, w *waker) {
	var gone []throttle.BookingRef
	found := func(p throttle.Promotion, code int64) {
		if code == luascripts.Over || q.stayedAway(p) {
			gone = append(gone, p.Place)
		}
	}
	if w != nil {
		w.wakeOffered(ctx, tasks, found)
	}
	if len(tasks) > 0 {
		moved, err := tasks.Retime(ctx, q.rdb, q.keys(queue), found)
		for _, id := range moved {
			q.promoted(ctx, queue, id, tasks[id])
		}
		if err == nil && w != nil {
			w.expect(tasks.First())
		}
	}
	q.cancelBookings(ctx, gone)
}

// stayedAway says that a task that does not exist did not exist [goneAfter] before either.
// Until then it may come: a task that is booked when it is enqueued has its place before it
// is written. The first time, the promotion is handled once more after that.
func (q *promotions) stayedAway(p throttle.Promotion) bool {
	since, known := q.missing[p.Job]
	if known && time.Since(since) < 20*goneAfter {
		if time.Since(since) < goneAfter {
			return false
		}
		delete(q.missing, p.Job)
		return true
	}
	if len(q.missing) >= promotionsMax {
		clear(q.missing)
	}
	q.missing[p.Job] = time.Now()
	time.AfterFunc(goneAfter, func() { q.add(p) })
	return false
}

// cancelBookings gives places up, and lets those come that are next.
func (q *promotions) cancelBookings(ctx context.Context, places []throttle.BookingRef) {
	for some := range slices.Chunk(places, leaveTogether) {
		var wg sync.WaitGroup
		for _, p := range some {
			wg.Go(func() {
				promoted, err := throttle.ForWorkers.CancelBooking(ctx, p)
				if err != nil {
					q.logAndPause(ctx, "the place of a task that is gone can't be given up", err)
				}
				q.add(promoted...)
			})
		}
		wg.Wait()
	}
}

// promoted tells the observer of a task that may come earlier.
func (c *core) promoted(ctx context.Context, queue, id string, p throttle.Promotion) {
	if tell := c.cfg.Observer.Promoted; tell != nil {
		tell(ctx, event.Promoted{Task: event.Task{Queue: queue, ID: id}, At: p.At, Offered: p.Offered})
	}
}

// How far the local clock may be off Redis'. Grants, bookings and instants
// follow Redis' clock alone; asynq's leases and scores follow the local one.
const (
	ClockSkewWarn = time.Second
	ClockSkewMax  = 5 * time.Second
)

// ErrClockSkew is what a refusal to start because of the clock unwraps to.
var ErrClockSkew = errors.New("worker: clock differs from Redis' clock")

// upkeep does once a minute what need not be done often.
type upkeep struct {
	*core
	policies map[string]taskPolicy
	files    *policyFiles
	types    *typeWatch
	purge    []interface{ purge(now time.Time) }
}

// compareClocks returns an error when the local clock is too far off that of Redis; on a Cluster, off that
// of any master.
func (u *upkeep) compareClocks(ctx context.Context) error {
	cluster, ok := u.rdb.(*redis.ClusterClient)
	if !ok {
		return u.compareClock(ctx, u.rdb, precheck.Address(u.rdb))
	}
	var mu sync.Mutex
	var errs []error
	asked := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		err := u.compareClock(ctx, c, c.Options().Addr)
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
		return nil // the others are compared all the same
	})
	return errors.Join(append(errs, asked)...)
}

// compareClock compares the clock of one server.
func (u *upkeep) compareClock(ctx context.Context, c redis.Cmdable, addr string) error {
	before := time.Now()
	server, err := luascripts.Now(ctx, c)
	if err != nil {
		return fmt.Errorf("worker: reading the clock of redis %s: %w", addr, err)
	}
	middle := before.Add(time.Since(before) / 2)
	skew := middle.Sub(server).Round(time.Millisecond)
	switch {
	case skew.Abs() > ClockSkewMax:
		return fmt.Errorf("%w: redis %s: the local clock is %v ahead of its clock, at most %v are allowed; keep both clocks right with NTP: "+
			"asynq's leases and schedules follow the local one",
			ErrClockSkew, addr, skew, ClockSkewMax)
	case skew.Abs() > ClockSkewWarn:
		u.log.Warn("the local clock differs from Redis' clock", zap.String("addr", addr), zap.Duration("ahead", skew))
	}
	return nil
}

// serverWatch notices that another server process answers than before, and that a server's clock was set.
type serverWatch struct {
	*core
	known map[string]serverSeen // by the run id of each master; nil before the first look
}

// serverSeen is a server as it was seen last.
type serverSeen struct {
	addr   string
	clock  time.Time // of the server
	before time.Time // the call that read it began, by the local monotonic clock
	after  time.Time // and ended
}

const (
	serverLookEvery = 3 * time.Second
	clockJumpMin    = time.Second
)

func (w *serverWatch) run(ctx context.Context) {
	every(ctx, serverLookEvery, func(time.Time) { w.look(ctx) })
}

// look compares the servers with those of the look before. While one of them does not answer there
// is nothing to compare.
func (w *serverWatch) look(ctx context.Context) {
	found := make(map[string]serverSeen)
	var mu sync.Mutex
	see := func(ctx context.Context, c redis.UniversalClient, addr string) error {
		id, s, err := seeServer(ctx, c, addr)
		mu.Lock()
		defer mu.Unlock()
		if id != "" {
			found[id] = s
		}
		return err
	}
	var err error
	if cluster, ok := w.rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return see(ctx, c, c.Options().Addr) })
	} else {
		err = see(ctx, w.rdb, precheck.Address(w.rdb))
	}
	if err != nil || len(found) == 0 {
		if err == nil || rediserr.Of(err) == rediserr.Refused {
			w.logOnce("servers", func() {
				w.log.Info("Redis does not say who it is, so a restart or a failover is not noticed", zap.Error(err))
			})
		}
		return
	}
	for id, s := range found {
		old, seen := w.known[id]
		if !seen && w.known != nil {
			w.log.Warn("another Redis server answers: it was restarted, took over, or is new. Writes that it has not seen are forgotten", zap.String("addr", s.addr))
			if tell := w.cfg.Observer.RedisReplaced; tell != nil {
				tell(ctx, event.RedisReplaced{Addr: s.addr})
			}
		}
		if by := old.jump(s); seen && by != 0 {
			w.log.Warn("Redis' clock was set: instants that were told before are wrong by that", zap.String("addr", s.addr), zap.Duration("by", by))
			if tell := w.cfg.Observer.ClockJumped; tell != nil {
				tell(ctx, event.ClockJumped{Addr: s.addr, By: by})
			}
		}
	}
	w.known = found
}

// seeServer asks a server who it is and what time it is. Its id is empty when it does not say.
func seeServer(ctx context.Context, c redis.UniversalClient, addr string) (id string, s serverSeen, err error) {
	pipe := c.Pipeline()
	info, clock := pipe.Info(ctx, "server"), pipe.Time(ctx)
	s = serverSeen{addr: addr, before: time.Now()}
	if _, err := rediserr.Exec(ctx, pipe); err != nil {
		return "", s, err
	}
	s.clock, s.after = clock.Val(), time.Now()
	for line := range strings.Lines(info.Val()) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "run_id":
			id = value
		case "tcp_port":
			if strings.HasPrefix(addr, "(") { // the client of Sentinels knows no address
				s.addr += ", port " + value
			}
		}
	}
	return id, s, nil
}

// jump is by how much a server's clock was set since it was seen before, 0 for hardly: the calls
// took some time.
func (s serverSeen) jump(now serverSeen) time.Duration {
	passed := now.clock.Sub(s.clock)
	switch least, most := now.before.Sub(s.after), now.after.Sub(s.before); {
	case passed > most+clockJumpMin:
		return (passed - most).Round(time.Millisecond)
	case passed < least-clockJumpMin:
		return (passed - least).Round(time.Millisecond)
	}
	return 0
}

// rulesTTL is how long the numbers count that a pool has written.
const rulesTTL = 3 * time.Minute

// run is the work of each minute.
func (u *upkeep) run(ctx context.Context) {
	every(ctx, time.Minute, func(now time.Time) {
		if err := u.compareClocks(ctx); errors.Is(err, ErrClockSkew) {
			u.log.Error("the local clock is far off Redis' clock: tasks may be recovered too early or too late", zap.Error(err))
		}
		u.shareRules(ctx)
		u.types.tellUnseen(now)
		for _, p := range u.purge {
			p.purge(now)
		}
	})
}

// shareRules says with which numbers this pool runs its rules, and logs once
// when another pool runs a rule of the same name with others.
func (u *upkeep) shareRules(ctx context.Context) {
	var own []string
	numbers := make(map[string]string)
	for _, p := range u.policies {
		for _, l := range p.limits.Rules() {
			if numbers[l.Rule()] == "" {
				numbers[l.Rule()] = u.files.limitOf(l).String()
				own = append(own, l.Rule()+" "+numbers[l.Rule()])
			}
		}
	}
	all, err := luascripts.Rules(ctx, u.rdb, u.cfg.Throttle.Prefix, rulesTTL, own)
	if err != nil {
		u.log.Debug("could not compare rules with other pools", zap.Error(err))
		return
	}
	for _, said := range all {
		rule, limit, _ := strings.Cut(said, " ")
		if mine, ok := numbers[rule]; ok && limit != mine && !u.stored(ctx, rule) {
			u.logOnce("rule "+said, func() {
				u.log.Warn("another pool runs this rule with other numbers, or did in the last three minutes; each decides by its own",
					zap.String("rule", rule), zap.String("here", mine), zap.String("there", limit))
			})
		}
	}
}

// stored says that a limit is stored for a rule, by which all pools decide.
func (u *upkeep) stored(ctx context.Context, rule string) bool {
	return u.set.Limiter(rule).LimitStatus(ctx).Stored
}

// present says every few seconds that this pool runs, with its policies and their numbers,
// for an operator who asks which pools there are.
func present(ctx context.Context, c *core, files *policyFiles) {
	p := presence.New(presence.Pool)
	p.Queues = c.cfg.Asynq.Queues
	presence.Run(ctx, c.rdb, c.cfg.Throttle.Prefix, p, func(p *presence.Process) {
		p.Servers, p.Workers, p.Busy = int(c.load.servers.Load()), int(c.load.workers.Load()), int(c.load.running.Load())
		p.Policies = make([]presence.Policy, 0, len(c.cfg.Policies))
		for _, policy := range c.cfg.Policies {
			said := presence.Policy{Type: policy.Type, Charge: policy.Charge.String()}
			for _, r := range policy.Rules {
				if l := c.set.Limiter(r.Name); r.Limit != (throttle.Limit{}) {
					rule := presence.Rule{Name: r.Name, Limit: files.limitOf(l).String()}
					if r.Constant != "" {
						rule.Constant = l.ID(r.Constant)
					}
					said.Rules = append(said.Rules, rule)
					continue
				}
				said.Rules = append(said.Rules, presence.Rule{Name: r.Name, Gate: r.Gate.String()})
			}
			p.Policies = append(p.Policies, said)
		}
	})
}
