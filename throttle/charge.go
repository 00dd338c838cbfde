package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/limitscripts"
)

// Charge is what one grant was charged, by rule, and corrects it after the work: for
// a job that turned out to cost more or less than it asked for. It is made by
// [Policy.Charge], and safe for concurrent use.
type Charge struct {
	p *Policy
	d Decision

	asking askLock // one Adjust at a time; held while Redis is asked
	told   []int   // what the observer knows that each rule is charged; under asking

	mu       sync.Mutex   // held with asking to write what follows, so that others read it while Redis is asked
	payments []payment    // of the grant, and what was charged on top, oldest first
	left     []adjustment // corrections that are to be made; the first may have been
}

// payment is what was charged by rule at one time.
type payment struct {
	token   Token
	charged []int
	held    []int // of that, what the limits hold: it is less where more was charged than was free, and no more comes back
}

// adjustment is one correction. Redis knows it by its token, and makes it once.
type adjustment struct {
	token Token
	of    Token // the payment that comes back; of the grant when more is charged
	by    []int // by rule, below 0 for what comes back
	held  []int // of that, what the limits are told: what they do not hold does not come back
	spent []int // what the limits have answered that they hold of it; -1 for no answer so far
}

// chargedLocked is what a rule is charged when all corrections are made. It is called with mu or asking held.
func (b *Charge) chargedLocked(rule int) int {
	sum := 0
	for _, p := range b.payments {
		sum += p.charged[rule]
	}
	for _, s := range b.left {
		sum += s.by[rule]
	}
	return sum
}

// Charged returns what a rule was charged, 0 for a rule that is not in the policy.
func (b *Charge) Charged(rule string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, l := range b.p.rules {
		if l.rule == rule {
			return b.chargedLocked(i)
		}
	}
	return 0
}

// adjusted says whether a correction was made, or may have been.
func (b *Charge) adjusted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.p.rules {
		if b.chargedLocked(i) != b.d.keyCost(i).Cost {
			return true
		}
	}
	return len(b.left) > 0
}

// Adjust sets what the named rules are charged, 0 to [PermitsMax] permits each. A
// higher charge counts as spent from now on, even above the limit: a limit decides
// what is let in, and this job was. An over-charge can empty the limit but creates
// no debt, except for leaky, smooth and warmup. A lower charge comes back as
// [Policy.Refund] gives it back, from the newest payment first, and of an over-charge no more
// than the limit had left; a bucket, which
// knows no single permits, gives back what is certain when a correction is
// corrected. When the answer to a higher charge was lost, nothing of it comes back under sliding,
// gcra and bucket: how much they had left is not known then.
//
// Adjusting to the same charge again does nothing. After [ErrUnavailable] it may
// have been done: adjust again. It may be long after the grant, as long as the grant
// counts. Rules that limit how many run at once are left alone. The Promotions are
// the jobs that may come earlier; there may be some beside an error, too. A call that Redis
// does not answer ends as [Limiter.Acquire] says.
func (b *Charge) Adjust(ctx context.Context, costs map[string]int) ([]Promotion, error) {
	if err := b.asking.lock(ctx); err != nil {
		return nil, b.p.rules.fault(ctx, "adjust", 0, 0, err)
	}
	defer b.asking.unlock()
	to, err := b.target(costs)
	if err != nil || b.d.made == fromNowhere || !b.d.Granted {
		return nil, err
	}
	promoted, err := b.makeAll(ctx)
	if err != nil {
		return promoted, err
	}
	b.plan(to)
	more, err := b.makeAll(ctx)
	if tell := b.p.cfg.Observer.Adjusted; err == nil && tell != nil {
		for i, l := range b.p.rules {
			if to[i] != b.told[i] {
				tell(ctx, event.Adjusted{Task: taskOf(b.d.Job), Rule: l.rule, From: b.told[i], To: to[i]})
			}
		}
		b.told = to
	}
	return append(promoted, more...), err
}

// allCharged is what all rules are charged. It is called with asking held, as all that follow.
func (b *Charge) allCharged() []int {
	all := make([]int, len(b.p.rules))
	for i := range all {
		all[i] = b.chargedLocked(i)
	}
	return all
}

// plan plans the corrections that make the payments what they are to be. What
// comes back is taken from the newest payment first, because each is given back
// where it was made.
func (b *Charge) plan(to []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	more := make([]int, len(to))
	back := make([]int, len(to)) // that is still to come back
	for i := range to {
		by := to[i] - b.chargedLocked(i)
		more[i], back[i] = max(0, by), max(0, -by)
	}
	for _, p := range slices.Backward(b.payments) {
		by, held := make([]int, len(to)), make([]int, len(to))
		for i := range to {
			n := min(back[i], p.charged[i])
			by[i], back[i] = -n, back[i]-n
			held[i] = min(0, p.charged[i]-p.held[i]-n) // what is not held goes first
		}
		b.addLocked(p.token, by, held)
	}
	b.addLocked(b.d.Token, more, more)
}

