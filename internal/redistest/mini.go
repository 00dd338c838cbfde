package redistest

import (
	"context"
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Mini returns an embedded server and a client that reaches it without a
// socket; both are closed with tb. Call it inside the synctest bubble, so that
// its goroutines belong there: TTLs and the TIME of scripts then follow the
// bubble's clock, and a virtual minute takes no time.
//
// miniredis is not Redis: it hides how Redis prints numbers in Lua, what memory
// runs out, and how expiry works. Test those with [Start].
func Mini(tb testing.TB) (*redis.Client, *miniredis.Miniredis) {
	tb.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	tb.Cleanup(m.Close)
	return clientFor(tb, MiniOptions(m)), m
}

// MiniOptions returns new options that lead to m without a socket, for clients
// beside the one of [Mini].
func MiniOptions(m *miniredis.Miniredis) *redis.Options {
	return &redis.Options{
		// Nobody listens there. An IP literal, because go-redis looks a name up
		// on a goroutine of its own, which crashes a bubble.
		Addr:   "127.0.0.1:6379",
		Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
	}
}
