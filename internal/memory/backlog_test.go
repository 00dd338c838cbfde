package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestBacklogOnTwoKeys sends many messages of many phones past a limit for each
// phone and one of the provider. A message asks about three times on average, and
// all of them take hardly longer than the limits demand.
func TestBacklogOnTwoKeys(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		phones, messages int
		phone            time.Duration
		provider         limitscripts.Numbers
		late             time.Duration
	}{
		{20, 5, time.Minute, gcraOf(2, time.Second, 3), 0},
		{20, 5, time.Minute, gcraOf(2, time.Second, 3), 60 * ms},
		{100, 5, time.Minute, gcraOf(2, time.Second, 3), 0},
		{50, 20, 10 * time.Second, gcraOf(3, time.Second, 3), 10 * ms},
		{200, 3, time.Minute, gcraOf(3, time.Second, 10), 60 * ms},
		{30, 4, time.Minute, slidingOf(5, 10*time.Second), 10 * ms},
	} {
		t.Run(fmt.Sprint(tc.phones, "x", tc.messages, " ", tc.late), func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			c.late = tc.late
			for m := range tc.messages {
				for p := range tc.phones {
					c.add(fmt.Sprint(p, "-", m), "sms",
						ruleOf("phone", fmt.Sprint(p), slidingOf(1, tc.phone)), ruleOf("provider", "all", tc.provider))
				}
			}
			c.run()
			c.holdAll()
			c.inOrder()
			n := tc.phones * tc.messages
			pace := tc.provider.Window / time.Duration(tc.provider.Permits)
			wide := func(jobs int) time.Duration {
				return time.Duration(max(0, jobs-max(tc.provider.Burst, tc.provider.Permits))) * pace
			}
			// the last phone begins when all others have
			ideal := max(time.Duration(tc.messages-1)*tc.phone+wide(tc.phones), wide(n))
			took := c.grants[n-1].at.Sub(start)
			t.Logf("%.2f admissions a job, %v, ideal %v", c.admissions(), took, ideal)
			if got := c.admissions(); got > 3.05 {
				t.Errorf("%.2f admissions a job, want at most 3.05", got)
			}
			if got := float64(took) / float64(ideal); got > 1.03 {
				t.Errorf("it took %v, %.3f of the ideal time", took, got)
			}
		})
	}
}

// TestWokenJobJoinsTheNextLine: while others keep a wide line full, a job that
// was held up by its phone gets a place there when its phone admits it.
func TestWokenJobJoinsTheNextLine(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	phone, provider := slidingOf(1, time.Minute), slidingOf(1, time.Second)
	c.add("first", "sms", ruleOf("phone", "x", phone), ruleOf("provider", "all", provider))
	second := c.add("second", "sms", ruleOf("phone", "x", phone), ruleOf("provider", "all", provider))
	for i := range 400 {
		r := c.add(fmt.Sprint("other ", i), "sms", ruleOf("phone", fmt.Sprint(i), phone), ruleOf("provider", "all", provider))
		r.told = start.Add(time.Duration(i) * time.Second / 2)
		r.from = r.told
	}
	c.run()
	c.holdAll()
	for _, r := range c.grants {
		if r.from.Before(start.Add(time.Minute)) && r.at.After(second.at) && r != second {
			t.Fatalf("%s came at %v and was passed", r.job, r.from.Sub(start))
		}
		if r.from.After(start.Add(61*time.Second)) && r.at.Before(second.at) {
			t.Fatalf("%s came at %v and went before a job whose phone was free at 60 s", r.job, r.from.Sub(start))
		}
	}
	if second.came > 3 {
		t.Errorf("the second came %d times, want at most 3", second.came)
	}
}
