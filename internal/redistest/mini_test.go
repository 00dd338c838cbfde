package redistest

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMiniFollowsTheClockOfABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, m := Mini(t)
		second := clientFor(t, MiniOptions(m))
		clock := func() int64 {
			t.Helper()
			us, err := client.Eval(t.Context(),
				"local t = redis.call('TIME') return t[1] * 1000000 + t[2]", nil).Int64()
			if err != nil {
				t.Fatal(err)
			}
			return us
		}
		begin := clock()
		if want := time.Now().UnixMicro(); begin != want {
			t.Errorf("TIME in Lua = %d, want the bubble's %d", begin, want)
		}
		if err := client.Set(t.Context(), "k", "v", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Minute - time.Microsecond)
		if got, err := second.Get(t.Context(), "k").Result(); got != "v" || err != nil {
			t.Errorf("GET just before the TTL = %q, %v, want v", got, err)
		}
		time.Sleep(time.Microsecond)
		if err := second.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("GET at the TTL = %v, want %v", err, redis.Nil)
		}
		if got := clock() - begin; got != time.Minute.Microseconds() {
			t.Errorf("TIME in Lua moved by %d us, want %d", got, time.Minute.Microseconds())
		}
	})
}

// A pipeline that is longer than what the server reads at once must not stand
// still: in a bubble that would be virtual time.
func TestMiniLongPipeline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, _ := Mini(t)
		began := time.Now()
		pipe := client.Pipeline()
		for range 1000 {
			pipe.Set(t.Context(), "key", strings.Repeat("x", 100), 0)
		}
		if _, err := pipe.Exec(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("Exec took %v, %v, want no time", time.Since(began), err)
		}
	})
}
