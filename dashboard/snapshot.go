package dashboard

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// errBusy says that the budget is spent, and there is nothing to show yet.
var errBusy = errors.New("all viewers together have spent the budget of Redis commands")

const (
	loadFor      = 10 * time.Second // how long a load may take
	snapshotsMax = 200              // views that are kept
	staleMax     = time.Minute      // an older view is not shown while it is being loaded again
	blindCost    = 50               // what a load counts as with a client whose commands can't be counted
)

// snapshots are what views show, shared by all their viewers. When a viewer asks for a view and the
// snapshot is older than `every`, the view is loaded.
type snapshots struct {
	every time.Duration
	meter *meter

	mu  sync.Mutex
	all map[string]*snapshot
}

// snapshot is one view. A snapshot that is handed out never changes.
type snapshot struct {
	value   any
	err     error
	at      time.Time // when it was loaded
	asked   time.Time
	cost    int           // Redis commands of the load
	loading chan struct{} // closed when the load under way has ended; nil for none
}

// get returns a view that is at most so old. Only one load of a view is under way, whoever
// waits for it.
func (s *snapshots) get(ctx context.Context, view string, every time.Duration, load func(context.Context) (any, error)) (snapshot, error) {
	s.mu.Lock()
	at, ok := s.all[view]
	if !ok {
		s.drop()
		at = &snapshot{}
		s.all[view] = at
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
	if known && (at.loading != nil || !s.meter.has()) { // better a little old than late
		defer s.mu.Unlock()
		return *at, nil
	}
	if at.loading == nil {
		at.loading = make(chan struct{})
		go s.load(at, load)
	}
	done := at.loading
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return snapshot{}, context.Cause(ctx)
	case <-done:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return *at, at.err
}

// load fills a view. It goes on when the viewer who began it has left: others may wait.
func (s *snapshots) load(at *snapshot, load func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), loadFor)
	defer cancel()
	var value any
	cost := &loadCost{of: s.meter}
	err := s.meter.wait(ctx)
	if err == nil {
		ctx = context.WithValue(ctx, costKey{}, cost)
		if s.meter.blind {
			s.meter.spend(ctx, blindCost)
		}
		value, err = load(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at.value, at.err, at.at, at.cost = value, err, time.Now(), cost.commands
	close(at.loading)
	at.loading = nil
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

// meter counts Redis commands, and says when the budget is spent. A load may go over the budget;
// the next load waits until that is made up.
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
	commands int // guarded by its meter
}

type costKey struct{}

// scriptCost is what a script counts as: about the commands that one of ours runs inside.
const scriptCost = 8

// fill adds what the time since has given, a second's worth at most.
func (m *meter) fill() {
	now := time.Now()
	m.left = math.Min(m.perSecond, m.left+m.perSecond*now.Sub(m.at).Seconds())
	m.at = now
}

func (m *meter) has() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fill()
	return m.left > 0
}

// wait waits until the budget has something left.
func (m *meter) wait(ctx context.Context) error {
	for {
		m.mu.Lock()
		m.fill()
		owed := -m.left
		m.mu.Unlock()
		if owed < 0 {
			return nil
		}
		t := time.NewTimer(time.Duration((owed + 1) / m.perSecond * float64(time.Second)))
		select {
		case <-ctx.Done():
			t.Stop()
			return errBusy
		case <-t.C:
		}
	}
}

func (m *meter) spend(ctx context.Context, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cost, ok := ctx.Value(costKey{}).(*loadCost); ok {
		cost.commands += n
	}
	m.fill()
	m.left -= float64(n)
	m.total += int64(n)
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
		c.AddHook(meterHook{m, func(ctx context.Context) bool {
			cost, ok := ctx.Value(costKey{}).(*loadCost)
			return ok && cost.of == m
		}})
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
