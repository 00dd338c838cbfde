package throttle

import (
	"context"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/fake"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/memory"
)

// NewLocal returns a limiter that counts in the memory of this process instead
// of in Redis: the same type, the same limits and the same line, for tests, for
// programs of one process, and for what a process may do by itself. It is never
// unavailable. What it counted ends with it. Limiters of the same name do not share
// anything, so a [Policy] has none but one of them. Faults of the arguments are reported as by [New].
func NewLocal(rule string, limit Limit, cfg Config) (*Limiter, error) {
	l, err := newRule(newMemoryStore(nil), rule, limit, cfg)
	if err != nil {
		return nil, err
	}
	l.policy = newPolicy([]*Limiter{l})
	return l, nil
}

// memoryStore counts in this process, by its clock or by one that it is given.
type memoryStore struct{ *memory.Store }

func newMemoryStore(now func() time.Time) memoryStore { return memoryStore{memory.New(now)} }

func (s memoryStore) acquire(ctx context.Context, c *limitscripts.Call, _ undoer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.AcquireReply = s.Acquire(c.AcquireArgs)
	return nil
}

func (s memoryStore) cancel(ctx context.Context, a limitscripts.CancelArgs) (limitscripts.CancelReply, error) {
	if err := ctx.Err(); err != nil {
		return limitscripts.CancelReply{}, err
	}
	return s.Cancel(a), nil
}

func (s memoryStore) close(ctx context.Context, a limitscripts.CloseArgs) (limitscripts.CloseReply, error) {
	if err := ctx.Err(); err != nil {
		return limitscripts.CloseReply{}, err
	}
	return s.Close(a), nil
}

func (s memoryStore) adjust(ctx context.Context, a limitscripts.AdjustArgs) (limitscripts.CancelReply, error) {
	if err := ctx.Err(); err != nil {
		return limitscripts.CancelReply{}, err
	}
	return s.Adjust(a), nil
}

func (s memoryStore) release(ctx context.Context, p limitscripts.RuleCall, token uint64) (limitscripts.ReleaseReply, error) {
	if err := ctx.Err(); err != nil {
		return limitscripts.ReleaseReply{}, err
	}
	return s.Release(p, token), nil
}

func (s memoryStore) peek(ctx context.Context, k limitscripts.LimitKeys, a limitscripts.PeekArgs) (limitscripts.PeekReply, error) {
	if err := ctx.Err(); err != nil {
		return limitscripts.PeekReply{}, err
	}
	return s.Peek(k, a), nil
}

func (s memoryStore) reset(ctx context.Context, k limitscripts.LimitKeys, n limitscripts.Numbers) (limitscripts.CancelReply, error) {
	if err := ctx.Err(); err != nil {
		return limitscripts.CancelReply{}, err
	}
	return s.Reset(k, n), nil
}

func (s memoryStore) refresh(ctx context.Context, bookings []limitscripts.RefreshArgs) []limitscripts.RefreshReply {
	out := make([]limitscripts.RefreshReply, len(bookings))
	for i, b := range bookings {
		if out[i].Err = ctx.Err(); out[i].Err == nil {
			out[i] = s.Refresh(b)
		}
	}
	return out
}

func (s memoryStore) renew(ctx context.Context, leases []limitscripts.RenewArgs) []limitscripts.RenewReply {
	out := make([]limitscripts.RenewReply, len(leases))
	for i, l := range leases {
		if out[i].Err = ctx.Err(); out[i].Err == nil {
			out[i] = s.Renew(l.RuleCall, l.Token)
		}
	}
	return out
}

// memoryLimits stores limits in this process. The zero value is ready.
type memoryLimits struct {
	now func() time.Time // nil for the local clock

	mu      sync.Mutex
	rules   map[string]memoryLimit
	changed chan struct{} // closed at the next change
}

type memoryLimit struct {
	text    string
	version int64
	until   time.Time // zero for ever

	replaced []string // as in storedLimit

	closed  time.Time
	closing int64
}

func (s *memoryLimits) stored(_ context.Context, rule string) storedLimit {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.getLocked(rule)
	return storedLimit{text: m.text, version: m.version, replaced: m.replaced, closed: m.closed, closing: m.closing}
}

func (s *memoryLimits) closeRule(_ context.Context, rule string, d time.Duration) (time.Time, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, now := s.getLocked(rule), orNow(s.now)
	m.closing = max(now.UnixMicro(), m.closing+1)
	switch until := now.Add(d); {
	case d == 0, d < 0 && !m.closed.After(now):
		m.closed = time.Time{}
	case d > 0 && until.After(m.closed):
		m.closed = until
	}
	s.putLocked(rule, m)
	return m.closed, m.closing, nil
}

func (s *memoryLimits) getLocked(rule string) memoryLimit {
	m := s.rules[rule]
	if !m.until.IsZero() && !orNow(s.now).Before(m.until) {
		m.text, m.replaced = "", nil
	}
	return m
}

func (s *memoryLimits) change(_ context.Context, rule string, c limitChange) (bool, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.getLocked(rule)
	if c.absent && old.text != "" || c.text == "" && old.text == "" || c.replaced != nil && c.version != old.version {
		return false, old.version, nil
	}
	now := orNow(s.now)
	m := memoryLimit{text: c.text, version: even(max(now.UnixMicro(), old.version+1)), replaced: c.replaced, closed: old.closed, closing: old.closing}
	if c.ttl > 0 {
		m.until = now.Add(c.ttl)
	}
	s.putLocked(rule, m)
	return true, m.version, nil
}

// even is a version of a stored limit, not before v: those of [Config.LimitOf] are odd.
func even(v int64) int64 { return v + v&1 }

