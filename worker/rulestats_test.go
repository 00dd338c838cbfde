package worker

import (
	"fmt"
	"testing"
)

// A handler may make a rule for each customer: those beyond a bound are counted together.
func TestRuleStatsAreBounded(t *testing.T) {
	t.Parallel()
	var c ruleCounters
	for i := range 2 * ruleStatsMax {
		c.bound(fmt.Sprint("rule ", i))
	}
	if n := len(c.byRule); n != ruleStatsMax+1 || c.byRule[otherRules].Bound != ruleStatsMax {
		t.Errorf("%d rules are counted, and %d for others together, want %d and %d", n, c.byRule[otherRules].Bound, ruleStatsMax+1, ruleStatsMax)
	}
	c.bound("rule 0")
	if got := c.byRule["rule 0"].Bound; got != 2 {
		t.Errorf("the first is counted %d times, want 2", got)
	}
}
