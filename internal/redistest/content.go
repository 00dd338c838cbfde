package redistest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Content is all that Redis holds, without what calls leave behind for a minute: two that are
// equal say that nothing has changed in between.
func Content(t testing.TB, rdb redis.UniversalClient) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, k := range Keys(t, rdb, "*") {
		if k != "asynq:queues" && !strings.Contains(k, ":sent:") {
			out[k] = rdb.Dump(context.Background(), k).Val()
			if rdb.Type(context.Background(), k).Val() == "zset" { // one that was large for a while is kept in another way
				out[k] = fmt.Sprint(rdb.ZRangeWithScores(context.Background(), k, 0, -1).Val())
			}
		}
	}
	return out
}

// Keys are the names of all keys that match a pattern, on all masters of a Cluster.
func Keys(tb testing.TB, rdb redis.UniversalClient, pattern string) []string {
	tb.Helper()
	var mu sync.Mutex
	var all []string
	onMasters(tb, rdb, func(ctx context.Context, node redis.Cmdable) error {
		keys, err := node.Keys(ctx, pattern).Result()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, keys...)
		return err
	})
	return all
}

// Flush removes all keys, on all masters of a Cluster.
func Flush(tb testing.TB, rdb redis.UniversalClient) {
	tb.Helper()
	onMasters(tb, rdb, func(ctx context.Context, node redis.Cmdable) error { return node.FlushDB(ctx).Err() })
}

func onMasters(tb testing.TB, rdb redis.UniversalClient, do func(context.Context, redis.Cmdable) error) {
	tb.Helper()
	err := error(nil)
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(context.Background(), func(ctx context.Context, node *redis.Client) error { return do(ctx, node) })
	} else {
		err = do(context.Background(), rdb)
	}
	if err != nil {
		tb.Fatal(err)
	}
}
