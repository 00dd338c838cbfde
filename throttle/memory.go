package throttle

import (
	"context"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/memory"
	"github.com/headwayq/headway/throttle/internal/fake"
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

func newMemoryDesk(now func() time.Time) *clockedStore {
	return &clockedStore{store: newMemoryStore(now)}
}

func (s memoryStore) acquire(ctx context.Context, c *luascripts.Call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.AcquireReply = s.Acquire(c.AcquireArgs)
	return nil
}

func (s memoryStore) cancel(ctx context.Context, a luascripts.CancelArgs) (luascripts.CancelReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.CancelReply{}, err
	}
	return s.Cancel(a), nil
}

func (s memoryStore) close(ctx context.Context, a luascripts.CloseArgs) (luascripts.CloseReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.CloseReply{}, err
	}
	return s.Close(a), nil
}

func (s memoryStore) adjust(ctx context.Context, a luascripts.AdjustArgs) (luascripts.CancelReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.CancelReply{}, err
	}
	return s.Settle(a), nil
}

func (s memoryStore) release(ctx context.Context, p luascripts.RuleCall, token uint64) (luascripts.ReleaseReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.ReleaseReply{}, err
	}
	return s.Release(p, token), nil
}

func (s memoryStore) peek(ctx context.Context, k luascripts.LimitKeys, a luascripts.PeekArgs) (luascripts.PeekReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.PeekReply{}, err
	}
	return s.Peek(k, a), nil
}

func (s memoryStore) reset(ctx context.Context, k luascripts.LimitKeys, n luascripts.Numbers) (luascripts.CancelReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.CancelReply{}, err
	}
	return s.Reset(k, n), nil
}

func (s memoryStore) refresh(ctx context.Context, bookings []luascripts.RefreshArgs) []luascripts.RefreshReply {
	out := make([]luascripts.RefreshReply, len(bookings))
	for i, b := range bookings {
		if out[i].Err = ctx.Err(); out[i].Err == nil {
			out[i] = s.Check(b)
		}
	}
	return out
}

func (s memoryStore) renew(ctx context.Context, leases []luascripts.RenewArgs) []luascripts.RenewReply {
	out := make([]luascripts.RenewReply, len(leases))
	for i, l := range leases {
		if out[i].Err = ctx.Err(); out[i].Err == nil {
			out[i] = s.Renew(l.RuleCall, l.Token)
		}
	}
	return out
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
	l.force.always = true // what is known ages by the local clock, not by that of the source
	l.fallbackNow = c.Now
	l.joined = func(p *Policy) {
		c.Join(func() {
			p.availability.available() // or it would not be asked for a while of real time
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

func (s *faultyStore) acquire(ctx context.Context, c *luascripts.Call) error {
	if err := s.fault(); err != nil {
		return err
	}
	return s.memoryStore.acquire(ctx, c)
}

func (s *faultyStore) cancel(ctx context.Context, a luascripts.CancelArgs) (luascripts.CancelReply, error) {
	if err := s.fault(); err != nil {
		return luascripts.CancelReply{}, err
	}
	return s.memoryStore.cancel(ctx, a)
}

func (s *faultyStore) close(ctx context.Context, a luascripts.CloseArgs) (luascripts.CloseReply, error) {
	if err := s.fault(); err != nil {
		return luascripts.CloseReply{}, err
	}
	return s.memoryStore.close(ctx, a)
}

func (s *faultyStore) adjust(ctx context.Context, a luascripts.AdjustArgs) (luascripts.CancelReply, error) {
	if err := s.fault(); err != nil {
		return luascripts.CancelReply{}, err
	}
	return s.memoryStore.adjust(ctx, a)
}

func (s *faultyStore) release(ctx context.Context, p luascripts.RuleCall, token uint64) (luascripts.ReleaseReply, error) {
	if err := s.fault(); err != nil {
		return luascripts.ReleaseReply{}, err
	}
	return s.memoryStore.release(ctx, p, token)
}

func (s *faultyStore) peek(ctx context.Context, k luascripts.LimitKeys, a luascripts.PeekArgs) (luascripts.PeekReply, error) {
	if err := s.fault(); err != nil {
		return luascripts.PeekReply{}, err
	}
	return s.memoryStore.peek(ctx, k, a)
}

func (s *faultyStore) reset(ctx context.Context, k luascripts.LimitKeys, n luascripts.Numbers) (luascripts.CancelReply, error) {
	if err := s.fault(); err != nil {
		return luascripts.CancelReply{}, err
	}
	return s.memoryStore.reset(ctx, k, n)
}

func (s *faultyStore) refresh(ctx context.Context, bookings []luascripts.RefreshArgs) []luascripts.RefreshReply {
	err := s.fault()
	if err == nil {
		return s.memoryStore.refresh(ctx, bookings)
	}
	out := make([]luascripts.RefreshReply, len(bookings))
	for i := range out {
		out[i].Err = err
	}
	return out
}

func (s *faultyStore) renew(ctx context.Context, leases []luascripts.RenewArgs) []luascripts.RenewReply {
	err := s.fault()
	if err == nil {
		return s.memoryStore.renew(ctx, leases)
	}
	out := make([]luascripts.RenewReply, len(leases))
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
