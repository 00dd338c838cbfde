package redistest

import (
	"os"
	"testing"

	"github.com/headwayq/headway/internal/redisserver"
)

// An Option changes how a server is started.
type Option = redisserver.Option

// Arg sets any directive of redis.conf, see [redisserver.Arg].
func Arg(name string, values ...string) Option { return redisserver.Arg(name, values...) }

// AOF makes the server write every change to disk before it answers, see [redisserver.AOF].
func AOF() Option { return redisserver.AOF() }

// Own gives a test a server that no other test uses. A test needs it that changes the server itself (its
// settings, users, functions, scripts or statistics), or runs a program that uses database 0.
func Own() Option { return redisserver.Option(nil) }

// NeedFunctions skips a test that loads functions, or counts their calls, where servers have none.
func NeedFunctions(tb testing.TB) {
	tb.Helper()
	if os.Getenv(redisserver.WithoutFunctionsEnv) != "" {
		tb.Skipf("redistest: this test needs functions, and with %s servers have none", redisserver.WithoutFunctionsEnv)
	}
}
