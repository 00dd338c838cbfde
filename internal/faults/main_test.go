package faults

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/e2e"
)

func TestMain(m *testing.M) {
	if code, is := Worker(); is {
		os.Exit(code)
	}
	redis.SetLogger(e2e.Silence{})
	// a client that could not dial looks once a second whether it can, also after it was closed
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
