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

// Acquire takes what r asks of all rules and blocks until it is granted; see
// [Limiter.Acquire]. r.Job and r.Token are drawn.
//
// With a MaxWait it fails at once with a [TooLateError] when the permits come later
// than that, and books nothing then. To wait MaxWait out and fail then, as Redisson's
// tryAcquire(timeout) does, is not offered: the instant is known at the first answer,
// and only a refund or a larger limit could bring it forward. A caller that wants to
// wait for that gives ctx the time-out, and calls again.
func (p *Policy) Acquire(ctx context.Context, r Request) (Decision, error) { return p.acquire(ctx, r) }

// Reserve is [Limiter.Reserve] for all rules. With a MaxWait it fails with a
// [TooLateError] when the permits come later than that, and books nothing. r.Job and
// r.Token are drawn.
func (p *Policy) Reserve(ctx context.Context, r Request) (*Reservation, error) {
	return p.reserve(ctx, r)
}

// Book puts a job into the line of the first key that refuses it, or finds it there, and
// returns its instant; it never grants. A job that is already in the line keeps its
// place. With MaxWait exceeded it leaves the line and the error is a [TooLateError],
// and with a cost above a limit too, with an [ExceedsLimitError].
func (p *Policy) Book(ctx context.Context, r Request) (Decision, error) {
	return p.book(ctx, luascripts.Book, r)
}

// Redeem grants a job its permits when its instant has come, up to InlineWait
// ahead of its instant, and otherwise books, or returns the booking's instant
// anew. The same Token gets the same grant, however often it is sent; a zero
// Token is drawn. With MaxWait exceeded the job leaves the line and the error
// is a [TooLateError], with a cost above a limit an [ExceedsLimitError].
//
// After [ErrUnavailable] the job may have been charged. Repeat the call with the same
// Token within a minute, after which it is another call, or take it back with
// [Policy.Refund]. After a Decision by a Fallback go on with the Request in it: the
// Token that was sent may be refused.
func (p *Policy) Redeem(ctx context.Context, r Request) (Decision, error) {
	return p.decideForJob(ctx, luascripts.GrantOrBook, r)
}

// Cancel takes the booking of r.Job out of the line; without one it does nothing. The
// Promotions are the jobs that come next.
func (p *Policy) Cancel(ctx context.Context, r Request) ([]Promotion, error) {
	r.Token = 0
	return p.takeBack(ctx, r, false)
}

// Refund gives the grant of r.Token back, if it has one, and takes the booking
// of r.Job out of the line, if there is one. The token is refused from then
// on, for at least a minute, so a copy of its call that comes late is not
// charged. It is idempotent, as long as the grant would have counted. A grant whose
// charge was corrected meanwhile is adjusted to 0 instead, see [Charge.Adjust].
//
// Hand back the Request of the [Decision]: it knows where the grant was made and when,
// and what it is worth. A minute after the grant its Token alone is not known any
// more, and a Request that only names it gives nothing back.
func (p *Policy) Refund(ctx context.Context, r Request) ([]Promotion, error) {
	return p.takeBack(ctx, r, false)
}

// Charge returns what the grant was charged, to be corrected later.
func (p *Policy) Charge(d Decision) *Charge {
	first := payment{d.Token, make([]int, len(p.rules))}
	for i := range p.rules {
		first.charged[i] = d.keyCost(i).Cost
	}
	return &Charge{p: p, d: d, payments: []payment{first}}
}

// stale says that a grant is too old to be acted on.
func (p *Policy) stale(d Decision) bool {
	return time.Since(d.start) > staleAfter(p.shortest(d))
}

// Counts returns what was counted until now, all rules together; what its rules
// decide by themselves is not included. The numbers are read one after the other.
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
