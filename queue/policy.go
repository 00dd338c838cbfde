package queue

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
)

// KeyFunc finds the key that a task is counted for, such as the phone number
// that it writes to. It must give the same key for the same task each time,
// must not change the task, and must be safe for concurrent use. Its error may
// hold anything: this package never prints it.
type KeyFunc func(*asynq.Task) (string, error)

// CostFunc finds how many permits a task costs, under the same conditions as a
// [KeyFunc].
type CostFunc func(*asynq.Task) (int, error)

// Policy is what a task type needs before it runs: one limit, counted per key.
// It is only a description; it holds no connection and decides nothing. The
// zero Policy is invalid. A Policy is safe for concurrent use when its functions
// are.
type Policy struct {
	// Type is the task type, compared exactly: it is no pattern and no prefix.
	// Required.
	Type string

	// Rule is the name of the limit, 1 to 64 characters out of A-Z, a-z, 0-9,
	// "_", "." and "-". Policies with the same rule share their permits: an
	// "sms:code" and an "sms:ad" to the same phone count together. Required.
	Rule string

	// Limit must be the same in all policies that name the rule. Required.
	Limit throttle.Limit

	// Key finds the key, 1 to 1024 bytes. Required.
	Key KeyFunc

	// Cost finds the number of permits, 1 to Limit.MaxCost(), or to that of a
	// limit that is stored for the rule and goes before it.
	// Defaults to 1 permit for each task.
	Cost CostFunc
}

// Validate returns everything that is wrong with p, joined, or nil. Each fault
// unwraps to [ErrInvalidPolicy].
func (p Policy) Validate() error {
	var errs []error
	for _, fault := range p.faults() {
		errs = append(errs, fmt.Errorf("%w: %w", ErrInvalidPolicy, fault))
	}
	return errors.Join(errs...)
}

// ValidatePolicies returns everything that is wrong with the policies, alone and
// together, joined, or nil: no type may have two policies, and a rule must have
// the same limit wherever it is named. Each fault names its policy by its place,
// counted from 0, and its type, and unwraps to [ErrInvalidPolicy].
func ValidatePolicies(policies []Policy) error {
	var (
		errs   []error
		byType = make(map[string]int) // the first policy that has the type
		byRule = make(map[string]int) // the first policy that names the rule
	)
	for i, p := range policies {
		faults := p.faults()
		if first, ok := byType[p.Type]; ok && p.Type != "" {
			faults = append(faults, fmt.Errorf("policy %d has the same type", first))
		} else {
			byType[p.Type] = i
		}
		if first, ok := byRule[p.Rule]; !ok {
			byRule[p.Rule] = i
		} else if other := policies[first].Limit; p.Rule != "" && other != p.Limit {
			faults = append(faults, fmt.Errorf("rule %q has the limit %v here and %v in policy %d (%q)",
				p.Rule, p.Limit, other, first, policies[first].Type))
		}
		for _, fault := range faults {
			errs = append(errs, fmt.Errorf("%w: policy %d (%q): %w", ErrInvalidPolicy, i, p.Type, fault))
		}
	}
	return errors.Join(errs...)
}

// faults returns what is wrong with p, one error each, without a prefix.
func (p Policy) faults() []error {
	var faults []error
	// asynq refuses a blank type when the task is enqueued; a policy for one would never be used
	if strings.TrimSpace(p.Type) == "" {
		faults = append(faults, errors.New("no Type"))
	}
	if p.Rule == "" {
		faults = append(faults, errors.New("no Rule"))
	} else if err := throttle.ValidateRule(p.Rule); err != nil {
		faults = append(faults, err)
	}
	if err := p.Limit.Validate(); err != nil {
		faults = append(faults, err)
	}
	if p.Key == nil {
		faults = append(faults, errors.New("no Key"))
	}
	return faults
}
