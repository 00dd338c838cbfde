package limitscripts

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is when the clock of [redistest.StartTimed] begins.
var start = redistest.ClockStart

// one is a call about a single rule on a single key.
func one(k LimitKeys, n Numbers, cost int) []RuleCall {
	return []RuleCall{{LimitKeys: k, Numbers: n, Cost: cost}}
}
