package throttle

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// store is where permits are counted and lines stand: Redis, or the memory of
// this process. Each call is atomic; an error means that it is not known
// whether the call took effect.
type store interface {
	// acquire puts the answer into the call, which is not used again after an error.
	acquire(ctx context.Context, c *luascripts.Call) error
	cancel(ctx context.Context, a luascripts.CancelArgs) (luascripts.CancelReply, error)
	close(ctx context.Context, a luascripts.CloseArgs) (luascripts.CloseReply, error)
	adjust(ctx context.Context, a luascripts.AdjustArgs) (luascripts.CancelReply, error)
	// check answers in order; each fails alone, and so does renew.
	refresh(ctx context.Context, bookings []luascripts.RefreshArgs) []luascripts.RefreshReply
	renew(ctx context.Context, leases []luascripts.RenewArgs) []luascripts.RenewReply
	release(ctx context.Context, p luascripts.RuleCall, token uint64) (luascripts.ReleaseReply, error)
	peek(ctx context.Context, k luascripts.LimitKeys, a luascripts.PeekArgs) (luascripts.PeekReply, error)
	reset(ctx context.Context, k luascripts.LimitKeys, n luascripts.Numbers) (luascripts.CancelReply, error)
}

// redisStore asks the scripts.
type redisStore struct {
	rdb       redis.UniversalClient
	coalescer *coalescer
}

func (s redisStore) acquire(ctx context.Context, c *luascripts.Call) error {
	return s.coalescer.acquire(ctx, c)
}

func (s redisStore) cancel(ctx context.Context, a luascripts.CancelArgs) (luascripts.CancelReply, error) {
	return luascripts.Cancel(ctx, s.rdb, a)
}

func (s redisStore) close(ctx context.Context, a luascripts.CloseArgs) (luascripts.CloseReply, error) {
	return luascripts.Close(ctx, s.rdb, a)
}

func (s redisStore) adjust(ctx context.Context, a luascripts.AdjustArgs) (luascripts.CancelReply, error) {
	return luascripts.Adjust(ctx, s.rdb, a)
}

func (s redisStore) refresh(ctx context.Context, bookings []luascripts.RefreshArgs) []luascripts.RefreshReply {
	return luascripts.Refresh(ctx, s.rdb, bookings)
}

func (s redisStore) renew(ctx context.Context, leases []luascripts.RenewArgs) []luascripts.RenewReply {
	return luascripts.Renew(ctx, s.rdb, leases)
}

func (s redisStore) release(ctx context.Context, p luascripts.RuleCall, token uint64) (luascripts.ReleaseReply, error) {
	return luascripts.Release(ctx, s.rdb, p, token)
}

func (s redisStore) peek(ctx context.Context, k luascripts.LimitKeys, a luascripts.PeekArgs) (luascripts.PeekReply, error) {
	return luascripts.Peek(ctx, s.rdb, k, a)
}

func (s redisStore) reset(ctx context.Context, k luascripts.LimitKeys, n luascripts.Numbers) (luascripts.CancelReply, error) {
	return luascripts.Reset(ctx, s.rdb, k, n)
}
