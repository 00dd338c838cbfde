package luascripts_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
)

// commands keeps what a client was asked, and answers that it granted all.
type commands struct{ printed []string }

func (c *commands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commands) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		c.printed = append(c.printed, cmd.String())
		cmd.(*redis.Cmd).SetVal([]any{int64(7), int64(0), int64(0)})
		return nil
	}
}

func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// behind is a client with something of a program's own in front of it.
type behind struct{ redis.UniversalClient }

// crowdOf is calls of a policy with a gate and of single rules.
func crowdOf() []*limitscripts.Call {
	several := sample()
	several.Gate = limitscripts.Gate{From: time.UnixMicro(1), Until: time.UnixMicro(1 << 60)}
	one := limitscripts.AcquireArgs{Rules: sample().Rules[:1], Token: 3, MaxWait: -1}
	return []*limitscripts.Call{{AcquireArgs: one}, {AcquireArgs: several}}
}

// A client of go-redis itself calls functions; one that something stands in front of runs
// scripts, with the same keys and arguments. Hooks see texts.
func TestCommandIsTheSameForEveryClient(t *testing.T) {
	t.Parallel()
	var seen commands
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	rdb.AddHook(&seen)
	for _, c := range []redis.Scripter{rdb, behind{rdb}} {
		calls := crowdOf()
		if err := limitscripts.AcquireMany(t.Context(), c, calls); err != nil || calls[1].Status != limitscripts.Granted {
			t.Fatal(err, calls[1].Status)
		}
	}
	if len(seen.printed) != 2 {
		t.Fatalf("asked %q, want two commands", seen.printed)
	}
	function, script := strings.Fields(seen.printed[0]), strings.Fields(seen.printed[1])
	if want := []string{"fcall", luascripts.NewScript("limit/acquire").Function(), "12", "hw:{id}:a", "hw:{id}:a:tokens", "hw:{id}:a:line"}; !slices.Equal(function[:6], want) {
		t.Errorf("the command begins with %q, want %q", function[:6], want)
	}
	if want := []string{"evalsha", luascripts.NewScript("limit/acquire").Hash()}; !slices.Equal(script[:2], want) || !slices.Equal(script[2:], function[2:]) {
		t.Errorf("the script is asked\n%q\nwant what the function is asked\n%q", script, function)
	}
}
