package schedulescripts

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is when the clock of [redistest.StartTimed] begins.
var start = redistest.ClockStart
