package memory

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestCompositeNeverOver asks, gives back, closes and renews at random, under
// several policies, and lets the clock go backward: no rule is ever over its
// limit, and who is not granted has spent nothing anywhere.
func TestCompositeNeverOver(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := newMesh(rt)
		for range rapid.IntRange(10, 100).Draw(rt, "length") {
			m.step(true)
		}
		m.holdAll()
	})
}

// TestCompositeWaitIsTight: alone, one who comes at the instant that a refusal
// told is let through by the rule that refused, and one who comes a microsecond
// before is not.
func TestCompositeWaitIsTight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := newMesh(rt)
		gated := rapid.Bool().Draw(rt, "gated")
		try := func(policy int, costs []int) limitscripts.AcquireReply {
			rules, of := m.rules(policy, true)
			for i := range costs {
				rules[i].Cost = costs[i]
			}
			if gated {
				m.gate = hours(m.now)
			}
			return m.ask(limitscripts.AcquireArgs{Rules: rules, Policy: "p", Mode: limitscripts.Try, MaxWait: -1, Gate: m.gate}, of)
		}
		for range rapid.IntRange(3, 30).Draw(rt, "length") {
			m.rates[rapid.IntRange(0, 2).Draw(rt, "pace of")].move(false)
			policy := rapid.IntRange(0, len(policies)-1).Draw(rt, "policy")
			rules, _ := m.rules(policy, false)
			var costs []int
			for _, p := range rules {
				costs = append(costs, p.Cost)
			}
			r := try(policy, costs)
			if r.Status == limitscripts.Granted {
				continue
			}
			if !r.At.After(m.now) || !gated && r.Rule == 0 {
				rt.Fatalf("refused now: %+v", r)
			}
			now := m.now
			for asked := 1; r.Status != limitscripts.Granted; asked++ {
				told := r
				m.now = told.At.Add(-time.Microsecond)
				if early := try(policy, costs); early.Status != limitscripts.Refused || !early.At.Equal(told.At) || !gated && early.Rule != told.Rule {
					rt.Fatalf("told %+v, and 1us before %+v", told, early)
				}
				if m.now = told.At; rapid.IntRange(0, 3).Draw(rt, "give up") == 0 {
					m.now = now
					break
				}
				if r = try(policy, costs); !gated && r.Status != limitscripts.Granted && r.Rule <= told.Rule || asked > 2*len(costs)+2 {
					rt.Fatalf("told %+v, and then %+v", told, r) // a rule binds once, and then a wider one
				}
			}
		}
		m.holdAll()
	})
}

// hours is a gate that opens for 7 of 10 seconds.
func hours(now time.Time) limitscripts.Gate {
	from := now.Truncate(10 * time.Second).Add(-20 * time.Second)
	g := limitscripts.Gate{From: from, Until: from.Add(10 * time.Minute)}
	for at := from; at.Before(g.Until); at = at.Add(10 * time.Second) {
		g.Open = append(g.Open, limitscripts.Opening{Open: at.Add(3 * time.Second), Close: at.Add(10 * time.Second)})
	}
	return g
}
