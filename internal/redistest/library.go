package redistest

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// TimedLibrary makes the functions that a client loads read a clock that the test sets, as
// [Timed] does for scripts, and give keys an hour more than they ask for, as [LongLived].
// Keep it for the server: the library that it loads is not the one of other clients.
func TimedLibrary(ctx context.Context, c *redis.Client, now time.Time) error {
	c.AddHook(libraryHook{})
	return SetClock(ctx, c, now)
}

// SetClock moves the clock that scripts and functions read.
func SetClock(ctx context.Context, c redis.UniversalClient, now time.Time) error {
	return c.HSet(ctx, redisserver.ClockKey, "s", now.Unix(), "us", now.Nanosecond()/1000).Err()
}

// libraryHook changes the text of FUNCTION LOAD.
type libraryHook struct{}

func (libraryHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (libraryHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if last := len(args) - 1; last > 1 && args[0] == "function" && args[1] == "load" {
			args[last] = redisserver.Longer(redisserver.ByClockKey(args[last].(string)))
		}
		return next(ctx, cmd)
	}
}

func (libraryHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
