package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle/gate"
)

// ruleSet is the rules of a policy, narrowest key first. It checks a request against
// them, names their keys, and translates between a request and the scripts.
type ruleSet []*Limiter

// String names the rules: "phone+provider".
func (rs ruleSet) String() string {
	names := make([]string, len(rs))
	for i, l := range rs {
		names[i] = l.rule
	}
	return strings.Join(names, "+")
}

// check refuses what no limit could admit before it costs a round trip.
func (rs ruleSet) check(r *Request) error {
	if len(r.More) != len(rs)-1 {
		return fmt.Errorf("%w: %d keys for the %d rules of policy %v", ErrInvalidConfig, len(r.More)+1, len(rs), rs)
	}
	for i, l := range rs {
		w := r.keyCost(i)
		if err := checkKey(w.Key); err != nil {
			return err
		}
		if w.Cost < 1 {
			return fmt.Errorf("%w: %d permits for rule %q, want at least 1", ErrInvalidCost, w.Cost, l.rule)
		}
	}
	if len(r.Job) > JobMax {
		return checkJob(r.Job)
	}
	return checkGates(r.Gates)
}

func checkKey(key string) error {
	if key == "" || len(key) > KeyMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidKey, len(key), KeyMax)
	}
	return nil
}

func checkJob(job string) error {
	if job == "" || len(job) > JobMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidJob, len(job), JobMax)
	}
	return nil
}

func checkGates(gates []gate.At) error {
	var errs []error
	for _, g := range gates {
		errs = append(errs, g.Gate.Validate())
	}
	return errors.Join(errs...)
}

// fits says whether the limits can ever admit r, and otherwise which rule can't.
func (rs ruleSet) fits(limits []activeLimit, r *Request) (rule string, err error) {
	for i, l := range rs {
		if err := fitsLimit(l, limits[i].Limit, r.keyCost(i).Cost); err != nil {
			return l.rule, err
		}
	}
	return "", nil
}

// fitsLimit says whether a limit of a rule can ever admit a cost.
func fitsLimit(l *Limiter, limit Limit, cost int) error {
	if cost > limit.MaxCost() {
		return &ExceedsLimitError{Rule: l.rule, Cost: cost, Limit: limit}
	}
	return nil
}

// ids are the keys of r as they stand in Redis, in the order of the rules.
func (rs ruleSet) ids(r Request) []string {
	ids := make([]string, len(rs))
	for i, l := range rs {
		ids[i] = l.ID(r.keyCost(i).Key)
	}
	return ids
}

// calls are what the scripts need to know of each rule. The limits are put in later by
// [number], when the store's clock is known.
func (rs ruleSet) calls(ids []string, r Request) []luascripts.RuleCall {
	calls := make([]luascripts.RuleCall, len(rs))
	for i, l := range rs {
		calls[i] = luascripts.RuleCall{LimitKeys: l.names.Of(ids[i]), Cost: r.keyCost(i).Cost}
	}
	return calls
}

// appendCalls is [ruleSet.calls] for the keys in r, into memory that is there already.
func (rs ruleSet) appendCalls(calls []luascripts.RuleCall, r *Request) []luascripts.RuleCall {
	for i, l := range rs {
		w := r.keyCost(i)
		calls = append(calls, luascripts.RuleCall{LimitKeys: l.names.Of(l.ID(w.Key)), Cost: w.Cost})
	}
	return calls
}

// catchUp returns the limits, with the limit of one rule read anew: its ledger knows
// this version.
func (rs ruleSet) catchUp(ctx context.Context, limits []activeLimit, rule int, version int64) ([]activeLimit, error) {
	if rule < 0 || rule >= len(rs) {
		return nil, &outdatedError{version, rule} // a store that does not name the rule
	}
	newer, err := rs[rule].catchUp(ctx, version)
	if err != nil {
		return nil, err
	}
	limits = slices.Clone(limits)
	limits[rule] = newer
	return limits, nil
}

// lastKnown are the active limits as they were read last, without their versions: for a
// store that knows no version.
func (rs ruleSet) lastKnown() []activeLimit {
	limits := make([]activeLimit, len(rs))
	for i, l := range rs {
		limits[i] = activeLimit{Limit: l.limitLastKnown(), closed: l.closedLastKnown()}
	}
	return limits
}

// closedUntil is when all rules are open that this process knows to be closed.
func (rs ruleSet) closedUntil(now time.Time) (until time.Time, rule string) {
	until = now
	for _, l := range rs {
		if at := l.closedLastKnown(); at.After(until) {
			until, rule = at, l.rule
		}
	}
	return until, rule
}

// keyCost is what is asked of the rule i.
func (r *Request) keyCost(i int) KeyCost {
	if i == 0 {
		return KeyCost{r.Key, r.Cost}
	}
	return r.More[i-1]
}
