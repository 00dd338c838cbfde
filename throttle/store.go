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
	settle(ctx context.Context, a luascripts.SettleArgs) (luascripts.CancelReply, error)
	// check answers in order; each fails alone, and so does renew.
	check(ctx context.Context, bookings []luascripts.CheckArgs) []luascripts.CheckReply
	renew(ctx context.Context, leases []luascripts.RenewArgs) []luascripts.RenewReply
	release(ctx context.Context, p luascripts.Part, token uint64) (luascripts.ReleaseReply, error)
	peek(ctx context.Context, k luascripts.Limit, a luascripts.PeekArgs) (luascripts.PeekReply, error)
	reset(ctx context.Context, k luascripts.Limit, n luascripts.Numbers) (luascripts.CancelReply, error)
}

// redisStore asks the scripts.
type redisStore struct {
	rdb    redis.UniversalClient
	merger *merger
}

func (s redisStore) acquire(ctx context.Context, c *luascripts.Call) error {
	return s.merger.acquire(ctx, c)
}

func (s redisStore) cancel(ctx context.Context, a luascripts.CancelArgs) (luascripts.CancelReply, error) {
	return luascripts.Cancel(ctx, s.rdb, a)
}

func (s redisStore) close(ctx context.Context, a luascripts.CloseArgs) (luascripts.CloseReply, error) {
	return luascripts.Close(ctx, s.rdb, a)
}

func (s redisStore) settle(ctx context.Context, a luascripts.SettleArgs) (luascripts.CancelReply, error) {
	return luascripts.Settle(ctx, s.rdb, a)
}

func (s redisStore) check(ctx context.Context, bookings []luascripts.CheckArgs) []luascripts.CheckReply {
	return luascripts.Check(ctx, s.rdb, bookings)
}

func (s redisStore) renew(ctx context.Context, leases []luascripts.RenewArgs) []luascripts.RenewReply {
	return luascripts.Renew(ctx, s.rdb, leases)
}

func (s redisStore) release(ctx context.Context, p luascripts.Part, token uint64) (luascripts.ReleaseReply, error) {
	return luascripts.Release(ctx, s.rdb, p, token)
}

func (s redisStore) peek(ctx context.Context, k luascripts.Limit, a luascripts.PeekArgs) (luascripts.PeekReply, error) {
	return luascripts.Peek(ctx, s.rdb, k, a)
}

func (s redisStore) reset(ctx context.Context, k luascripts.Limit, n luascripts.Numbers) (luascripts.CancelReply, error) {
	return luascripts.Reset(ctx, s.rdb, k, n)
}
