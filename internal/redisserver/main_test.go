package redisserver

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// a client that could not dial looks once a second whether it can: it may do so for
	// that long after it was closed, which is longer than goleak waits
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
