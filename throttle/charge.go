package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/headwayq/headway/internal/luascripts"
)

// Bill is what one grant has paid, by rule, and corrects it after the work: a
// job that turned out to cost more or less than it asked for. It is made by
// [Policy.Charge], and safe for concurrent use.
type Charge struct {
	p *Policy
	d Decision

	mu       sync.Mutex
	payments []payment    // the grant's own, and what was paid more, oldest first
	left     []adjustment // corrections that are to be made; the first may have been
}

// payment is what was paid by rule at one time.
type payment struct {
	token   Token
	charged []int
}

// settling is one correction, known by a token: Redis makes it once.
type adjustment struct {
	token Token
	of    Token // the payment that comes back; of the grant when more is paid
	by    []int // by rule, below 0 for what comes back
}

// paidLocked is what a rule was paid, when all corrections are made.
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

// Paid tells what a rule was paid, 0 for a rule that is not in the policy.
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

// Settled says whether some payment was corrected, or may have been.
func (b *Charge) Adjusted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.p.rules {
		if b.chargedLocked(i) != b.d.keyCost(i).Cost {
			return true
		}
	}
	return len(b.left) > 0
}

// Settle makes the named rules' payments what they are told to be, 0 to
// [PermitsMax]. What is paid more counts as spent from now on, even above the
// limit: a limit decides what is let in, and this was. A limit that is used up owes
// no more than that, but for leaky, smooth and warmup. What is paid less comes
// back as [Limiter.Refund] gives it back, from the newest payment first; a bucket, which
// knows no single permits, gives back what is sure when a correction is corrected. To settle to the same again does
// nothing. After [ErrUnavailable] it may have been done: settle again. It may be long
// after the grant, as long as that counts. Rules that
// limit how many run at once are left alone. Who may come earlier is told in the
// Turns.
func (b *Charge) Adjust(ctx context.Context, costs map[string]int) ([]Promotion, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	to, err := b.target(costs)
	if err != nil || b.d.made == fromNowhere || !b.d.Granted {
		return nil, err
	}
	turns, err := b.adjustLocked(ctx)
	if err != nil {
		return nil, err
	}
	b.planLocked(to)
	more, err := b.adjustLocked(ctx)
	return append(turns, more...), err
}

// planLocked plans what makes the payments what they are to be: what comes back is
// taken from the newest payment first, for each is given back where it was made.
func (b *Charge) planLocked(to []int) {
	more := make([]int, len(to))
	back := make([]int, len(to)) // that is still to come back
	for i := range to {
		by := to[i] - b.chargedLocked(i)
		more[i], back[i] = max(0, by), max(0, -by)
	}
	for _, p := range slices.Backward(b.payments) {
		by := make([]int, len(to))
		for i := range to {
			n := min(back[i], p.charged[i])
			by[i], back[i] = -n, back[i]-n
		}
		b.addLocked(p.token, by)
	}
	b.addLocked(b.d.Token, more)
}

func (b *Charge) addLocked(of Token, by []int) {
	if slices.ContainsFunc(by, func(n int) bool { return n != 0 }) {
		b.left = append(b.left, adjustment{NewToken(), of, by})
	}
}

// target is what each rule is to be paid.
func (b *Charge) target(costs map[string]int) ([]int, error) {
	to := make([]int, len(b.p.rules))
	for i := range to {
		to[i] = b.chargedLocked(i)
	}
	var errs []error
	known := 0
	for i, l := range b.p.rules {
		cost, named := costs[l.rule]
		if !named {
			continue
		}
		known++
		if cost < 0 || cost > PermitsMax {
			errs = append(errs, fmt.Errorf("%w: rule %q is settled to %d permits, want 0 to %d", ErrInvalidCost, l.rule, cost, PermitsMax))
		}
		if !l.limit.IsConcurrent() {
			to[i] = cost
		}
	}
	if known < len(costs) {
		errs = append(errs, fmt.Errorf("%w: a rule to settle is not in the policy %v", ErrInvalidConfig, b.p))
	}
	return to, errors.Join(errs...)
}

// settleLocked makes the corrections that are left, in order.
func (b *Charge) adjustLocked(ctx context.Context) ([]Promotion, error) {
	var turns []Promotion
	for len(b.left) > 0 {
		next, err := b.sendLocked(ctx, b.left[0])
		if err != nil {
			return turns, err
		}
		turns = append(turns, next...)
		b.noteLocked(b.left[0])
		b.left = b.left[1:]
	}
	return turns, nil
}

// noteLocked takes in a correction that was made.
func (b *Charge) noteLocked(s adjustment) {
	if slices.ContainsFunc(s.by, func(n int) bool { return n > 0 }) {
		b.payments = append(b.payments, payment{s.token, s.by})
		return
	}
	for n := range b.payments {
		if b.payments[n].token == s.of {
			for i := range s.by {
				b.payments[n].charged[i] += s.by[i]
			}
		}
	}
}

// sendLocked makes one correction, where the grant was made.
func (b *Charge) sendLocked(ctx context.Context, s adjustment) ([]Promotion, error) {
	r := b.d.Request
	if s.of != b.d.Token {
		r.grant = grant{} // it says nothing of what was charged later, which Redis remembers as long as it counts
	}
	t := b.p.retryBy(b.p.leaseStore(b.d), nil)
	if b.d.made == fromFallback { // Redis may still be away, and knows nothing of this grant
		t.limits = b.p.lastKnown()
	} else {
		var err error
		if t, err = b.p.retry(ctx); err != nil {
			return nil, err
		}
	}
	args := luascripts.AdjustArgs{Rules: b.p.ruleCalls(b.p.ids(r), r), Policy: b.p.name, Token: uint64(s.of), Bill: uint64(s.token)}
	for i := range args.Rules {
		args.Rules[i].Cost = s.by[i]
	}
	var reply luascripts.CancelReply
	for again := true; again; {
		number(args.Rules, t.limits, t.begin())
		var err error
		reply, err = t.store.adjust(ctx, args)
		again, err = t.again(ctx, "settle", answer{reply.Status, reply.Rule, reply.Version, reply.Now}, err)
		if err != nil {
			return nil, err
		}
	}
	return b.p.promotions(reply.Promoted, reply.Now), nil
}
