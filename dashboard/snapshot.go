package dashboard

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// errBusy says that a load can't start soon enough.
var errBusy = errors.New("all viewers together have spent the budget of Redis commands")

// errFault says that a load did not come to an end. What it panicked with may hold a key.
var errFault = errors.New("dashboard: a fault in the dashboard kept this page from being made")

const (
	loadFor      = 10 * time.Second // how long a load may take
	startWithin  = 10 * time.Second // a load that would start later is refused
	loadsMax     = 8                // loads that are under way at once
	waitingMax   = 100              // loads that wait to start
	snapshotsMax = 200              // views that are kept: more than can be loading
	staleMax     = time.Minute      // an older view is not shown while it is being loaded again
	firstCost    = 50               // what the first load of a page is estimated at
	debtMax      = 2                // seconds of the budget: more that nobody expected is not made up
	blindCost    = 50               // what a load counts as with a client whose commands can't be counted
)

// snapshots are what views show, shared by all their viewers. When a viewer asks for a view and the
// snapshot is older than `every`, the view is loaded.
//
// Few loads are under way at once, and a load pays what it is estimated at before it starts. A load
// that another one needs starts at once, as a part of that: it would be a deadlock otherwise.
type snapshots struct {
	every time.Duration
	meter *meter
	slots chan struct{} // one for each load under way

	mu      sync.Mutex
	all     map[string]*snapshot
	waiting int            // loads that wait to start
	costs   map[string]int // of the last load, by kind of view
}

func newSnapshots(every time.Duration, m *meter) *snapshots {
	return &snapshots{every: every, meter: m, slots: make(chan struct{}, loadsMax), all: make(map[string]*snapshot), costs: make(map[string]int)}
}

// snapshot is one view. A snapshot that is handed out never changes.
type snapshot struct {
	value   any
	err     error
	at      time.Time // when it was loaded
	asked   time.Time
	cost    int   // Redis commands of the load
	loading *load // that is under way; nil for none
}

// load is one load of a view.
type load struct {
	view    string
	run     func(context.Context) (any, error)
	cost    *loadCost
	done    chan struct{} // closed when it has ended
	busy    bool          // it did not start; read after done
	needed  chan struct{} // closed when a load that is under way waits for it
	hurry   func()        // closes needed
	viewers int           // that wait for it
	cancel  context.CancelFunc
}

// get returns a view that is at most so old. Only one load of a view is under way, whoever
// waits for it.
func (s *snapshots) get(ctx context.Context, view string, every time.Duration, run func(context.Context) (any, error)) (snapshot, error) {
	outer := s.meter.costIn(ctx)
	s.mu.Lock()
	at, ok := s.all[view]
	if !ok {
		at = &snapshot{}
	}
	now := time.Now()
	at.asked = now
	// A viewer comes back after `every`. The view was loaded a little after its last request, so it is a
	// little younger than `every`. It counts as old, or a lone viewer would see each change one visit late.
	if fresh := !at.at.IsZero() && now.Sub(at.at) < every-every/10; fresh {
		defer s.mu.Unlock()
		return *at, at.err
	}
	known := !at.at.IsZero() && at.err == nil && now.Sub(at.at) < staleMax
	if known && (at.loading != nil || !s.meter.has(s.estimate(view))) { // better a little old than late
		defer s.mu.Unlock()
		return *at, nil
	}
	if at.loading == nil {
		l := &load{view: view, run: run, cost: &loadCost{of: s.meter, outer: outer}, done: make(chan struct{}), needed: make(chan struct{})}
		l.hurry = sync.OnceFunc(func() { close(l.needed) })
		if outer == nil {
			wait, err := s.book(l.cost, view)
			if err != nil {
				defer s.mu.Unlock()
				return snapshot{}, err
			}
			l.cost.wait = wait
		}
		var loadCtx context.Context
		loadCtx, l.cancel = context.WithCancel(context.Background())
		at.loading = l
		if !ok {
			s.drop()
			s.all[view] = at
		}
		go s.load(loadCtx, at, l)
	}
	l := at.loading
	if outer != nil {
		l.hurry()
	}
	l.viewers++
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		s.leave(at, l)
		return snapshot{}, context.Cause(ctx)
	case <-l.done:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.busy {
		return snapshot{}, errBusy
	}
	return *at, at.err
}

