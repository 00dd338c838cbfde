package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// runner is a job that comes whenever it was told to.
type runner struct {
	job, policy string
	rules       []limitscripts.RuleCall
	from        time.Time
	told        time.Time
	came        int // admissions
	status      limitscripts.Status
	at          time.Time // of its grant
	token       uint64
	fence       int64
	ends        time.Time // of its lease
	dies        bool      // it never gives its lease back
}

// crowd lets many of them run: one comes at the instant that it was told, or a
// little later, is checked first as a pool does, and is told anew when another's
// answer says so.
type crowd struct {
	*testing.T
	*scene
	runners []*runner
	late    time.Duration // how late they come at most
	inline  time.Duration
	hold    time.Duration // how long a lease is used
	gate    func(now time.Time) limitscripts.Gate
	random  *rand.Rand
	grants  []*runner // in their order
}

func newCrowd(t *testing.T) *crowd {
	return &crowd{T: t, scene: newScene(), random: rand.New(rand.NewPCG(1, 2)), inline: 50 * ms}
}

func (c *crowd) add(job, policy string, rules ...limitscripts.RuleCall) *runner {
	r := &runner{job: job, policy: policy, rules: rules, told: c.now.Add(time.Duration(len(c.runners)) * 10 * time.Microsecond)}
	r.from = r.told
	c.runners = append(c.runners, r)
	return r
}

// ruleOf is a rule on a key.
func ruleOf(rule, id string, n limitscripts.Numbers) limitscripts.RuleCall {
	return limitscripts.RuleCall{LimitKeys: limitscripts.NewLimitKeys("hw", rule, id), Numbers: n, Cost: 1}
}

// run goes from one who comes to the next until all were granted.
func (c *crowd) run() {
	c.Helper()
	for range 200 * len(c.runners) {
		r, returns := c.nextRunner()
		if r == nil {
			return
		}
		if returns {
			c.moveTo(r.ends)
			c.retime(c.Release(r.rules[len(r.rules)-1], r.token).Promoted)
			r.ends = time.Time{}
			continue
		}
		late := time.Duration(0)
		if c.late > 0 && r.came > 0 {
			late = time.Duration(c.random.Int64N(int64(c.late)))
		}
		c.moveTo(r.told.Add(late).Truncate(time.Microsecond))
		c.come(r)
	}
	c.Fatalf("%d of %d were granted, and it goes on", len(c.grants), len(c.runners))
}

func (c *crowd) moveTo(t time.Time) {
	if t.After(c.now) {
		c.now = t
	}
}

func (c *crowd) nextRunner() (first *runner, returns bool) {
	var when time.Time
	for _, r := range c.runners {
		if r.status != limitscripts.Granted && (first == nil || r.told.Before(when)) {
			first, when, returns = r, r.told, false
		}
		if r.status == limitscripts.Granted && !r.ends.IsZero() && !r.dies && (first == nil || !r.ends.After(when)) {
			first, when, returns = r, r.ends, true
		}
	}
	return first, returns
}

func (c *crowd) come(r *runner) {
	c.Helper()
	if r.came > 0 {
		p := c.Refresh(limitscripts.RefreshArgs{Rules: r.rules, Policy: r.policy, Job: r.job})
		c.retime(p.Promoted)
		if p.Status == limitscripts.Booked && p.At.After(c.now) {
			r.told = p.At
			return
		}
	}
	c.token++
	r.came++
	r.token = c.token
	a := limitscripts.AcquireArgs{
		Rules: r.rules, Policy: r.policy, Token: c.token, Job: r.job, Mode: limitscripts.GrantOrBook, Inline: c.inline, MaxWait: -1,
	}
	if c.gate != nil {
		a.Gate = c.gate(c.now)
	}
	p := c.Acquire(a)
	switch r.status = p.Status; p.Status {
	case limitscripts.Granted:
		r.at, r.fence = p.At, p.Fence
		c.grants = append(c.grants, r)
		if c.hold > 0 {
			r.ends = p.At.Add(c.hold)
		}
		if p.At.Before(c.now) || p.At.After(c.now.Add(c.inline)) {
			c.Fatalf("%s was granted at %v, %v from now", r.job, p.At, p.At.Sub(c.now))
		}
	case limitscripts.Booked:
		if p.At.Before(c.now) {
			c.Fatalf("%s was told %v, which is past", r.job, p.At)
		}
		r.told = p.At
	default:
		c.Fatalf("%s: %+v", r.job, p)
	}
	c.retime(p.Promoted)
}

func (c *crowd) retime(turns []limitscripts.Promotion) {
	for _, turn := range turns {
		for _, r := range c.runners {
			if r.job == turn.Job && r.status == limitscripts.Booked {
				r.told = turn.At
			}
		}
	}
}

// hold fails when more was granted on a key than its limit allows.
func (c *crowd) holdAll() {
	c.Helper()
	byLedger := map[string][]*runner{}
	limits := map[string]limitscripts.Numbers{}
	for _, r := range c.grants {
		for _, p := range r.rules {
			byLedger[p.Ledger()] = append(byLedger[p.Ledger()], r)
			limits[p.Ledger()] = p.Numbers
		}
	}
	for ledger, grants := range byLedger {
		if n := limits[ledger]; n.Kind == limitscripts.Sliding {
			for i := n.Permits; i < len(grants); i++ {
				if d := grants[i].at.Sub(grants[i-n.Permits].at); d < n.Window {
					c.Errorf("%s: %d permits within %v", ledger, n.Permits+1, d)
				}
			}
		}
	}
}

// admissions per job.
func (c *crowd) admissions() float64 {
	sum := 0
	for _, r := range c.runners {
		sum += r.came
	}
	return float64(sum) / float64(len(c.runners))
}

// inOrder fails when a job was passed by one of the same policy and rules that
// came after it.
func (c *crowd) inOrder() {
	c.Helper()
	last := map[string]*runner{}
	for _, r := range c.grants {
		line := r.policy + " " + fmt.Sprint(r.rules[0].Ledger())
		if before := last[line]; before != nil && slices.Index(c.runners, before) > slices.Index(c.runners, r) {
			c.Errorf("%s went before %s, which came first", before.job, r.job)
		}
		last[line] = r
	}
}
