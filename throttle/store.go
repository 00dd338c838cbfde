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
	acquire(ctx context.Context, k luascripts.Limit, a luascripts.AcquireArgs) (luascripts.AcquireReply, error)
	cancel(ctx context.Context, k luascripts.Limit, a luascripts.CancelArgs) (luascripts.CancelReply, error)
	// check answers in order; each fails alone.
	check(ctx context.Context, bookings []luascripts.CheckArgs) []luascripts.CheckReply
	peek(ctx context.Context, k luascripts.Limit, a luascripts.PeekArgs) (luascripts.PeekReply, error)
	reset(ctx context.Context, k luascripts.Limit, n luascripts.Numbers) (luascripts.CancelReply, error)
}

// redisStore asks the scripts.
type redisStore struct{ rdb redis.UniversalClient }

func (s redisStore) acquire(ctx context.Context, k luascripts.Limit, a luascripts.AcquireArgs) (luascripts.AcquireReply, error) {
	return luascripts.Acquire(ctx, s.rdb, k, a)
}

func (s redisStore) cancel(ctx context.Context, k luascripts.Limit, a luascripts.CancelArgs) (luascripts.CancelReply, error) {
	return luascripts.Cancel(ctx, s.rdb, k, a)
}

func (s redisStore) check(ctx context.Context, bookings []luascripts.CheckArgs) []luascripts.CheckReply {
	return luascripts.Check(ctx, s.rdb, bookings)
}

func (s redisStore) peek(ctx context.Context, k luascripts.Limit, a luascripts.PeekArgs) (luascripts.PeekReply, error) {
	return luascripts.Peek(ctx, s.rdb, k, a)
}

func (s redisStore) reset(ctx context.Context, k luascripts.Limit, n luascripts.Numbers) (luascripts.CancelReply, error) {
	return luascripts.Reset(ctx, s.rdb, k, n)
}
