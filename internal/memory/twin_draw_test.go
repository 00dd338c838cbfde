package memory_test

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
)

// world is what a trace is about: rules, and policies that are some of them.
type world struct {
	name  string
	rules func(*rapid.T) []*rule
}

// rule is a limit on a key, narrowest first.
type rule struct {
	key     limitscripts.LimitKeys
	kind    limitKind
	n       limitscripts.Numbers
	version int64
	oneKey  int // rules with the same text for a key and another number are asked one after the other
}

// worlds are one rule of each kind, and then several rules.
func worlds(changing bool) []world {
	var out []world
	for _, kind := range kinds {
		if kind.name != "changing" || changing {
			out = append(out, world{kind.name, func(*rapid.T) []*rule {
				return []*rule{{key: limitscripts.NewLimitKeys("hw", "rule", "id"), kind: kind}}
			}})
		}
	}
	return append(out, world{"several", several})
}

// several are two to four rules, of which the first may share their user key,
// and the last may be leases, of the same key as another rule or not.
func several(t *rapid.T) []*rule {
	var out []*rule
	rates := kinds[:len(kinds)-2]
	ids := rapid.SampledFrom([][]string{{"phone", "tenant", "all"}, {"phone", "phone", "all"}, {"phone", "all", "all"}, {"all", "all", "all"}}).Draw(t, "ids")
	for i, id := range ids[:rapid.IntRange(1, 3).Draw(t, "rates")] {
		out = append(out, &rule{key: limitscripts.NewLimitKeys("hw", fmt.Sprint("rule", i), id), kind: rapid.SampledFrom(rates).Draw(t, "kind")})
	}
	for i := range rapid.IntRange(2-min(2, len(out)), 4-len(out)).Draw(t, "leases") {
		id := rapid.SampledFrom([]string{"phone", "all", "pool"}).Draw(t, "leases of")
		out = append(out, &rule{key: limitscripts.NewLimitKeys("hw", fmt.Sprint("slots", i), id), kind: kinds[len(kinds)-2]})
	}
	return out
}

// drawPolicies are all rules, and some of them.
func (w *twin) drawPolicies() {
	w.policies = [][]*rule{w.rules}
	for range 2 {
		var some []*rule
		for _, r := range w.rules {
			if rapid.Bool().Draw(w.T, "in policy") {
				some = append(some, r)
			}
		}
		if len(some) > 0 {
			w.policies = append(w.policies, some)
		}
	}
}

func (r *rule) change(t *rapid.T) {
	r.n = r.kind.draw(t)
	r.version++
}

func (w *twin) numbers(r *rule) limitscripts.Numbers {
	n := r.n
	n.Version = r.version
	if w.changing && rapid.IntRange(0, 30).Draw(w.T, "not heard yet") == 0 {
		n.Version--
	}
	if n.Kind == limitscripts.Calendar {
		i, _ := slices.BinarySearchFunc(civil, w.now, func(a, b time.Time) int { return a.Compare(b.Add(1)) })
		skew := []int{-2, -2, -2, -1, -3, -30}
		if len(w.rules) > 1 { // or hardly a call on several goes through
			skew = append(skew, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2)
		}
		i += rapid.SampledFrom(skew).Draw(w.T, "skew")
		n.Bounds = civil[max(0, i):min(i+8, len(civil))]
	}
	return n
}

// ruleCall is a rule as a call asks about it.
func (w *twin) ruleCall(r *rule, cost int) limitscripts.RuleCall {
	p := limitscripts.RuleCall{LimitKeys: r.key, Numbers: w.numbers(r), Cost: min(cost, most(r.n)), OneKey: r.oneKey}
	if !w.calm && rapid.IntRange(0, 15).Draw(w.T, "closed") == 0 {
		p.Closed = w.now.Add(rapid.SampledFrom([]time.Duration{-time.Second, 0, 30 * time.Millisecond, 5 * time.Second}).Draw(w.T, "until"))
	}
	return p
}

// ruleCalls are a policy's, mostly with equal costs.
func (w *twin) ruleCalls(policy int) []limitscripts.RuleCall {
	equal := w.mixed || rapid.Bool().Draw(w.T, "equal costs")
	var out []limitscripts.RuleCall
	for _, r := range w.policies[policy] {
		cost := 1
		if !equal {
			cost = rapid.OneOf(rapid.IntRange(1, min(4, most(r.n))), rapid.IntRange(1, most(r.n))).Draw(w.T, "cost")
		}
		out = append(out, w.ruleCall(r, cost))
	}
	return out
}

// ruleCallsOf are those of a grant.
func (w *twin) ruleCallsOf(h *held) []limitscripts.RuleCall {
	var out []limitscripts.RuleCall
	for i, r := range w.policies[h.policy] {
		p := w.ruleCall(r, 1)
		p.Cost, p.Worth, p.At = h.costs[i], h.worth[i], h.at
		p.Until = p.At.Add(rapid.SampledFrom([]time.Duration{p.Window, p.Window, time.Hour}).Draw(w.T, "granted for"))
		if rapid.IntRange(0, 5).Draw(w.T, "not known") == 0 {
			p.Worth = 0
		}
		if rapid.IntRange(0, 5).Draw(w.T, "not told") == 0 {
			p.At, p.Until = time.Time{}, time.Time{}
		}
		out = append(out, p)
	}
	return out
}

func (w *twin) drawPolicy() (policy int, name string) {
	policy = rapid.IntRange(0, len(w.policies)-1).Draw(w.T, "policy")
	return policy, w.name(policy)
}

// name is that of a policy's turns.
func (w *twin) name(policy int) string {
	if w.alone && len(w.policies[policy]) == 1 {
		return ""
	}
	return fmt.Sprint("p", policy)
}

// job is one of a policy, or one that several policies ask for, as in a rolling deploy.
func (w *twin) job(policy int) string {
	if w.mixed {
		return rapid.SampledFrom(w.jobs).Draw(w.T, "job")
	}
	return fmt.Sprint(rapid.SampledFrom(w.jobs).Draw(w.T, "job"), policy)
}

// gate opens a few times around now, and may not know now.
func (w *twin) gate() limitscripts.Gate {
	if w.calm || rapid.IntRange(0, 5).Draw(w.T, "gate") > 0 {
		return limitscripts.Gate{}
	}
	lengths := []time.Duration{time.Millisecond, 40 * time.Millisecond, time.Second, 7 * time.Second, time.Minute}
	draw := func(what string) time.Duration { return rapid.SampledFrom(lengths).Draw(w.T, what) }
	g := limitscripts.Gate{From: w.now.Add(-draw("before"))}
	at := g.From
	for range rapid.IntRange(0, 4).Draw(w.T, "openings") {
		o := limitscripts.Opening{Open: at}
		if rapid.Bool().Draw(w.T, "gap") {
			o.Open = o.Open.Add(draw("closed for"))
		}
		o.Close = o.Open.Add(draw("open for"))
		g.Open = append(g.Open, o)
		at = o.Close
	}
	g.Until = at.Add(draw("after"))
	return g
}
