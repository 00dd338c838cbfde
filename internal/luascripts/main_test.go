package luascripts_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/limitscripts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// one is a call about a single rule on a single key, for one permit.
func one(k limitscripts.LimitKeys, n limitscripts.Numbers) []limitscripts.RuleCall {
	return []limitscripts.RuleCall{{LimitKeys: k, Numbers: n, Cost: 1}}
}

// sample is a call of two rules on one key.
func sample() limitscripts.AcquireArgs {
	n := limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 3, Window: time.Minute}
	wide := one(limitscripts.NewLimitKeys("hw", "b", "id"), n)
	return limitscripts.AcquireArgs{
		Rules:  append(one(limitscripts.NewLimitKeys("hw", "a", "id"), n), wide...),
		Policy: "p", Token: 1, Job: "a", MaxWait: -1,
	}
}