func (s *memoryLimits) putLocked(rule string, m memoryLimit) {
	if s.rules == nil {
		s.rules = make(map[string]memoryLimit)
	}
	s.rules[rule] = m
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// changes rings for a change of any rule.
func (s *memoryLimits) changes(ctx context.Context, _ string) (wait func(time.Duration), stop func()) {
	next := s.next()
	wait = func(d time.Duration) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-next:
			next = s.next()
		}
	}
	return wait, func() {}
}

func (s *memoryLimits) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// fakeServer is what the limiters of one [fake.Client] share.
type fakeServer struct {
	store  *faultyStore
	limits *memoryLimits
}

// newFake returns a limiter for package throttletest. The limiters of one client
// count together in the memory of this process, as on one server, by the clock of
// the client's source, and fail when the source says so.
func newFake(c *fake.Client, rule string, limit Limit, cfg Config) (*Limiter, error) {
	on := c.Server(func() any {
		return &fakeServer{&faultyStore{&memoryStore{memory.New(c.Now)}, c.Fault}, &memoryLimits{now: c.Now}}
	}).(*fakeServer)
	l, err := newRule(on.store, rule, limit, cfg)
	if err != nil {
		return nil, err
	}
	l.limits = faultyLimits{on.limits, l.cfg.Prefix, c.Fault}
	l.remembered.always = true // what is known ages by the local clock, not by that of the source
	l.fallbackNow, l.decided = c.Now, c.Decided
	l.joined = func(p *Policy) {
		c.Join(func() {
			p.fallback.available() // or it would not be asked for a while of real time
			for _, l := range p.rules {
				l.waiters.wakeAll()
			}
		})
	}
	l.policy = newPolicy([]*Limiter{l})
	return l, nil
}

// faultyStore counts in memory, and fails when it is told to.
type faultyStore struct {
	*memoryStore
	fault func() error
}

func (s *faultyStore) acquire(ctx context.Context, c *limitscripts.Call, by undoer) error {
	if err := s.fault(); err != nil {
		return err
	}
	return s.memoryStore.acquire(ctx, c, by)
}

func (s *faultyStore) cancel(ctx context.Context, a limitscripts.CancelArgs) (limitscripts.CancelReply, error) {
	if err := s.fault(); err != nil {
		return limitscripts.CancelReply{}, err
	}
	return s.memoryStore.cancel(ctx, a)
}

func (s *faultyStore) close(ctx context.Context, a limitscripts.CloseArgs) (limitscripts.CloseReply, error) {
	if err := s.fault(); err != nil {
		return limitscripts.CloseReply{}, err
	}
	return s.memoryStore.close(ctx, a)
}

func (s *faultyStore) adjust(ctx context.Context, a limitscripts.AdjustArgs) (limitscripts.CancelReply, error) {
	if err := s.fault(); err != nil {
		return limitscripts.CancelReply{}, err
	}
	return s.memoryStore.adjust(ctx, a)
}

func (s *faultyStore) release(ctx context.Context, p limitscripts.RuleCall, token uint64) (limitscripts.ReleaseReply, error) {
	if err := s.fault(); err != nil {
		return limitscripts.ReleaseReply{}, err
	}
	return s.memoryStore.release(ctx, p, token)
}

func (s *faultyStore) peek(ctx context.Context, k limitscripts.LimitKeys, a limitscripts.PeekArgs) (limitscripts.PeekReply, error) {
	if err := s.fault(); err != nil {
		return limitscripts.PeekReply{}, err
	}
	return s.memoryStore.peek(ctx, k, a)
}

func (s *faultyStore) reset(ctx context.Context, k limitscripts.LimitKeys, n limitscripts.Numbers) (limitscripts.CancelReply, error) {
	if err := s.fault(); err != nil {
		return limitscripts.CancelReply{}, err
	}
	return s.memoryStore.reset(ctx, k, n)
}

func (s *faultyStore) refresh(ctx context.Context, bookings []limitscripts.RefreshArgs) []limitscripts.RefreshReply {
	err := s.fault()
	if err == nil {
		return s.memoryStore.refresh(ctx, bookings)
	}
	out := make([]limitscripts.RefreshReply, len(bookings))
	for i := range out {
		out[i].Err = err
	}
	return out
}

func (s *faultyStore) renew(ctx context.Context, leases []limitscripts.RenewArgs) []limitscripts.RenewReply {
	err := s.fault()
	if err == nil {
		return s.memoryStore.renew(ctx, leases)
	}
	out := make([]limitscripts.RenewReply, len(leases))
	for i := range out {
		out[i].Err = err
	}
	return out
}

// faultyLimits stores limits for all prefixes, unless it is to fail.
type faultyLimits struct {
	*memoryLimits
	prefix string
	fault  func() error
}

// name has a byte in it that no prefix has.
func (s faultyLimits) name(rule string) string { return s.prefix + ":" + rule }

func (s faultyLimits) stored(ctx context.Context, rule string) storedLimit {
	if err := s.fault(); err != nil {
		return storedLimit{err: err}
	}
	return s.memoryLimits.stored(ctx, s.name(rule))
}

func (s faultyLimits) change(ctx context.Context, rule string, c limitChange) (bool, int64, error) {
	if err := s.fault(); err != nil {
		return false, 0, err
	}
	return s.memoryLimits.change(ctx, s.name(rule), c)
}

func (s faultyLimits) closeRule(ctx context.Context, rule string, d time.Duration) (time.Time, int64, error) {
	if err := s.fault(); err != nil {
		return time.Time{}, 0, err
	}
	return s.memoryLimits.closeRule(ctx, s.name(rule), d)
}

// orNow is a clock, or the local one.
func orNow(now func() time.Time) time.Time {
	if now == nil {
		return time.Now()
	}
	return now()
}
