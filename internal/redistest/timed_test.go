package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// clockText is put together like the scripts of Headway, and answers the time and how many arguments there are.
const clockText = `local modules, loaded = {}, {}
local function require(name) return modules[name] end
modules["lib/clock"] = function(keys, args)
local t = redis.call("TIME")
return t[1] .. " " .. t[2] .. " " .. #args
end
return require("lib/clock")(KEYS, ARGV)
`

func TestTimed(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) redis.UniversalClient{
		"one Redis": func(tb testing.TB) redis.UniversalClient { return Start(tb).Client(tb) },
		"a Cluster": func(tb testing.TB) redis.UniversalClient { return StartCluster(tb, mastersOfEither) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := start(t)
			rdb, script := NewTimed(raw, time.Unix(1, 0)), redis.NewScript(clockText)
			type sharded interface { // by which scripts know a client of a Cluster
				ForEachShard(context.Context, func(context.Context, *redis.Client) error) error
			}
			_, got := rdb.(sharded)
			if _, want := raw.(sharded); got != want {
				t.Errorf("the client is seen to be one of a Cluster: %v, want %v", got, want)
			}
			for _, at := range []time.Time{time.Unix(1772352000, 7000), time.Unix(1, 0)} {
				rdb.SetTime(at)
				for _, key := range []string{"foo", "bar"} { // of slots 12182 and 5061: one on each master
					want := fmt.Sprintf("%d %d 2", at.Unix(), at.Nanosecond()/1000)
					if got, err := script.Run(t.Context(), rdb, []string{key}, "a", "b").Text(); err != nil || got != want {
						t.Errorf("%s: the script answers %q, %v, want %q", key, got, err, want)
					}
					pipe := rdb.Pipeline()
					cmd := script.EvalSha(t.Context(), pipe, []string{key}, "a", "b")
					if _, err := pipe.Exec(t.Context()); err != nil || cmd.Val() != want {
						t.Errorf("%s: in a pipeline the script answers %q, %v, want %q", key, cmd.Val(), err, want)
					}
				}
			}
			text, takes := redisserver.ByArgument(clockText)
			if !takes {
				t.Error("the text takes no clock")
			}
			for _, args := range [][]any{nil, {"a", "b"}} {
				if err := raw.Eval(t.Context(), text, []string{"foo"}, args...).Err(); err == nil || !strings.HasPrefix(err.Error(), "ERR ") {
					t.Errorf("a call with %v and no time = %v, want an error of the script", args, err)
				}
			}
		})
	}
}
