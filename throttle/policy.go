package throttle

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// rulesMax bounds how many rules are decided together.
const rulesMax = luascripts.RulesMax

// Policy is rules that are decided together: a request is granted by all of them
// in one step, or by none. A [Limiter] is a policy of one rule.
//
// Rules stand narrowest key first: phone, then tenant, then provider. The first
// key that refuses is the only one in whose line a job waits; wider rules are not
// touched, so a job that waits for its phone holds no place at the provider. What
// the narrower rules admitted it keeps its order: jobs of the same policy on that
// key come behind it, jobs of other policies are not held up. Rules on the same key
// count as one, the latest of their instants. Rules that limit how many run at once
// ([Concurrent]) come last, and are decided in the same step.
//
// All rules on one Redis are one script, whatever their number. The decision names
// the rule that refuses, and the instant from which it admits.
//
// A Policy holds no state that matters and needs no closing. It is safe for
// concurrent use. When Redis does not answer, every method returns an error that
// unwraps to [ErrUnavailable] and nothing is granted, unless [Config.OnUnavailable] or
// [Config.Shadow] say otherwise; with [FailLocal] each Policy counts for itself then.
type Policy struct {
	rules        []*Limiter
	name         string                // in the lines of its keys, where it has several rules
	rdb          redis.UniversalClient // nil when it counts in this process
	store        *clockedStore
	cfg          Config
	availability availability
	counters     counters

	templates luascripts.CallTemplates      // of its calls
	last      atomic.Pointer[[]activeLimit] // by which it decided last; what is in it stays as it is
}

// NewPolicy puts rules together. They must be on one client and have one [Config];
// leases come last, and no rule comes twice. All faults are reported at once,
// unwrapping to [ErrInvalidConfig].
func NewPolicy(rules ...*Limiter) (*Policy, error) {
	if len(rules) == 0 || len(rules) > rulesMax {
		return nil, fmt.Errorf("%w: a policy of %d rules, want 1 to %d", ErrInvalidConfig, len(rules), rulesMax)
	}
	var errs []error
	seen := make(map[string]bool)
	leases := ""
	for _, l := range rules {
		if seen[l.rule] {
			errs = append(errs, fmt.Errorf("%w: rule %q comes twice in a policy", ErrInvalidConfig, l.rule))
		}
		seen[l.rule] = true
		if !l.sharesWith(rules[0]) {
			errs = append(errs, fmt.Errorf("%w: rules %q and %q have another client or configuration", ErrInvalidConfig, rules[0].rule, l.rule))
		}
		switch {
		case l.limit.IsConcurrent():
			leases = l.rule
		case leases != "":
			errs = append(errs, fmt.Errorf("%w: rule %q comes behind %q, want rules that limit how many run at once last", ErrInvalidConfig, l.rule, leases))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return newPolicy(rules), nil
}

func newPolicy(rules []*Limiter) *Policy {
	first := rules[0]
	p := &Policy{rules: rules, name: lineName(rules), rdb: first.rdb, store: first.store, cfg: first.cfg}
	p.availability.mode, p.availability.now = first.cfg.OnUnavailable, first.fallbackNow
	if p.cfg.Shadow && p.cfg.OnUnavailable == FailClosed {
		p.availability.mode = FailOpen // nothing fails because of a limit in shadow mode
	}
	if first.joined != nil {
		first.joined(p)
	}
	return p
}

// lineName names the policy in the lines of its keys. It is the same wherever the
// same rules stand in the same order.
func lineName(rules []*Limiter) string {
	if len(rules) == 1 {
		return ""
	}
	names := make([]string, len(rules))
	for i, l := range rules {
		names[i] = l.named
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(strings.Join(names, " ")))
	return fmt.Sprintf("%016x", sum.Sum64())
}

// Rules returns the policy's rules, narrowest key first.
func (p *Policy) Rules() []*Limiter { return append([]*Limiter(nil), p.rules...) }

// String names the rules: "phone+provider".
func (p *Policy) String() string {
	names := make([]string, len(p.rules))
	for i, l := range p.rules {
		names[i] = l.rule
	}
	return strings.Join(names, "+")
}

// TryAcquire takes what r asks of all rules now, or nothing; see
// [Limiter.TryAcquire]. Decision.Left is what each rule has left.
func (p *Policy) TryAcquire(ctx context.Context, r Request) (Decision, error) {
	r.Job, r.MaxWait, r.wantLeft = "", 0, true
	if r.Token == 0 {
		r.Token = NewToken()
	}
	d, err := p.decide(ctx, luascripts.Try, r)
	if err != nil {
		p.withdrawLost(ctx, r, err)
	}
	return d, err
}

// Acquire takes what r asks of all rules and blocks until it is granted, within
// r.MaxWait; see [Limiter.Acquire] and [Limiter.AcquireWithin]. r.Job and r.Token
// are drawn.
func (p *Policy) Acquire(ctx context.Context, r Request) (Decision, error) { return p.acquire(ctx, r) }

// Book is [Limiter.Book] for all rules.
func (p *Policy) Book(ctx context.Context, r Request) (Decision, error) {
	return p.book(ctx, luascripts.Book, r)
}

// Redeem is [Limiter.Redeem] for all rules.
func (p *Policy) Redeem(ctx context.Context, r Request) (Decision, error) {
	return p.decideForJob(ctx, luascripts.GrantOrBook, r)
}

// Cancel is [Limiter.Cancel] for all rules. The Promotions are the jobs that come next.
func (p *Policy) Cancel(ctx context.Context, r Request) ([]Promotion, error) {
	r.Token = 0
	return p.takeBack(ctx, r, false)
}

// Refund is [Limiter.Refund] for all rules: of what the grant was charged. One that
// was corrected meanwhile is adjusted to 0 instead, see [Charge.Adjust].
func (p *Policy) Refund(ctx context.Context, r Request) ([]Promotion, error) {
	return p.takeBack(ctx, r, false)
}

// Return gives the grant of r.Token back like [Policy.Refund], and r.Job the first place in
// the line for it: a job that was let in and could not start. A job that a limit can't
// admit any more gets no place.
func (p *Policy) Return(ctx context.Context, r Request) ([]Promotion, error) {
	if err := checkJob(r.Job); err != nil {
		return nil, err
	}
	return p.takeBack(ctx, r, true)
}

// Charge returns what the grant was charged, to be corrected later.
func (p *Policy) Charge(d Decision) *Charge {
	first := payment{d.Token, make([]int, len(p.rules))}
	for i := range p.rules {
		first.charged[i] = d.keyCost(i).Cost
	}
	return &Charge{p: p, d: d, payments: []payment{first}}
}

// Stale says that a grant is too old to be acted on: the process was stopped between the
// answer and now, and acting late would come too close to the next grant. Then acquire
// again. The bound is a tenth of the shortest window of the rules, at least [staleMin] and
// at most [staleMax].
func (p *Policy) Stale(d Decision) bool {
	return d.Age() > staleAfter(p.shortest(d))
}

// Counts returns what was counted until now, all rules together; what its rules
// decide by themselves is not included.
func (p *Policy) Counts() Counts {
	c := &p.counters
	return Counts{
		Granted: c.granted.Load(), Booked: c.booked.Load(), Refused: c.refused.Load(), TooLate: c.tooLate.Load(),
		Exceeded: c.exceeded.Load(), Shadowed: c.shadowed.Load(), Fallback: c.fallback.Load(), Failed: c.failed.Load(),
	}
}

// staleAfter is how old a grant of a window may be when it is acted on.
func staleAfter(window time.Duration) time.Duration {
	return min(max(window/10, staleMin), staleMax)
}
