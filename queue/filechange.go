package queue

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/headwayq/headway/throttle"
)

// ErrNeedsRestart is what each change of a policy file unwraps to that a program which runs
// can't take over.
var ErrNeedsRestart = errors.New("queue: the change needs a restart")

// ChangedLimits holds policies of files against the policies that the same files had before,
// and returns the limits that are others now, by their rules. A limit is all that a program
// takes over while it runs. For everything else there is an error, with the file and the line
// of each change: a new policy or rule, and another list of rules, gate, key, cost, zone, charge
// or max_postpones. Then there are no limits: no half of a change is taken over.
//
// Both are from [ReadPolicyFiles], whose order does not matter. Two functions of one name
// are taken to be the same.
func ChangedLimits(before, after []Policy) (map[string]throttle.Limit, error) {
	c := fileChanges{limits: make(map[string]throttle.Limit), told: make(map[string]bool)}
	old := make(map[string]Policy, len(before))
	for _, p := range before {
		old[p.Type] = p
	}
	for _, p := range after {
		was, known := old[p.Type]
		if !known {
			c.refuse(p.source, "policy %q is new", p.Type)
			continue
		}
		delete(old, p.Type)
		c.policy(was, p)
	}
	for _, typ := range slices.Sorted(maps.Keys(old)) {
		p := old[typ]
		c.refuse(fileSource{file: p.source.file}, "policy %q is gone", typ)
	}
	if len(c.errs) > 0 {
		return nil, errors.Join(c.errs...)
	}
	return c.limits, nil
}

// fileChanges are the changes of policy files.
type fileChanges struct {
	limits map[string]throttle.Limit
	errs   []error
	told   map[string]bool // rules whose changes were found
}

func (c *fileChanges) refuse(at fileSource, format string, args ...any) {
	where := fmt.Sprintf("policy file %q", clip(at.file))
	if at.at.Line > 0 {
		where += fmt.Sprintf(", line %d, column %d", at.at.Line, at.at.Column)
	}
	c.errs = append(c.errs, fmt.Errorf("%w: %s: %s", ErrNeedsRestart, where, fmt.Sprintf(format, args...)))
}

// policy finds what is other in a policy.
func (c *fileChanges) policy(before, after Policy) {
	name := clip(after.Type)
	if was, is := before.ruleNames(), after.ruleNames(); !slices.Equal(was, is) {
		c.refuse(after.source, "policy %q has the rules %q, and had %q", name, is, was)
		return
	}
	if before.Charge != after.Charge {
		c.refuse(after.source, "policy %q has the charge %q, and had %q", name, after.Charge, before.Charge)
	}
	if before.MaxPostpones != after.MaxPostpones {
		c.refuse(after.source, "policy %q has max_postpones %d, and had %d", name, after.MaxPostpones, before.MaxPostpones)
	}
	for i, r := range after.Rules {
		if where := fmt.Sprintf("%s:%d %s", r.source.file, r.source.at.Line, r.Name); !c.told[where] {
			c.told[where] = true
			c.rule(before.Rules[i], r)
		}
	}
}

// rule finds what is other in a rule.
func (c *fileChanges) rule(before, after Rule) {
	name, known := clip(after.Name), len(c.errs)
	switch {
	case before.limited() != after.limited():
		c.refuse(after.source, "rule %q has %s, and had %s", name, after.what(), before.what())
	case before.Gate != after.Gate:
		c.refuse(after.source, "rule %q has %s, and had %s", name, after.what(), before.what())
	case before.Limit.IsConcurrent() != after.Limit.IsConcurrent():
		c.refuse(after.source, "rule %q has %s, and had %s: what runs at once and what runs per window are kept apart", name, after.what(), before.what())
	}
	if !maps.Equal(before.source.limits, after.source.limits) {
		c.refuse(after.source, "rule %q has other limits of keys", name)
	}
	for _, field := range []struct{ name, was, is string }{
		{"key", before.source.key, after.source.key}, {"cost", before.source.cost, after.source.cost}, {"zone", before.source.zone, after.source.zone},
	} {
		if field.was != field.is {
			c.refuse(after.source, "rule %q has another %s", name, field.name) // a key is not for a log
		}
	}
	if before.Limit != after.Limit && len(c.errs) == known {
		c.limits[after.Name] = after.Limit
	}
}

func (p Policy) ruleNames() []string {
	names := make([]string, len(p.Rules))
	for i, r := range p.Rules {
		names[i] = r.Name
	}
	return names
}