// leave ends a load that nobody waits for any more. The snapshot that was there before stays.
func (s *snapshots) leave(at *snapshot, l *load) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.viewers--; l.viewers > 0 || at.loading != l {
		return
	}
	l.cancel()
	if s.all[l.view] != at {
		return
	}
	if delete(s.all, l.view); !at.at.IsZero() {
		before := *at
		before.loading = nil
		s.all[l.view] = &before
	}
}

// load fills a view. A panic of what it runs must not end the program that the dashboard is in.
func (s *snapshots) load(ctx context.Context, at *snapshot, l *load) {
	defer l.cancel()
	var value any
	err, started := errFault, false
	defer func() {
		_ = recover() // err says so
		s.mu.Lock()
		defer s.mu.Unlock()
		if at.loading, l.busy = nil, !started; started {
			at.value, at.err, at.at, at.cost = value, err, time.Now(), s.meter.spentBy(l.cost)
		} else if at.at.IsZero() && s.all[l.view] == at {
			delete(s.all, l.view)
		}
		close(l.done)
	}()
	end, err := s.start(ctx, l.cost, l.view, l.needed)
	if started = err == nil; !started {
		return
	}
	defer end()
	err = errFault
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, costKey{}, l.cost), loadFor)
	defer cancel()
	if s.meter.blind {
		s.meter.spend(ctx, blindCost)
	}
	value, err = l.run(ctx)
}

// changeKind is the kind of all changes.
const changeKind = "change"

// enter waits until work that is no view, such as a change, may start. Loads that it needs are parts
// of it. The caller says when it has ended.
func (s *snapshots) enter(ctx context.Context, kind string) (inside context.Context, end func(), err error) {
	cost := &loadCost{of: s.meter}
	s.mu.Lock()
	cost.wait, err = s.book(cost, kind)
	s.mu.Unlock()
	if err == nil {
		end, err = s.start(ctx, cost, kind, nil)
	}
	if err != nil {
		return nil, nil, err
	}
	inside = context.WithValue(ctx, costKey{}, cost)
	if s.meter.blind {
		s.meter.spend(inside, blindCost)
	}
	return inside, end, nil
}

// kindOf is what views have in common that cost about the same: the first word of their names.
func kindOf(view string) string {
	if n := strings.IndexAny(view, "? "); n >= 0 {
		return view[:n]
	}
	return view
}

// estimate is what the last load of the kind has cost. The cost of a change says little about the next one:
// one that cancelled 100,000 tasks must not make the next change wait for minutes, nor the pages behind it.
// So a change is estimated at a second of the budget at most.
func (s *snapshots) estimate(view string) int {
	n := cmp.Or(s.costs[kindOf(view)], firstCost)
	if view == changeKind {
		n = min(n, int(s.meter.perSecond))
	}
	return n
}

// book takes a place among the loads that wait to start, and pays the estimate. It refuses at once
// what would start too late.
func (s *snapshots) book(cost *loadCost, view string) (wait time.Duration, err error) {
	if s.waiting >= waitingMax {
		return 0, errBusy
	}
	wait, ok := s.meter.book(cost, s.estimate(view))
	if !ok {
		return 0, errBusy
	}
	s.waiting++
	return wait, nil
}

// start waits until what was booked may start, or a load under way needs it. What an inner load
// needs was never booked, and starts at once.
func (s *snapshots) start(ctx context.Context, cost *loadCost, view string, needed <-chan struct{}) (end func(), err error) {
	if cost.outer != nil {
		return func() {}, nil
	}
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	giveUp, paid := time.NewTimer(startWithin), time.NewTimer(cost.wait)
	defer giveUp.Stop()
	defer paid.Stop()
	slot := false
	select {
	case <-paid.C:
		select {
		case s.slots <- struct{}{}:
			slot = true
		case <-needed:
		case <-ctx.Done():
		case <-giveUp.C:
			err = errBusy
		}
	case <-needed:
	case <-ctx.Done():
	}
	free := func() {
		if slot {
			<-s.slots
		}
	}
	if err != nil || ctx.Err() != nil { // of two that are ready, select takes any
		free()
		s.meter.settle(cost)
		return nil, errBusy
	}
	return func() {
		free()
		n := s.meter.settle(cost)
		s.mu.Lock()
		s.costs[kindOf(view)] = n
		s.mu.Unlock()
	}, nil
}

// forget makes all views be loaded anew: something was changed.
func (s *snapshots) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for view, at := range s.all {
		if at.loading == nil {
			delete(s.all, view)
		}
	}
}

