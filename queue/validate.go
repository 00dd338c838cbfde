package queue

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// fault is one thing that is wrong with policies, and where: the policy's place
// among them, and the rule's in its policy, or -1 for the policy as a whole.
type fault struct {
	policy, rule int
	err          error
}

// ValidatePolicies returns everything that is wrong with the policies, alone and
// together, joined, or nil: no type may have two policies, a rule must have the
// same limit or gate wherever it is named, and the policies that share rules
// must list them in one order. Each fault names its policy by its place, counted
// from 0, and its type, its rule in the same way, and unwraps to
// [ErrInvalidPolicy].
func ValidatePolicies(policies []Policy) error {
	var (
		faults = orderFaults(policies, func(i int) string { return placeOf(policies, i) })
		byType = make(map[string]int)    // the first policy that has the type
		byRule = make(map[string][2]int) // the first place that has the rule's name
	)
	for i, p := range policies {
		faults = append(faults, p.faults(i)...)
		if first, ok := byType[p.Type]; ok && p.Type != "" {
			faults = append(faults, fault{i, -1, fmt.Errorf("policy %d has the same type", first)})
		} else {
			byType[p.Type] = i
		}
		for n, r := range p.Rules {
			first, ok := byRule[r.Name]
			switch {
			case r.Name == "":
			case !ok:
				byRule[r.Name] = [2]int{i, n}
			case first[0] == i: // a fault of its own
			default:
				if err := r.differs(policies[first[0]].Rules[first[1]], placeOf(policies, first[0])); err != nil {
					faults = append(faults, fault{i, n, err})
				}
			}
		}
	}
	slices.SortStableFunc(faults, func(a, b fault) int {
		return cmp.Or(a.policy-b.policy, a.rule-b.rule)
	})
	var errs []error
	for _, f := range faults {
		where := placeOf(policies, f.policy)
		if f.rule >= 0 {
			where += ", " + policies[f.policy].place(f.rule)
		}
		errs = append(errs, fmt.Errorf("%w: %s: %w", ErrInvalidPolicy, where, f.err))
	}
	return errors.Join(errs...)
}

func placeOf(policies []Policy, i int) string {
	return fmt.Sprintf("policy %d (%q)", i, clip(policies[i].Type))
}

// place names a rule in p.
func (p Policy) place(rule int) string {
	return fmt.Sprintf("rule %d (%q)", rule, clip(p.Rules[rule].Name))
}

// differs says what r has and first, of the same name, has not.
func (r Rule) differs(first Rule, where string) error {
	if (r.LimitOf == nil) != (first.LimitOf == nil) {
		return fmt.Errorf("has LimitOf here or in %s, and not in the other", where)
	}
	if !maps.Equal(r.source.limits, first.source.limits) {
		return fmt.Errorf("has other limits of keys here than in %s", where)
	}
	if r.Limit == first.Limit && r.Gate == first.Gate {
		return nil
	}
	return fmt.Errorf("has %s here and %s in %s", r.what(), first.what(), where)
}

// what is the limit or gate, for an error.
func (r Rule) what() string {
	switch {
	case r.limited():
		return fmt.Sprintf("the limit %v", r.Limit)
	case r.gated():
		return fmt.Sprintf("the gate %v", r.Gate)
	}
	return "neither limit nor gate"
}

// faults returns what is wrong with p on its own, as the policy at place i.
func (p Policy) faults(i int) []fault {
	var faults []fault
	add := func(rule int, err error) { faults = append(faults, fault{i, rule, err}) }
	// asynq refuses a blank type when the task is enqueued; a policy for one would never be used
	if strings.TrimSpace(p.Type) == "" {
		add(-1, errors.New("no Type"))
	} else if fault := patternFault(p.Type); fault != "" {
		add(-1, errors.New(fault))
	}
	switch n := len(p.Rules); {
	case n == 0:
		add(-1, errors.New("no Rules"))
	case n > rulesMax:
		add(-1, fmt.Errorf("%d Rules, want at most %d", n, rulesMax))
	}
	if !p.Charge.known() {
		add(-1, fmt.Errorf("unknown Charge %d, want ChargeEveryAttempt or ChargeSuccess", uint8(p.Charge)))
	}
	if p.MaxPostpones < 0 {
		add(-1, fmt.Errorf("MaxPostpones is %d, want at least 1, or 0 for the default", p.MaxPostpones))
	}
	for n, r := range p.Rules {
		for _, f := range r.faults(r.traits()) {
			add(n, f.err)
		}
	}
	if len(faults) == 0 && !slices.ContainsFunc(p.Rules, Rule.limited) {
		add(-1, errNoLimit)
	}
	return append(faults, p.listFaults(i, concurrent)...)
}

// errNoLimit is about a policy of gates alone.
var errNoLimit = errors.New("no limit, want at least one besides gates")

