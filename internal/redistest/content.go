package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Content is all that Redis holds, without what calls leave behind for a minute, and the
// test's own clock: two that are equal say that nothing has changed in between.
func Content(t testing.TB, rdb *redis.Client) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, k := range rdb.Keys(context.Background(), "*").Val() {
		if k != "redistest:clock" && k != "asynq:queues" && !strings.Contains(k, ":sent:") {
			out[k] = rdb.Dump(context.Background(), k).Val()
			if rdb.Type(context.Background(), k).Val() == "zset" { // one that was large for a while is kept in another way
				out[k] = fmt.Sprint(rdb.ZRangeWithScores(context.Background(), k, 0, -1).Val())
			}
		}
	}
	return out
}
