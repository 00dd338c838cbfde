package luascripts

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is when the clock of a [timed] Redis begins: near to the server's own,
// by which keys expire.
var start = time.Now().Truncate(time.Second)

// timed is a real Redis whose scripts read a clock that the test sets.
func timed(t *testing.T, opts ...redistest.Option) (*redistest.Timed, *redis.Client) {
	t.Helper()
	raw := redistest.Start(t, opts...).Client(t)
	rdb, err := redistest.NewTimed(t.Context(), raw, start)
	if err != nil {
		t.Fatal(err)
	}
	return rdb, raw
}

// timedForLong is timed where keys don't expire while the test runs: on a busy machine a test
// of short windows takes longer than these.
func timedForLong(t *testing.T) (*redistest.Timed, *redis.Client) {
	t.Helper()
	raw := redistest.Start(t).Client(t)
	rdb, err := redistest.NewTimed(t.Context(), redistest.LongLived{UniversalClient: raw}, start)
	if err != nil {
		t.Fatal(err)
	}
	return rdb, raw
}

// keysHaveALife checks that every key of ours has a TTL.
func keysHaveALife(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	for _, k := range rdb.Keys(context.Background(), "hw:*").Val() {
		if ttl := rdb.PTTL(context.Background(), k).Val(); ttl == -1 {
			t.Errorf("%s has no TTL", k)
		}
	}
}

// content is all that Redis holds, but for the test's own clock.
func content(t *testing.T, rdb redis.UniversalClient) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, k := range rdb.Keys(context.Background(), "*").Val() {
		if strings.HasPrefix(k, "hw:") || strings.HasPrefix(k, "asynq:") {
			out[k] = rdb.Dump(context.Background(), k).Val()
		}
	}
	return out
}

// wantCodes checks what a script answered for each task.
func wantCodes(t *testing.T, what string, got []int64, err error, want ...int64) {
	t.Helper()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s = %v, %v, want %v", what, got, err, want)
	}
}

// one is a call about a single rule on a single key.
func one(k LimitKeys, n Numbers, cost int) []RuleCall {
	return []RuleCall{{LimitKeys: k, Numbers: n, Cost: cost}}
}
