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
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		keys, err := rdb.Keys(context.Background(), pattern).Result()
		if err != nil {
			tb.Fatal(err)
		}
		return keys
	}
	var mu sync.Mutex
	var all []string
	err := cluster.ForEachMaster(context.Background(), func(ctx context.Context, node *redis.Client) error {
		keys, err := node.Keys(ctx, pattern).Result()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, keys...)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all
}