// patternFault is what is wrong with a type that looks like a pattern, or has blanks at its ends, or "". A policy for
// one would fit no task, and its tasks would run without limits.
func patternFault(typ string) string {
	switch {
	case strings.TrimSpace(typ) != typ:
		return fmt.Sprintf("the type %q begins or ends with a blank, want %q: types are compared exactly", clip(typ), clip(strings.TrimSpace(typ)))
	case strings.Contains(typ, "*"):
		return fmt.Sprintf("the type %q is a pattern, want a task type: types are compared exactly, so each type of such tasks needs a policy of "+
			"its own, which may list the same rules", clip(typ))
	case strings.HasSuffix(typ, ":"):
		return fmt.Sprintf("the type %q is a prefix, as asynq's ServeMux has them, want a task type: types are compared exactly, so each type of "+
			"such tasks needs a policy of its own, which may list the same rules", clip(typ))
	}
	return ""
}

func concurrent(r Rule) bool { return r.traits().concurrent }

// listFaults returns what is wrong with rules among those before them, in the
// policy at place i.
func (p Policy) listFaults(i int, isConcurrent func(Rule) bool) []fault {
	var (
		faults []fault
		seen   = make(map[string]bool)
		slots  = ""                    // the first concurrent rule
		shared = make(map[bool]string) // the first constant key of the rates (false) and of the slots (true)
	)
	for n, r := range p.Rules {
		switch {
		case r.Name != "" && seen[r.Name]:
			faults = append(faults, fault{i, n, errors.New("the policy names it twice")})
		case !r.limited():
		case isConcurrent(r):
			slots = cmp.Or(slots, r.Name)
		case slots != "":
			// a slot that is held while a rate is waited for serves nobody
			faults = append(faults, fault{i, n, fmt.Errorf("comes after the concurrent limit %q, want concurrent limits after all other limits", clip(slots))})
		}
		// A task that waits behind its own key would keep a place of everyone's.
		switch is := isConcurrent(r); {
		case !r.limited():
		case r.Constant != "":
			shared[is] = cmp.Or(shared[is], r.Name)
		case r.varies() && shared[is] != "":
			wide := clip(shared[is])
			faults = append(faults, fault{i, n, fmt.Errorf("comes after %q, whose key is the same for all tasks: "+
				"tasks that wait for a key of their own would keep places there, and stall all others; want %q before %q", wide, clip(r.Name), wide)})
		}
		seen[r.Name] = true
	}
	if n := p.closedAlways(time.Now()); n >= 0 {
		faults = append(faults, fault{i, n, fmt.Errorf("the gate %v is never open together with those before it, looking a year ahead", p.Rules[n].Gate)})
	}
	return faults
}

// closedAlways returns the first gate that leaves no time in which all up to it are
// open, or -1. Those of the recipient's zone are not looked at: each has another.
func (p Policy) closedAlways(now time.Time) int {
	var gates []gate.InZone
	for n, r := range p.Rules {
		if !r.gated() || r.Gate.Zone() == "" {
			continue
		}
		gates = append(gates, gate.InZone{Rule: r.Name, Gate: r.Gate})
		if len(gates) > 1 && len(gate.Openings(gates, now, now.Add(gate.Lookahead))) == 0 {
			return n
		}
	}
	return -1
}

// traits are what a rule's other fields depend on.
type traits struct {
	concurrent bool // its limit counts what runs at once
	recipient  bool // its gate opens by the recipient's zone
}

func (r Rule) traits() traits {
	return traits{concurrent: r.Limit.Kind() == "concurrent", recipient: r.gated() && r.Gate.Zone() == ""}
}

// ruleFault is what is wrong with one field of a rule; "" is the rule as a whole.
type ruleFault struct {
	field string // as policy files spell it
	err   error
}

// faults returns what is wrong with r, one fault each.
func (r Rule) faults(is traits) []ruleFault {
	var faults []ruleFault
	check := func(field string, err error) {
		if err != nil {
			faults = append(faults, ruleFault{field, err})
		}
	}
	refuse := func(field string, when bool, text string) {
		if when {
			check(field, errors.New(text))
		}
	}
	if r.Name == "" {
		refuse("", true, "no name")
	} else {
		check("", throttle.ForWorkers.ValidateRule(r.Name))
	}
	switch {
	case r.limited() && r.gated():
		refuse("", true, "both a limit and a gate, want one of them")
		check("limit", r.Limit.Validate())
		check("gate", r.Gate.Validate())
	case r.limited():
		check("limit", r.Limit.Validate())
		refuse("", r.Key == nil && r.Constant == "", "no key")
		refuse("key", r.Key != nil && r.Constant != "", "both Key and Constant, want one of them")
		if r.Constant != "" {
			text := constantFault(r.Constant)
			refuse("key", text != "", text)
		}
		refuse("cost", r.Cost != nil && is.concurrent, "a cost, but under a concurrent limit each task holds one slot")
		refuse("zone", r.Zone != nil, "a zone, but a limit has none")
	case r.gated():
		check("gate", r.Gate.Validate())
		refuse("key", r.Key != nil || r.Constant != "", "a key, but a gate has none")
		refuse("limits", r.LimitOf != nil, "limits of keys, but a gate has none")
		refuse("cost", r.Cost != nil, "a cost, but a gate has none")
		refuse("zone", r.Zone != nil && !is.recipient, "a zone, but the gate has its own")
		refuse("", r.Zone == nil && is.recipient, "no zone, but the gate opens by the recipient's")
		if is.recipient {
			check("gate", zonesKnown(time.LoadLocation))
		}
	default:
		refuse("", true, "neither a limit nor a gate")
	}
	return faults
}

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