func (b *Charge) addLocked(of Token, by, held []int) {
	if slices.ContainsFunc(by, notZero) {
		b.left = append(b.left, adjustment{NewToken(), of, by, held, slices.Repeat([]int{-1}, len(by))})
	}
}

func notZero(n int) bool { return n != 0 }

// target is what each rule is to be charged.
func (b *Charge) target(costs map[string]int) ([]int, error) {
	to := b.allCharged()
	var errs []error
	known := 0
	for i, l := range b.p.rules {
		cost, named := costs[l.rule]
		if !named {
			continue
		}
		known++
		if cost < 0 || cost > PermitsMax {
			errs = append(errs, fmt.Errorf("%w: rule %q is adjusted to %d permits, want 0 to %d", ErrInvalidCost, l.rule, cost, PermitsMax))
		}
		if !l.limit.IsConcurrent() {
			to[i] = cost
		}
	}
	if known < len(costs) {
		errs = append(errs, fmt.Errorf("%w: a rule to adjust is not in the policy %v", ErrInvalidConfig, b.p))
	}
	return to, errors.Join(errs...)
}

// makeAll makes the corrections that are left, in order.
func (b *Charge) makeAll(ctx context.Context) ([]Promotion, error) {
	var promoted []Promotion
	for len(b.left) > 0 {
		var spent []int
		if slices.ContainsFunc(b.left[0].held, notZero) {
			next, paid, err := b.send(ctx, b.left[0])
			promoted, spent = append(promoted, next...), paid
			if err != nil {
				return promoted, err
			}
		}
		b.note(spent)
	}
	return promoted, nil
}

// note takes in that the first correction was made. spent is what each rule holds of a payment.
func (b *Charge) note(spent []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.left[0]
	b.left = b.left[1:]
	if slices.ContainsFunc(s.by, func(n int) bool { return n > 0 }) {
		b.payments = append(b.payments, payment{s.token, s.by, spent})
		return
	}
	for n := range b.payments {
		if b.payments[n].token == s.of {
			for i := range s.by {
				b.payments[n].charged[i] += s.by[i]
				b.payments[n].held[i] += s.held[i]
			}
		}
	}
}

// send makes one correction, where the grant was made. It returns what was spent by rule, or as little
// as that can be when the answer to an earlier call was lost. Each hash slot of a Cluster says it once, so what one has answered is kept
// in s: another may fail, and the call is repeated.
func (b *Charge) send(ctx context.Context, s adjustment) (promoted []Promotion, spent []int, err error) {
	r := b.d.Request
	if s.of != b.d.Token {
		r.grant = grant{} // it says nothing of what was charged later, which Redis remembers as long as it counts
	}
	var t storeCall
	if b.d.made == fromFallback { // Redis may still be away, and knows nothing of this grant
		t = newStoreCallBy(b.p, b.p.fallback.localStore(), b.p.rules.lastKnown(ctx, byRequest(&r)))
	} else {
		if t, err = newStoreCall(ctx, b.p, byRequest(&r)); err != nil {
			return nil, nil, err
		}
	}
	ids := b.p.rules.ids(r)
	args := limitscripts.AdjustArgs{Rules: b.p.calls(ids, r), Policy: b.p.name, Token: uint64(s.of), Charge: uint64(s.token)}
	r.grant.addTo(args.Rules, b.p, r.Key)
	for i := range args.Rules {
		args.Rules[i].Cost = s.held[i]
	}
	var reply limitscripts.CancelReply
	for again := true; again; {
		setLimits(args.Rules, t.limits, t.begin())
		reply, err = t.store.adjust(ctx, args)
		for i, n := range reply.Spent {
			s.spent[i] = max(s.spent[i], n)
		}
		promoted = append(promoted, b.p.rules.promotions(reply.Promoted, ids, reply.Now)...)
		again, err = t.again(ctx, "adjust", answer{reply.Status, reply.Rule, reply.Version, reply.Now}, err)
		if err != nil {
			return promoted, nil, err
		}
	}
	spent = make([]int, len(s.held))
	for i, n := range s.held {
		switch {
		case s.spent[i] >= 0:
			spent[i] = s.spent[i]
		case !t.limits[i].noDebt():
			spent[i] = max(0, n)
		}
	}
	return promoted, spent, nil
}
