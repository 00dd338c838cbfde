package redistest

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// LongLived gives keys an hour more than the scripts ask for: the clock of a
// test (see [Timed]) goes other ways than that by which the server lets keys
// expire.
type LongLived struct{ redis.UniversalClient }

// Eval runs a script with longer lives.
func (c LongLived) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return c.UniversalClient.Eval(ctx, redisserver.Longer(text), keys, args...)
}
