package throttle

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// ruleSet is the rules of a policy, narrowest key first. It names their
// keys, and translates between a request and the scripts.
type ruleSet []*Limiter

// String names the rules: "phone+provider".
func (rs ruleSet) String() string {
	names := make([]string, len(rs))
	for i, l := range rs {
		names[i] = l.rule
	}
	return strings.Join(names, "+")
}

// fits says whether the limits can ever admit r, and otherwise which rule can't.
func (rs ruleSet) fits(limits []activeLimit, r *Request) (rule string, err error) {
	for i, l := range rs {
		if err := limits[i].fits(l.rule, r.keyCost(i).Cost); err != nil {
			return l.rule, err
		}
	}
	return "", nil
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
	w := KeyCost{r.Key, r.Cost}
	for i, l := range rs {
		if i > 0 {
			w = r.More[i-1]
		}
		calls = append(calls, luascripts.RuleCall{LimitKeys: l.names.Of(l.ID(w.Key)), Cost: w.Cost})
	}
	return calls
}

// catchUp returns the limits, with the limit of one rule read anew: its ledger knows
// this version.
func (rs ruleSet) catchUp(ctx context.Context, limits []activeLimit, keys keySet, rule int, version int64) ([]activeLimit, error) {
	if rule < 0 || rule >= len(rs) {
		return nil, &outdatedError{version, rule} // a store that does not name the rule
	}
	newer, err := rs[rule].catchUp(ctx, version)
	if err == nil && rs[rule].cfg.LimitOf != nil {
		newer, err = rs[rule].catchUpKey(ctx, keys, rule, version)
	}
	if err != nil {
		return nil, err
	}
	limits = slices.Clone(limits)
	limits[rule] = newer
	return limits, nil
}

// lastKnown are the active limits as they were read last, without their versions: for a
// store that knows no version.
func (rs ruleSet) lastKnown(ctx context.Context, keys keySet) []activeLimit {
	limits := make([]activeLimit, len(rs))
	for i, l := range rs {
		limits[i] = activeLimit{Limit: l.limitLastKnown(), closed: l.closedLastKnown()}
		if own, err := l.ofKey(ctx, limits[i], keys, i, 0); err == nil {
			limits[i] = own
		}
		limits[i].version = 0
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