// drop forgets the view that nobody asked for the longest, when there are too many.
func (s *snapshots) drop() {
	if len(s.all) < snapshotsMax {
		return
	}
	oldest := ""
	for view, at := range s.all {
		if at.loading == nil && (oldest == "" || at.asked.Before(s.all[oldest].asked)) {
			oldest = view
		}
	}
	delete(s.all, oldest)
}

// meter counts Redis commands, and says when the budget is spent. A load may cost more than it was
// estimated at; the next load waits until that is made up, but not for more than debtMax seconds of the
// budget: nobody could look at anything for minutes after one large change.
type meter struct {
	perSecond float64
	blind     bool // commands can't be counted: each load counts as blindCost

	mu    sync.Mutex
	left  float64
	at    time.Time
	total int64
}

// loadCost is what a load has cost, in Redis commands. It travels in the context of the load.
type loadCost struct {
	of       *meter
	outer    *loadCost     // of the load that needs this one; nil for none
	wait     time.Duration // until it may start
	commands int           // with those of inner loads; guarded by its meter, as paid is
	paid     int           // ahead, and not spent
}

type costKey struct{}

// costIn is the load of a context; nil for none.
func (m *meter) costIn(ctx context.Context) *loadCost {
	if cost, ok := ctx.Value(costKey{}).(*loadCost); ok && cost.of == m {
		return cost
	}
	return nil
}

// scriptCost is what a script counts as: about the commands that one of ours runs inside.
const scriptCost = 8

// fill adds what the time since has given, a second's worth at most.
func (m *meter) fill() {
	now := time.Now()
	m.left = math.Min(m.perSecond, m.left+m.perSecond*now.Sub(m.at).Seconds())
	m.at = now
}

// lack is what the budget lacks for n commands. For more than a second gives, all of a second's
// is enough.
func (m *meter) lack(n int) float64 {
	m.fill()
	return math.Min(float64(n), m.perSecond) - m.left
}

func (m *meter) has(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lack(n) <= 0
}

// book pays n commands ahead, and says after which time the budget has them. It pays nothing when
// that is too long.
func (m *meter) book(cost *loadCost, n int) (wait time.Duration, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wait = time.Duration(max(0, m.lack(n)) / m.perSecond * float64(time.Second))
	if wait >= startWithin {
		return 0, false
	}
	m.left -= float64(n)
	cost.paid = n
	return wait, true
}

// settle gives back what was paid ahead and not spent. It returns what was spent.
func (m *meter) settle(cost *loadCost) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fill()
	m.left += float64(cost.paid)
	cost.paid = 0
	return cost.commands
}

// spentBy is what a load has cost so far: a load that it needed may go on for others.
func (m *meter) spentBy(cost *loadCost) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cost.commands
}

func (m *meter) spend(ctx context.Context, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fill()
	m.total += int64(n)
	unpaid := n
	for cost := m.costIn(ctx); cost != nil; cost = cost.outer {
		cost.commands += n
		ahead := min(n, cost.paid) // only an outermost load has paid
		cost.paid -= ahead
		unpaid -= ahead
	}
	// Loads that are booked may have brought it further down: what they have paid is still to be made up.
	m.left = max(m.left-float64(unpaid), min(m.left, -debtMax*m.perSecond))
}

// metered is a client whose commands are counted. It shares the connections of rdb, and the
// caller's own commands are not counted. A cluster's client can't be copied with its connections:
// it gets a hook for good, which counts the commands of loads and leaves all others alone.
func metered(rdb redis.UniversalClient, m *meter) redis.UniversalClient {
	switch c := rdb.(type) {
	case *redis.Client:
		clone := c.WithTimeout(loadFor)
		clone.AddHook(meterHook{m, func(context.Context) bool { return true }})
		return clone
	case *redis.ClusterClient:
		c.AddHook(meterHook{m, func(ctx context.Context) bool { return m.costIn(ctx) != nil }})
	default:
		m.blind = true
	}
	return rdb
}

// meterHook counts the commands that are the dashboard's own, as their context says.
type meterHook struct {
	m   *meter
	own func(context.Context) bool
}

func costOf(cmd redis.Cmder) int {
	switch cmd.Name() {
	case "evalsha", "eval", "fcall", "evalsha_ro", "fcall_ro":
		return scriptCost
	}
	return 1
}

func (h meterHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h meterHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.own(ctx) {
			h.m.spend(ctx, costOf(cmd))
		}
		return next(ctx, cmd)
	}
}

func (h meterHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n := 0
		for _, cmd := range cmds {
			n += costOf(cmd)
		}
		if h.own(ctx) {
			h.m.spend(ctx, n)
		}
		return next(ctx, cmds)
	}
}
