package redistest

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// TimedLibrary makes the functions that a client loads read a clock that the test sets, as
// [NewTimedForLong] does for scripts. Keep it for the server: the library that the client loads is not
// the one of others, whose calls fail because they bring no time with them.
func TimedLibrary(c *redis.Client, now time.Time) *Clock {
	clock := &Clock{}
	clock.SetTime(now)
	c.AddHook(libraryHook{clock})
	return clock
}

// libraryHook changes the text of FUNCTION LOAD, and the arguments of FCALL.
type libraryHook struct{ clock *Clock }

func (libraryHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h libraryHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, h.change(cmd)) }
}

func (h libraryHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		changed := make([]redis.Cmder, len(cmds))
		for i, cmd := range cmds {
			changed[i] = h.change(cmd)
		}
		return next(ctx, changed)
	}
}

func (h libraryHook) change(cmd redis.Cmder) redis.Cmder {
	args := cmd.Args()
	switch last := len(args) - 1; {
	case args[0] == "fcall":
		return changedCmd{cmd, h.clock.after(args)}
	case last > 1 && args[0] == "function" && args[1] == "load":
		text, _ := redisserver.ByArgument(args[last].(string))
		args[last] = redisserver.Longer(text)
	}
	return cmd
}

// changedCmd is a command that is sent with other arguments.
type changedCmd struct {
	redis.Cmder
	args []any
}

func (c changedCmd) Args() []any { return c.args }
