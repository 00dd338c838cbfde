package worker

import (
	"fmt"
	"testing"
	"time"
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

// Tasks that other pools wake and start are not remembered for long: they would take the places of those that are started here,
// whose waits would not be counted any more.
func TestWaitsThatOtherPoolsEndAreForgotten(t *testing.T) {
	t.Parallel()
	var rules ruleCounters
	w := newWaits(&rules, nil)
	now := time.Now()
	for i := range waitsMax {
		w.begin(fmt.Sprint(i), "phone", now, time.Minute)
	}
	w.purge(now.Add(time.Minute))
	if n := len(w.byTask); n != waitsMax {
		t.Errorf("%d are remembered at their instant, want all %d", n, waitsMax)
	}
	now = now.Add(time.Minute + startWithin + time.Millisecond)
	w.purge(now)
	if n := len(w.byTask); n != 0 {
		t.Errorf("%d are remembered when nobody can start them here any more, want none", n)
	}
	w.begin("here", "phone", now, time.Minute)
	w.end("here", now.Add(time.Minute))
	if s := rules.snapshot(); len(s) != 1 || s[0].Waits != 1 || s[0].Waited != time.Minute {
		t.Errorf("%+v, want the wait of the one that was started here", s)
	}
}
