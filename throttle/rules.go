package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/rediserr"
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
		if err := l.fits(limits[i].Limit, r.keyCost(i).Cost); err != nil {
			return l.rule, err
		}
	}
	return "", nil
}

// fits says whether the limit can ever admit a cost.
func (l *Limiter) fits(limit Limit, cost int) error {
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
		calls[i] = luascripts.RuleCall{LimitKeys: l.keys(ids[i]), Cost: r.keyCost(i).Cost}
	}
	return calls
}

// appendCalls is [ruleSet.calls] for the keys in r, into memory that is there already.
func (rs ruleSet) appendCalls(calls []luascripts.RuleCall, r *Request) []luascripts.RuleCall {
	for i, l := range rs {
		w := r.keyCost(i)
		calls = append(calls, luascripts.RuleCall{LimitKeys: l.keys(l.ID(w.Key)), Cost: w.Cost})
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

// decidedBy names the rule that decided, or the gate.
func (rs ruleSet) decidedBy(reply *luascripts.AcquireReply, gates []gate.At) string {
	switch {
	case reply.Rule > 0 && reply.Rule <= len(rs):
		return rs[reply.Rule-1].rule
	case reply.Status == luascripts.Granted || len(gates) == 0:
		return rs[0].rule
	}
	return shutGate(gates, reply.Now, reply.At)
}

// promotions translates a store's reply, and wakes those of the jobs that wait in
// this process.
func (rs ruleSet) promotions(answered []luascripts.Promotion, now time.Time) []Promotion {
	var out []Promotion
	for _, t := range answered {
		if t.Part < 1 || t.Part > len(rs) {
			continue
		}
		leased := rs[t.Part-1].limit.IsConcurrent()
		offered := leased && !t.At.After(now)
		if offered || !leased { // a blocked caller asks often enough to see a lease end
			rs[t.Part-1].waiters.wake(t.Job)
		}
		out = append(out, Promotion{Job: t.Job, At: t.At, Wait: max(0, t.At.Sub(now)), Offered: offered})
	}
	return out
}

// fault translates what a script call about several rules came back with; rule is
// the one that it stumbled over, from 1.
func (rs ruleSet) fault(op string, rule int, status luascripts.Status, err error) error {
	if rule < 1 || rule > len(rs) {
		rule = 1
	}
	return rs[rule-1].fault(op, status, err)
}

// fault translates what a script call came back with; no error type of the
// Redis client leaves this package.
func (l *Limiter) fault(op string, status luascripts.Status, err error) error {
	if err == nil {
		if status == luascripts.NewerSchema {
			return fmt.Errorf("%w: rule %q", ErrSchema, l.rule)
		}
		return nil
	}
	if _, ok := errors.AsType[*outdatedError](err); ok {
		return err
	}
	kind := rediserr.Of(err)
	u := &unavailableError{Op: op, Reason: err.Error()}
	u.answered = errors.Is(err, errClock) || kind.Answered() && kind != rediserr.Passing
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, end) {
			u.cause = end
		}
	}
	return u
}
