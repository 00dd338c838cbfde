package prove

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
	redis.SetLogger(e2e.Silence{}) // as main does
	goleak.VerifyTestMain(m)
}
