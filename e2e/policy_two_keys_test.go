package e2e

import (
	"fmt"
	"testing"
	"time"
)

// twoKeys is a case of two rules: phones with so many
// messages each, a limit for each phone, and one of the provider for all.
type twoKeys struct {
	phones, messages int
	phone, provider  string
	model            time.Duration // finishing time
}

// twoKeysRun is what came out of a case.
type twoKeysRun struct {
	breaches map[string][]string
	early    []string
	perJob   float64
	took     time.Duration // from the first grant to the last
}

// run plays a case on so many processes. All messages are there when they start.
func (c twoKeys) run(t *testing.T, processes int) twoKeysRun {
	t.Helper()
	s := newPolicyStage(t, []string{
		"phone: {limit: " + c.phone + ", key: $.to}",
		"provider: {limit: " + c.provider + ", key: acme}",
	}, workerSpec{Concurrency: 8})
	s.enqueue(c.phones*c.messages, c.phones)
	s.crew.start(processes)
	s.allSent(2*c.model + 30*time.Second)

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	if len(grants) != s.sent || len(s.gateway.all()) != s.sent {
		t.Errorf("%d grants and %d arrivals of %d messages, want one of each", len(grants), len(s.gateway.all()), s.sent)
	}
	stats := sum(all)
	t.Logf("%+v", stats)
	return twoKeysRun{
		breaches: s.breachesOf(grants), early: early(all), perJob: float64(stats.Admissions) / float64(s.sent),
		took: time.Duration(grants[len(grants)-1].at-grants[0].at) * time.Microsecond,
	}
}

// TestTwoKeys: a limit of each phone, and one of the provider for all.
func TestTwoKeys(t *testing.T) {
	t.Parallel()
	// the model finishes its case (40, 3, 20, 2, 3) after 58.520 s; all of it ten times as fast
	c := twoKeys{40, 3, "1/2s", "gcra 20/1s burst 3", 5852 * time.Millisecond}
	r := c.run(t, 2)
	for rule, faults := range r.breaches {
		if len(faults) > 0 {
			t.Errorf("breaches of %s: %s", rule, few(faults))
		}
	}
	if len(r.early) > 0 {
		t.Errorf("handlers that began early: %s", few(r.early))
	}
	if r.perJob > 3.05 {
		t.Errorf("%.3f admissions per message, want 3.05 at most", r.perJob)
	}
	t.Logf("%.3f admissions per message, finished after %v, the model after %v (%s)", r.perJob, r.took, c.model,
		fmt.Sprintf("%.3f", r.took.Seconds()/c.model.Seconds()))
}
