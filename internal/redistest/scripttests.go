package redistest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What the tests of the packages that call our scripts have in common.

// ClockStart is when the clock of [StartTimed] begins: near to the server's own, by which keys expire.
var ClockStart = time.Now().Truncate(time.Second)

// StartTimed is a real Redis whose scripts read a clock that the test sets.
func StartTimed(tb testing.TB, opts ...Option) (Timed, *redis.Client) {
	tb.Helper()
	raw := Start(tb, opts...).Client(tb)
	return NewTimed(raw, ClockStart), raw
}

// StartTimedForLong is [StartTimed] where keys don't expire while the test runs: on a busy machine a test
// of short windows takes longer than these.
func StartTimedForLong(tb testing.TB) (Timed, *redis.Client) {
	tb.Helper()
	raw := Start(tb).Client(tb)
	return NewTimedForLong(raw, ClockStart), raw
}

// KeysHaveALife checks that every key of ours has a TTL.
func KeysHaveALife(tb testing.TB, rdb redis.UniversalClient) {
	tb.Helper()
	for _, k := range Keys(tb, rdb, "hw:*") {
		if ttl := rdb.PTTL(context.Background(), k).Val(); ttl == -1 {
			tb.Errorf("%s has no TTL", k)
		}
	}
}

// Dump is all that Redis holds of ours and of asynq's, byte for byte, also what calls leave behind for a minute.
func Dump(tb testing.TB, rdb redis.UniversalClient) map[string]string {
	tb.Helper()
	out := map[string]string{}
	for _, k := range Keys(tb, rdb, "*") {
		if strings.HasPrefix(k, "hw:") || strings.HasPrefix(k, "asynq:") {
			out[k] = rdb.Dump(context.Background(), k).Val()
		}
	}
	return out
}

// WantCodes checks what a script answered for each task.
func WantCodes(tb testing.TB, what string, got []int64, err error, want ...int64) {
	tb.Helper()
	if err != nil || !slices.Equal(got, want) {
		tb.Errorf("%s = %v, %v, want %v", what, got, err, want)
	}
}

// FillMemory leaves Redis no memory for good. To write until it is full would not do: it frees buffers of its clients meanwhile.
func FillMemory(tb testing.TB, rdb redis.UniversalClient) {
	tb.Helper()
	if err := rdb.ConfigSet(context.Background(), "maxmemory", "1").Err(); err != nil {
		tb.Fatal(err)
	}
}

// PutTasks makes tasks in a state, where asynq has those of its default queue.
func PutTasks(rdb redis.UniversalClient, state string, ids ...string) {
	const queue = "asynq:{default}:"
	ctx := context.Background()
	for _, id := range ids {
		rdb.HSet(ctx, queue+"t:"+id, "msg", "message of "+id, "state", state)
		switch state {
		case "active":
			rdb.LPush(ctx, queue+"active", id)
			rdb.ZAdd(ctx, queue+"lease", redis.Z{Score: 1, Member: id})
		case "pending":
			rdb.LPush(ctx, queue+"pending", id)
		}
	}
}

// Answering is a Redis that answers every script with the same.
type Answering struct {
	redis.Scripter
	Value any
	Err   error
}

// EvalSha answers.
func (a Answering) EvalSha(context.Context, string, []string, ...any) *redis.Cmd {
	return redis.NewCmdResult(a.Value, a.Err)
}
