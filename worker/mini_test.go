package worker_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// mini is redistest.Mini with several clients, one a process.
func mini(t *testing.T, clients int) ([]*redis.Client, *miniredis.Miniredis) {
	t.Helper()
	_, m := redistest.Mini(t)
	var out []*redis.Client
	for range clients {
		c := redis.NewClient(redistest.MiniOptions(m))
		t.Cleanup(func() { _ = c.Close() })
		out = append(out, c)
	}
	return out, m
}
