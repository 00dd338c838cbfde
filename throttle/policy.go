package throttle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
)

// rulesMax bounds how many rules are decided together.
const rulesMax = luascripts.RulesMax

// Policy is rules that are decided together: a request is granted by all of them
// in one step, or by none. A [Limiter] is a policy of one rule.
//
// Rules stand narrowest key first: phone, then tenant, then provider. The first
// key that holds a job up is the only one in whose line a job waits; wider rules are not
// touched, so a job that waits for its phone holds no place at the provider. In the
// lines of the narrower rules, which admitted it, the job keeps its turn: later jobs of the
// same policy stay behind it, and jobs of other policies pass. Rules on the same key
// count as one, the latest of their instants. Rules that limit how many run at once
// ([Concurrent]) come last, and are decided in the same step.
//
// All rules on one Redis are one script, whatever their number. The decision names
// the rule that holds the job up, and the instant from which it admits.
//
// A Policy holds no state that matters and needs no closing. It is safe for
// concurrent use. A call whose context has ended already asks nothing, and returns the
// cause of the context. When Redis does not answer, every method returns an error that
// unwraps to [ErrUnavailable] and nothing is granted, unless [Config.OnUnavailable] or
// [Config.Shadow] say otherwise; with [FailLocal] each Policy counts for itself then.
type Policy struct {
	rules    ruleSet
	name     string                // in the lines of its keys, where it has several rules
	rdb      redis.UniversalClient // nil when it counts in this process
	store    *clockedStore
	cfg      Config
	fallback fallback
	counters counters
	owed     owedTokens

	keyLimits bool // a rule has limits by key
	ruleNames []string
	awaySince atomic.Int64     // since when Redis does not answer, in nanoseconds; 0 while it does
	decided   func(any, error) // hears each decision, in tests; may be nil

	staleDeferrals atomic.Int32 // tasks in a row that were put off because their grants came too late

	templates limitscripts.CallTemplates // of its calls
	last      lastLimits                 // by which it decided last
	oneKey    oneKeyRules
}

