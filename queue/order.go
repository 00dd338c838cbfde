package queue

import (
	"fmt"
	"slices"
	"strings"
)

// orderFaults finds the rules that policies list in different orders, also
// through a chain: a before b, b before c, c before a. Earlier policies are
// taken to be right; name names one of them in an error. Gates have no key, and
// no order.
func orderFaults(policies []Policy, name func(policy int) string) []fault {
	var (
		faults []fault
		o      = make(order)
	)
	for i, p := range policies {
		var places []int // of limits, each name once
		for n, r := range p.Rules {
			before := func(m int) bool { return p.Rules[m].Name == r.Name }
			if r.limited() && r.Name != "" && !slices.ContainsFunc(places, before) {
				places = append(places, n)
			}
		}
		var refused bool
		for k := 1; k < len(places); k++ {
			a, b := p.Rules[places[k-1]].Name, p.Rules[places[k]].Name
			if o.has(a, b) {
				continue
			}
			if chain := o.chain(b, a); chain != nil {
				refused = true
				faults = append(faults, fault{i, places[k], fmt.Errorf("comes after %q here, but %s", clip(a), chain.text(name))})
				continue
			}
			o.add(a, b, i)
		}
		if refused {
			o.addAll(p, places, i)
		}
	}
	return faults
}

// order says which rule comes right before which others, and in which policy
// first. It never has a circle.
type order map[string][]next

type next struct {
	rule   string
	policy int
}

func (o order) has(a, b string) bool {
	return slices.ContainsFunc(o[a], func(n next) bool { return n.rule == b })
}

func (o order) add(a, b string, policy int) { o[a] = append(o[a], next{b, policy}) }

// addAll adds what a policy says besides the neighbours that were refused, so
// that one fault does not hide another.
func (o order) addAll(p Policy, places []int, policy int) {
	for k, m := range places {
		for _, n := range places[k+1:] {
			if a, b := p.Rules[m].Name, p.Rules[n].Name; !o.has(a, b) && o.chain(b, a) == nil {
				o.add(a, b, policy)
			}
		}
	}
}

// link is one step of a chain: a before b in a policy.
type link struct {
	a, b   string
	policy int
}

type chain []link

// chain returns the shortest way from a to b, or nil if a need not come before b.
func (o order) chain(a, b string) chain {
	var (
		came  = map[string]link{a: {}}
		queue = []string{a}
	)
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if at == b {
			var c chain
			for at != a {
				c = append(c, came[at])
				at = came[at].a
			}
			slices.Reverse(c)
			return c
		}
		for _, n := range o[at] {
			if _, ok := came[n.rule]; !ok {
				came[n.rule] = link{at, n.rule, n.policy}
				queue = append(queue, n.rule)
			}
		}
	}
	return nil
}

func (c chain) text(name func(policy int) string) string {
	var steps []string
	for _, l := range c {
		steps = append(steps, fmt.Sprintf("before %q in %s", clip(l.b), name(l.policy)))
	}
	return strings.Join(steps, ", which comes ")
}
