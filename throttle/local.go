package throttle

import (
	"context"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/memory"
)

// NewLocal returns a limiter that counts in the memory of this process instead
// of in Redis: the same type, the same limits and the same line, for tests, for
// programs of one process, and for what a process may do by itself. It is never
// away. What it counted ends with it. Limiters of the same name do not share
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
