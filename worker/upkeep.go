package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/precheck"
	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/throttle"
)

// How far the local clock may be off Redis'. Grants, bookings and instants
// follow Redis' clock alone. asynq's leases and scores follow the local one, but
// not when it is set by more than ClockSkewMax, see localClock.
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
		return fmt.Errorf("%w: redis %s: the local clock is %v ahead of its clock, at most %v are allowed; keep both clocks right with NTP",
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
	clock  time.Time // of the server; zero when it does not tell
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
	var told []serverSeen
	var mu sync.Mutex
	see := func(ctx context.Context, c redis.UniversalClient, addr string) error {
		id, s, err := seeServer(ctx, c, addr)
		mu.Lock()
		defer mu.Unlock()
		if id != "" {
			found[id] = s
		}
		if !s.clock.IsZero() {
			told = append(told, s)
		}
		return err
	}
	var err error
	if cluster, ok := w.rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return see(ctx, c, c.Options().Addr) })
	} else {
		err = see(ctx, w.rdb, precheck.Address(w.rdb))
	}
	w.confirmClock(told)
	if err != nil || len(found) == 0 {
		if kind := rediserr.Of(err); err == nil || kind == rediserr.Refused || kind == rediserr.Barred {
			w.logOnce("servers", func() {
				w.log.Info("Redis does not say who it is, so a restart or a failover is not noticed", zap.Error(err))
			})
		}
		return
	}
	replaced := false
	for id, s := range found {
		old, seen := w.known[id]
		if !seen && w.known != nil {
			replaced = true
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
	if replaced {
		w.nameQueues(ctx)
	}
}

// confirmClock notes that the local clock is right, when most of the servers say so that tell their time.
func (w *serverWatch) confirmClock(told []serverSeen) {
	agree, last := 0, time.Time{}
	for _, s := range told {
		if s.after.Round(0).Sub(s.clock).Abs() <= ClockSkewMax {
			agree++
			last = s.after
		}
	}
	if 2*agree > len(told) {
		w.localClock.right(last)
	}
}

// nameQueues puts the queues of the pool into asynq's list of queues again, which a server without its data lacks. Clients do so for their
// first task of a queue alone, and asynq's tools see only queues of that list.
func (w *serverWatch) nameQueues(ctx context.Context) {
	for queue := range w.cfg.Asynq.Queues {
		if err := queuescripts.NameQueue(ctx, w.rdb, queue); err != nil {
			w.log.Warn("a queue can't be named to a new Redis server: tools may not list it", zap.String("queue", queue), zap.Error(err))
		}
	}
}

// seeServer asks a server who it is and what time it is. Its id is empty when it does not say.
func seeServer(ctx context.Context, c redis.UniversalClient, addr string) (id string, s serverSeen, err error) {
	pipe := c.Pipeline()
	info, clock := pipe.Info(ctx, "server"), pipe.Time(ctx)
	s = serverSeen{addr: addr, before: time.Now()}
	_, err = rediserr.Exec(ctx, pipe)
	s.clock, s.after = clock.Val(), time.Now() // a user may be barred from INFO alone
	if err != nil {
		return "", s, err
	}
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

// localClock knows by how much the local clock was set while the pool runs.
//
// asynq takes instants from the local clock, and compares them with those that other processes took from theirs: the ends of
// leases, when a task is due again, what is due now. By a clock that is wrong this process would recover the tasks of living ones,
// or they its own. So asynq's instants are told as if the clock had not been set, until Redis' clock says that it is right.
//
// The monotonic clock tells at once that the other one was set. Where the machine was suspended the monotonic clock stood still,
// and the next look at Redis says that the other one is right.
//
// It is safe for concurrent use.
type localClock struct {
	last atomic.Pointer[rightInstant] // when it was right last; nil before the start
}

// rightInstant is one instant by both clocks of the machine.
type rightInstant struct{ wall, monotonic time.Time }

// right says that the clock was right at an instant. It has both readings, as time.Now returns them.
func (c *localClock) right(at time.Time) { c.last.Store(&rightInstant{at.Round(0), at}) }

// off is by how much the clock is ahead because it was set, or 0 while that is at most [ClockSkewMax].
func (c *localClock) off() time.Duration {
	last := c.last.Load()
	if last == nil {
		return 0
	}
	now := time.Now()
	if off := now.Round(0).Sub(last.wall) - now.Sub(last.monotonic); off.Abs() > ClockSkewMax {
		return off
	}
	return 0
}

// now is the time by which asynq's instants are to be told.
func (c *localClock) now() time.Time { return time.Now().Add(-c.off()) }

// moveSeconds moves an instant in seconds since 1970.
func (c *localClock) moveSeconds(at int64) int64 {
	return at - int64(c.off().Round(time.Second)/time.Second)
}

// rulesTTL is how long the numbers count that a pool has written.
const rulesTTL = 3 * time.Minute

// run is the work of each minute.
func (u *upkeep) run(ctx context.Context) {
	every(ctx, time.Minute, func(now time.Time) {
		if err := u.compareClocks(ctx); errors.Is(err, ErrClockSkew) {
			u.log.Error("the local clock is far off Redis' clock: leases, retries and what is due go on as if it had not been set", zap.Error(err))
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
	all, err := queuescripts.Rules(ctx, u.rdb, u.cfg.Throttle.Prefix, rulesTTL, own)
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
	p.KeyForm = presence.KeyForm(c.cfg.Throttle.Secret, c.cfg.Throttle.PerClient)
	if c.cfg.Throttle.HoldAfterFailover {
		p.Hold, _ = luascripts.Library()
	}
	presence.Run(ctx, c.rdb, c.cfg.Throttle.Prefix, p, func(p *presence.Process) {
		p.Servers, p.Workers, p.Busy = int(c.load.servers.Load()), int(c.load.workers.Load()), int(c.load.running.Load())
		p.Policies = make([]presence.Policy, 0, len(c.cfg.Policies))
		for _, policy := range c.cfg.Policies {
			said := presence.Policy{Type: policy.Type, Charge: policy.Charge.String()}
			for _, r := range policy.Rules {
				if l := c.set.Limiter(r.Name); r.Limit != (throttle.Limit{}) {
					rule := presence.Rule{Name: r.Name, Limit: files.limitOf(l).String(), PerKey: r.LimitOf != nil}
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

const (
	// sweepEvery is how often one of the pools sweeps a queue in which something waits.
	sweepEvery = 400 * time.Millisecond
	// sweepPortion bounds how many deferred tasks a script of a sweep looks at.
	sweepPortion = 200
	// sweepMost bounds how many portions in a row of tasks that are gone a sweep clears.
	sweepMost = 50
	// sweepLines bounds the lines for leases that a sweep asks about.
	sweepLines = 32
)

// sweeper finds what nobody tells: tasks that were deleted or archived while they waited,
// whose places are then given up, and free leases whose next in line died. A sweep looks at
// the tasks that are due next, where a place that is left costs most, and at a portion of
// the others, in turn. What it does not see in time is found when its instant comes.
type sweeper struct {
	*waker
	from time.Time // where the portion of the others begins; zero behind those that are due next
	skip int       // how many tasks of that very instant were seen
}

func (s *sweeper) run(ctx context.Context) {
	every(ctx, sweepEvery, func(time.Time) {
		if !s.hasDeferred() {
			return
		}
		if ours, err := queuescripts.ClaimSweep(ctx, s.rdb, s.keys, sweepEvery*7/8); err == nil && ours {
			s.sweep(ctx)
		}
	})
}

func (s *sweeper) sweep(ctx context.Context) {
	lines := make(map[lineKey]throttle.BookingRef)
	first, ok := s.portion(ctx, time.Time{}, 0, lines)
	for n := 1; ok && n < sweepMost && len(first.Tasks) == sweepPortion && countEnded(first.Tasks) > sweepPortion/2; n++ {
		first, ok = s.portion(ctx, time.Time{}, 0, lines)
	}
	switch {
	case !ok:
		return
	case len(first.Tasks) < sweepPortion: // that was all
		s.from, s.skip = time.Time{}, 0
	default:
		if s.from.IsZero() {
			s.advance(first.Tasks)
		}
		others, _ := s.portion(ctx, s.from, s.skip, lines)
		s.advance(others.Tasks)
	}
	s.offer(ctx, lines)
}

// portion looks at some deferred tasks, clears away those that are gone, and notes the
// lines for leases of the others.
func (s *sweeper) portion(ctx context.Context, from time.Time, skip int, lines map[lineKey]throttle.BookingRef) (queuescripts.ScanDeferredReply, bool) {
	r, err := queuescripts.ScanDeferredWithStates(ctx, s.rdb, s.keys, from, skip, sweepPortion)
	if err != nil {
		s.logAndPause(ctx, "the due index can't be read", err)
		return r, false
	}
	var ended []dueTask
	for _, d := range r.Tasks {
		t := dueTask{DueTask: d}
		t.record, t.known = queuescripts.ParseWaitRecord(d.Record)
		if hasEnded(d) {
			ended = append(ended, t)
		} else {
			s.noteLines(t, lines)
			s.recordWait(d.Wait.RuleOf(t.record.Booking), d.Record, d.At)
		}
	}
	s.clearEnded(ctx, ended, time.Now())
	return r, true
}

// hasEnded says that a task never runs again by itself: it was deleted, archived or completed.
func hasEnded(t queuescripts.DueTask) bool {
	return t.State == "" || t.State == "archived" || t.State == "completed"
}

func countEnded(tasks []queuescripts.DueTask) (n int) {
	for _, t := range tasks {
		if hasEnded(t) {
			n++
		}
	}
	return n
}

// advance moves the portion of the others behind these tasks, and to the beginning when
// there are none. Tasks of one instant that went meanwhile may make it pass some: they are
// seen the next time.
func (s *sweeper) advance(tasks []queuescripts.DueTask) {
	if len(tasks) == 0 {
		s.from, s.skip = time.Time{}, 0
		return
	}
	for _, t := range tasks {
		if !t.At.Equal(s.from) {
			s.from, s.skip = t.At, 0
		}
		s.skip++
	}
}

// noteLines notes in which lines for leases a task may wait.
func (s *sweeper) noteLines(t dueTask, lines map[lineKey]throttle.BookingRef) {
	p, ok := s.bookingOf(t)
	if !ok {
		return
	}
	for i, l := range p.Policy.Rules() {
		if len(lines) < sweepLines && throttle.ForWorkers.LimitLastKnown(l).IsConcurrent() {
			lines[lineKey{l.Rule(), p.IDs[i]}] = throttle.BookingRef{Policy: l.Policy(), IDs: p.IDs[i : i+1], Costs: []int{1}}
		}
	}
}

// offer asks which job is next in some lines, so that a free lease is offered to that one. These
// bookings name no job: to give them up takes nobody out of a line.
func (s *sweeper) offer(ctx context.Context, lines map[lineKey]throttle.BookingRef) {
	places := make([]throttle.BookingRef, 0, len(lines))
	for _, p := range lines {
		places = append(places, p)
	}
	s.promotions.cancelBookings(ctx, places)
}