// NewPolicy puts rules together. They must be on one client and have one [Config];
// leases come last, no rule comes twice, and none is nil. All faults are reported at once,
// unwrapping to [ErrInvalidConfig].
func NewPolicy(rules ...*Limiter) (*Policy, error) {
	if len(rules) == 0 || len(rules) > rulesMax {
		return nil, fmt.Errorf("%w: a policy of %d rules, want 1 to %d", ErrInvalidConfig, len(rules), rulesMax)
	}
	var errs []error
	seen := make(map[string]bool)
	leases := ""
	for i, l := range rules {
		if l == nil {
			return nil, fmt.Errorf("%w: rule %d of %d of the policy is nil, want a Limiter", ErrInvalidConfig, i+1, len(rules))
		}
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
	p := &Policy{rules: rules, name: lineName(rules), rdb: first.rdb, store: first.store, cfg: first.cfg, decided: first.decided}
	for _, l := range rules {
		p.ruleNames = append(p.ruleNames, l.rule)
		p.keyLimits = p.keyLimits || l.cfg.LimitOf != nil
	}
	p.fallback.mode, p.fallback.now = first.cfg.OnUnavailable, first.fallbackNow
	if p.cfg.Shadow && p.cfg.OnUnavailable == FailClosed {
		p.fallback.mode = FailOpen // nothing fails because of a limit in shadow mode
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
func (p *Policy) String() string { return p.rules.String() }

// TryAcquire takes what r asks of all rules now, or nothing; see
// [Limiter.TryAcquire]. Decision.Left is what each rule has left.
func (p *Policy) TryAcquire(ctx context.Context, r Request) (Decision, error) {
	if ctx.Err() != nil {
		return Decision{}, context.Cause(ctx)
	}
	r.Job, r.MaxWait, r.wantLeft = "", 0, true
	if r.Token == 0 {
		r.Token = NewToken()
	}
	return p.try(ctx, r)
}

// cameLate says that a grant is too old to be acted on when its caller gets it. One of this process has not been on its way.
func (p *Policy) cameLate(d *Decision) bool { return p.rdb != nil && d.Granted && d.stale() }

// try asks once, and again while the grant is too old to be acted on: a few times, as the caller waits for nothing.
func (p *Policy) try(ctx context.Context, r Request) (Decision, error) {
	for stale := 1; ; stale++ {
		d, err := p.decide(ctx, limitscripts.Try, r)
		if err != nil {
			p.withdrawLost(ctx, r, err)
			return d, err
		}
		if !p.cameLate(&d) {
			return d, nil
		}
		p.giveBack(ctx, d.Request, noPlace)
		switch {
		case ctx.Err() != nil:
			d.Granted = false
			return d, context.Cause(ctx)
		case stale == staleMost:
			return decideAfterLateAnswers(ctx, p, limitscripts.Try, r)
		}
		r.Token = NewToken()
	}
}

// Acquire takes what r asks of all rules and blocks until it is granted; see
// [Limiter.Acquire]. r.Job and r.Token are drawn.
//
// With a MaxWait it fails at once with a [TooLateError] when the permits come later
// than that, and books nothing then. To wait MaxWait out and fail then, as Redisson's
// tryAcquire(timeout) does, is not offered for rates: the instant is known at the first answer,
// and only a refund or a larger limit could bring it forward. A caller that wants to
// wait for that calls again. For a slot of a rule of [Concurrent] it does wait MaxWait out, and
// fails with a [TooLateError] then: nobody knows when a holder is done. Inside a worker, where it does
// not wait, it fails at once when the lease of the slot ends later.
func (p *Policy) Acquire(ctx context.Context, r Request) (Decision, error) {
	if ctx.Err() != nil {
		return Decision{}, context.Cause(ctx)
	}
	if h := hostFrom(ctx); h != nil {
		return acquireHosted(ctx, h, p, r)
	}
	w := newWaiter(p, "wait:"+NewToken().String())
	defer w.stop()
	return w.acquire(ctx, r)
}

// Reserve is [Limiter.Reserve] for all rules. With a MaxWait it fails with a
// [TooLateError] when the permits come later than that, and books nothing. r.Job and
// r.Token are drawn.
func (p *Policy) Reserve(ctx context.Context, r Request) (*Reservation, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r.Token, r.notAhead = NewToken(), true
	r.Job = "reserve:" + r.Token.String()
	for stale := 1; ; stale++ {
		d, err := p.decide(ctx, limitscripts.GrantOrBook, r)
		if err != nil {
			p.withdrawLost(ctx, r, err)
			return nil, err
		}
		if !d.Granted {
			if err := p.leaveIfTooLate(ctx, d, r.MaxWait); err != nil {
				return nil, err
			}
		}
		if !p.cameLate(&d) {
			return newReservation(p, r, d), nil
		}
		p.giveBack(ctx, d.Request, firstPlace)
		r.Token = NewToken()
		if ctx.Err() != nil {
			p.cancelBooking(ctx, r)
			return nil, context.Cause(ctx)
		}
		if stale == staleMost {
			d = d.in(stalePause(stale))
			d.Granted = false
			return newReservation(p, r, d), nil
		}
	}
}

// leaveIfTooLate is for a caller that can't wait and see whether a slot is free before the lease ends that it was
// told of. When that is later than it allows, or a gate is closed then and opens later, it leaves the line.
func (p *Policy) leaveIfTooLate(ctx context.Context, d Decision, maxWait time.Duration) error {
	at := openedAt(d.Gates, d.At)
	wait := d.Wait() + at.Sub(d.At)
	if maxWait == 0 || wait <= max(0, maxWait) {
		return nil
	}
	p.cancelBooking(ctx, d.Request)
	return &TooLateError{Rule: d.Rule, At: at, Wait: wait, MaxWait: maxWait}
}

// Book puts a job into the line of the first key that holds it up, or finds it there, and
// returns its instant; it never grants. A job that is already in the line keeps its
// place. With MaxWait exceeded it leaves the line and the error is a [TooLateError],
// and with a cost above a limit too, with an [ExceedsLimitError].
func (p *Policy) Book(ctx context.Context, r Request) (Decision, error) {
	if ctx.Err() != nil {
		return Decision{}, context.Cause(ctx)
	}
	r.Token = NewToken()
	return p.decideForJob(ctx, limitscripts.Book, r)
}

// Redeem asks for the permits of a job. They are granted when its instant has come, or is at most
// InlineWait away. Until then the job gets a booking, or the new instant of the booking that
// it has. The same Token gets the same grant, however often it is sent; a zero
// Token is drawn. With MaxWait exceeded the job leaves the line and the error
// is a [TooLateError], with a cost above a limit an [ExceedsLimitError].
//
// After [ErrUnavailable] the job may have been charged. Repeat the call with the same
// Token within a minute, after which it is another call, or take it back with
// [Policy.Refund]. On Redis Cluster a repeated call may be answered [ErrWithdrawn], when one hash slot took it back
// because another did not answer or refused: take it back with [Policy.Refund], without its Job, and go on with another
// Token. After a Decision by a Fallback go on with the Request in it: the
// Token that was sent may be refused.
func (p *Policy) Redeem(ctx context.Context, r Request) (Decision, error) {
	if ctx.Err() != nil {
		return Decision{}, context.Cause(ctx)
	}
	r.notAhead = false // r may be the request of a decision that was made otherwise
	return p.decideForJob(ctx, limitscripts.GrantOrBook, r)
}

// Charge returns what the grant was charged, to be corrected later.
func (p *Policy) Charge(d Decision) *Charge {
	first := payment{d.Token, make([]int, len(p.rules)), make([]int, len(p.rules))}
	for i := range p.rules {
		first.charged[i], first.held[i] = d.keyCost(i).Cost, d.keyCost(i).Cost
	}
	return &Charge{p: p, d: d, asking: newAskLock(), told: slices.Clone(first.charged), payments: []payment{first}}
}

// decide answers a request, whatever the policy's mode.
func (p *Policy) decide(ctx context.Context, mode limitscripts.Mode, r Request) (Decision, error) {
	return decide(ctx, p, mode, r)
}

// decideForJob leaves no place behind for a cost that can never be met: the limit
// may have been larger when the job took its place.
func (p *Policy) decideForJob(ctx context.Context, mode limitscripts.Mode, r Request) (Decision, error) {
	if err := checkJob(r.Job); err != nil {
		return Decision{}, err
	}
	d, err := p.decide(ctx, mode, r)
	if errors.Is(err, ErrExceedsLimit) || d.instead == insteadOfNever {
		p.cancelBooking(ctx, r)
	}
	return d, err
}

// limitsInForce are the limits by which the policy decides now about keys.
func (p *Policy) limitsInForce(ctx context.Context, keys keySet) ([]limitInForce, error) {
	return p.last.of(ctx, p.rules, keys, p.keyLimits)
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

// countsAs says whether two policies count by the same rules in the same place.
func (p *Policy) countsAs(q *Policy) bool {
	if p == q {
		return true
	}
	if len(p.rules) != len(q.rules) || !bytes.Equal(p.cfg.Secret, q.cfg.Secret) {
		return false
	}
	for i, l := range p.rules {
		if l.names != q.rules[i].names {
			return false
		}
	}
	a, b := reflect.ValueOf(p.store.store), reflect.ValueOf(q.store.store)
	return a.Comparable() && b.Comparable() && p.store.store == q.store.store // a client may be of any type
}

// calls are what the scripts need to know of each rule. The limits are put in later by
// [setLimits], when the store's clock is known.
func (p *Policy) calls(ids []string, r Request) []limitscripts.RuleCall {
	calls := make([]limitscripts.RuleCall, len(p.rules))
	for i, l := range p.rules {
		calls[i] = limitscripts.RuleCall{LimitKeys: l.names.Of(ids[i]), Cost: r.keyCost(i).Cost}
	}
	p.oneKey.mark(calls)
	return calls
}
