package redistest

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// LongLived gives keys an hour more than the scripts ask for: the clock of a
// test (see [Timed]) goes other ways than that by which the server lets keys
// expire.
type LongLived struct{ redis.UniversalClient }

// Eval runs a script with longer lives.
func (c LongLived) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return c.UniversalClient.Eval(ctx, longer(text), keys, args...)
}

// longer is a text that gives keys an hour more.
func longer(text string) string {
	const life = "math.ceil(us / 1000) + 50"
	if strings.Count(text, life) < 2 { // in life and in live
		panic("redistest: the scripts compute a key's life in another way: change this too")
	}
	return strings.ReplaceAll(text, life, life+" + 3600000")
}
