package queue

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/headwayq/headway/queue/internal/yamlfile"
)

// policyFile is what a policy file says, as far as it can be read.
type policyFile struct {
	yamlfile.File
	funcs    Funcs
	rules    []*fileRule
	policies []filePolicy
}

// filePolicy is a policy as a file defines it.
type filePolicy struct {
	Policy
	at    yamlfile.Pos
	rules []yamlfile.Pos // where each of Rules is listed

	listed int // how many are listed, also those that are not in the file
}

// document reads the whole file.
func (f *policyFile) document(n ast.Node) {
	if n == nil {
		return // that is a fault already
	}
	var rules, policies []yamlfile.Entry
	names := []string{"rules", "policies"}
	given := f.Fields(n, "rules and policies", names, func(e yamlfile.Entry) {
		before := len(f.Faults)
		found := f.Entries(e.Value, e.Name+" by their names")
		if len(found) == 0 && len(f.Faults) == before {
			f.Fault(e.At, "no "+e.Name)
		}
		if e.Name == "rules" {
			rules = found
		} else {
			policies = found
		}
	})
	for _, name := range names {
		if _, ok := given[name]; !ok && given != nil {
			f.Fault(yamlfile.Pos{}, "no "+name)
		}
	}
	byName := make(map[string]*fileRule)
	for _, e := range rules {
		r := f.rule(e)
		f.rules = append(f.rules, r)
		byName[e.Name] = r
	}
	for _, e := range policies {
		f.policy(e, byName)
	}
	for _, r := range f.rules {
		if !r.used {
			f.Fault(r.at, fmt.Sprintf("rule %q: no policy lists it", clip(r.Name)))
		}
	}
}

// policy reads what a task type needs.
func (f *policyFile) policy(e yamlfile.Entry, byName map[string]*fileRule) {
	p := filePolicy{Policy: Policy{Type: e.Name, source: fileSource{file: f.Name, at: e.At}}, at: e.At}
	if strings.TrimSpace(e.Name) == "" {
		f.Fault(e.At, "a policy without a task type")
	} else if fault := patternFault(e.Name); fault != "" {
		f.Fault(e.At, fault)
	}
	names := []string{"rules", "charge", "max_postpones"}
	given := f.Fields(e.Value, "a policy: "+strings.Join(names, ", "), names, func(field yamlfile.Entry) {
		switch n := field.Value; field.Name {
		case "rules":
			f.list(&p, n, byName)
		case "charge":
			if text, ok := f.Text(n, chargePolicyTexts); ok {
				if p.Charge, ok = chargePolicyOf(text); !ok {
					f.Fault(yamlfile.PosOf(n), fmt.Sprintf("charge is %q, want %s", clip(text), chargePolicyTexts))
				}
			}
		case "max_postpones":
			p.MaxPostpones, _ = f.Number(n, 1, math.MaxInt32)
		}
	})
	if known := len(p.Rules) > 0 && p.listed == len(p.Rules); known &&
		!slices.ContainsFunc(p.Rules, func(r Rule) bool { return !byName[r.Name].good || r.limited() }) {
		f.FaultOf(p.at, fmt.Sprintf("policy %q: ", clip(e.Name)), errNoLimit)
	}
	if _, ok := given["rules"]; !ok && given != nil {
		f.Fault(e.At, fmt.Sprintf("policy %q lists no rules", clip(e.Name)))
	}
	f.policies = append(f.policies, p)
}

// list reads the names of a policy's rules.
func (f *policyFile) list(p *filePolicy, n ast.Node, byName map[string]*fileRule) {
	list, ok := n.(*ast.SequenceNode)
	switch {
	case !ok:
		f.Fault(yamlfile.PosOf(n), yamlfile.KindOf(n)+", want a list of rules")
		return
	case len(list.Values) == 0:
		f.Fault(yamlfile.PosOf(n), "no rules, want at least one")
	case len(list.Values) > rulesMax:
		f.Fault(yamlfile.PosOf(n), fmt.Sprintf("%d rules, want at most %d", len(list.Values), rulesMax))
	}
	p.listed = len(list.Values)
	for i, value := range list.Values {
		name, ok := f.Text(value, "the name of a rule")
		r := byName[name]
		switch {
		case !ok:
		case r == nil:
			f.Fault(yamlfile.PosOf(value), fmt.Sprintf("no rule %q in this file", clip(name)))
		case i >= rulesMax: // that is a fault; not used would be a wrong one
			r.used = true
		default:
			r.used = true
			p.Rules = append(p.Rules, r.Rule)
			p.rules = append(p.rules, yamlfile.PosOf(value))
		}
	}
}

// joinFiles compares what the files say, and returns the
// policies in their order, or all faults.
func joinFiles(files []*policyFile) ([]Policy, error) {
	shareTypes(files)
	shareRules(files)
	var (
		policies []Policy
		of       []*policyFile // of each policy
		at       []filePolicy
	)
	for _, f := range files {
		for _, p := range f.policies {
			policies, of, at = append(policies, p.Policy), append(of, f), append(at, p)
		}
	}
	faults := orderFaults(policies, func(i int) string {
		return fmt.Sprintf("policy %q (%s)", clip(policies[i].Type), of[i].Where(at[i].at))
	})
	for i, p := range policies {
		faults = append(faults, p.listFaults(i, concurrent)...)
	}
	for _, fault := range faults {
		name := policies[fault.policy].Rules[fault.rule].Name
		of[fault.policy].FaultOf(at[fault.policy].rules[fault.rule], fmt.Sprintf("rule %q: ", clip(name)), fault.err)
	}
	var errs []error
	for _, f := range files {
		for _, fault := range f.Sorted() {
			errs = append(errs, &FileError{File: f.Name, Line: fault.Line, Column: fault.Column, Reason: fault.Reason, Err: fault.Err})
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return policies, nil
}

// shareTypes adds the faults of task types that two files have.
func shareTypes(files []*policyFile) {
	first := make(map[string]string)
	for _, f := range files {
		for _, p := range f.policies {
			if where, ok := first[p.Type]; ok {
				f.Fault(p.at, fmt.Sprintf("type %q has a policy in %s already", clip(p.Type), where))
				continue
			}
			first[p.Type] = f.Where(p.at)
		}
	}
}

// shareRules adds the faults of rules that two files define with other numbers.
func shareRules(files []*policyFile) {
	type definition struct {
		*fileRule
		where string
	}
	first := make(map[string]definition)
	for _, f := range files {
		for _, r := range f.rules {
			d, ok := first[r.Name]
			switch {
			case !r.good:
			case !ok:
				first[r.Name] = definition{r, f.Where(r.at)}
			default:
				if err := r.differs(d.Rule, d.where); err != nil {
					f.FaultOf(r.at, fmt.Sprintf("rule %q: ", clip(r.Name)), err)
				}
			}
		}
	}
}
