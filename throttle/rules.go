package throttle

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
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
func (rs ruleSet) fits(limits []limitInForce, r *Request) (rule string, err error) {
	for i, l := range rs {
		if err := limits[i].fits(l.rule, r.keyCost(i).Cost); err != nil {
			return l.rule, err
		}
	}
	return "", nil
}

// isConcurrent says that a rule limits how many run at once: the instant that it tells is the end of a lease.
func (rs ruleSet) isConcurrent(rule string) bool {
	return slices.ContainsFunc(rs, func(l *Limiter) bool { return l.rule == rule && l.limit.IsConcurrent() })
}

// ids are the keys of r as they stand in Redis, in the order of the rules.
func (rs ruleSet) ids(r Request) []string {
	ids := make([]string, len(rs))
	for i, l := range rs {
		ids[i] = l.ID(r.keyCost(i).Key)
	}
	return ids
}

// oneKeyRules learns which rules of a policy have one key, such as a limit per hour and one
// per day of a phone. Rules side by side with one key are decided together: a job that waits
// has a place with each of them. But two keys may be the same text by chance, as user 42 and
// tenant 42. If these were decided together, and those of other jobs one after the other, jobs
// could wait for each other in a circle, for ever. So rules count as having one key while no
// call has shown two. It is safe for concurrent use; the zero value is ready.
type oneKeyRules struct {
	first atomic.Uint64 // 4 bits a rule: the first rule that has the same key, as far as is known
}

func firstWith(first uint64, rule int) int {
	return int(first >> (4 * rule) & (luascripts.RulesMax - 1))
}

// mark learns from the keys of a call, and writes into it what is known.
func (o *oneKeyRules) mark(calls []limitscripts.RuleCall) {
	first := o.first.Load()
	for i := 1; i < len(calls); i++ {
		if calls[i].ID != calls[firstWith(first, i)].ID {
			first = o.learn(calls)
			break
		}
	}
	for i := range calls {
		calls[i].OneKey = firstWith(first, i)
	}
}

// learn splits what a call has shown to have two keys.
func (o *oneKeyRules) learn(calls []limitscripts.RuleCall) uint64 {
	for {
		old := o.first.Load()
		var next uint64
		for i := range calls {
			j := 0
			for firstWith(old, j) != firstWith(old, i) || calls[j].ID != calls[i].ID {
				j++
			}
			next |= uint64(j) << (4 * i)
		}
		if o.first.CompareAndSwap(old, next) {
			return next
		}
	}
}

// catchUp returns the limits, with the limit of one rule read anew: its ledger knows
// this version.
func (rs ruleSet) catchUp(ctx context.Context, limits []limitInForce, keys keySet, rule int, version int64) ([]limitInForce, error) {
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

// lastKnown are the limits in force as they were read last, without their versions: for a
// store that knows no version.
func (rs ruleSet) lastKnown(ctx context.Context, keys keySet) []limitInForce {
	limits := make([]limitInForce, len(rs))
	for i, l := range rs {
		limits[i] = limitInForce{Limit: l.limitLastKnown(), closed: l.closedLastKnown()}
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

// setFittingLimits is [setLimits] where permits are asked for. It refuses a cost that a limit
// can never admit, and names the rule.
func (rs ruleSet) setFittingLimits(calls []limitscripts.RuleCall, limits []limitInForce, around time.Time) (rule string, err error) {
	for i, l := range rs {
		if err := limits[i].fits(l.rule, calls[i].Cost); err != nil {
			return l.rule, err
		}
		limits[i].putInto(&calls[i], around)
	}
	return "", nil
}
