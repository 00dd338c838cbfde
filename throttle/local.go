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
// anything. Faults of the arguments are reported as by [New].
func NewLocal(rule string, limit Limit, cfg Config) (*Limiter, error) {
	return newOn(newMemoryStore(nil), rule, limit, cfg)
}

// memoryStore counts in this process, by its clock or by one that it is given.
type memoryStore struct{ *memory.Store }

func newMemoryStore(now func() time.Time) memoryStore { return memoryStore{memory.New(now)} }

func newMemoryDesk(now func() time.Time) *desk { return &desk{store: newMemoryStore(now)} }

func (s memoryStore) acquire(ctx context.Context, k luascripts.Limit, a luascripts.AcquireArgs) (luascripts.AcquireReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.AcquireReply{}, err
	}
	return s.Acquire(k, a), nil
}

func (s memoryStore) cancel(ctx context.Context, k luascripts.Limit, a luascripts.CancelArgs) (luascripts.CancelReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.CancelReply{}, err
	}
	return s.Cancel(k, a), nil
}

func (s memoryStore) check(ctx context.Context, bookings []luascripts.CheckArgs) []luascripts.CheckReply {
	out := make([]luascripts.CheckReply, len(bookings))
	for i, b := range bookings {
		if err := ctx.Err(); err != nil {
			out[i].Err = err
			continue
		}
		out[i] = s.Check(b)
	}
	return out
}

func (s memoryStore) peek(ctx context.Context, k luascripts.Limit, a luascripts.PeekArgs) (luascripts.PeekReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.PeekReply{}, err
	}
	return s.Peek(k, a), nil
}

func (s memoryStore) reset(ctx context.Context, k luascripts.Limit, n luascripts.Numbers) (luascripts.CancelReply, error) {
	if err := ctx.Err(); err != nil {
		return luascripts.CancelReply{}, err
	}
	return s.Reset(k, n), nil
}
