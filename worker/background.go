package worker

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/throttle"
)

const (
	// refundsMax bounds the refunds that wait for Redis to come back. One that
	// finds no room leaves a permit charged, never one too few.
	refundsMax = 4096
	// refundFor is how long a refund is tried at least: else as long as the grant
	// that it may take back counts.
	refundFor   = 2 * time.Minute
	refundPause = 500 * time.Millisecond
	// promotionsMax bounds the promotions that wait to be passed on.
	promotionsMax = 1024
	// promotionsTogether bounds how many of them are passed on in one call.
	promotionsTogether = 256
	// logQuiet is the least time between two lines about the same trouble.
	logQuiet = 5 * time.Second
)

// refund is a grant that may have been charged and was not used.
type refund struct {
	policy *throttle.Policy
	throttle.Request
	until time.Time
}

// refundLater takes a call back whose answer never came, once Redis answers.
// The job keeps its place in the line: only the token is withdrawn.
func (a *Adapter) refundLater(p *throttle.Policy, r throttle.Request) {
	r.Job = ""
	counts := time.Duration(0)
	for _, l := range p.Rules() { // by which limits it was charged is not known when no answer came
		counts = max(counts, l.Limit().Window(), l.LimitLastKnown().Window())
	}
	select {
	case a.refunds <- refund{p, r, time.Now().Add(max(refundFor, counts))}:
	default:
		a.logFew("refunds", func() { a.log.Warn("too many refunds wait for Redis: some permits stay charged") })
	}
}

// passRefunds tries each refund until Redis answers it, in turn, so that one
// that is refused holds up no other.
func (a *Adapter) passRefunds(ctx context.Context) {
	var left []refund
	t := time.NewTicker(refundPause)
	defer t.Stop()
	for {
		more := a.refunds
		if len(left) >= refundsMax {
			more = nil
		}
		select {
		case <-ctx.Done():
			a.lastRefunds(left)
			return
		case r := <-more:
			left = append(left, r)
		case <-t.C:
			left = a.tryRefunds(ctx, left)
		}
	}
}

// tryRefunds makes what refunds it can, and answers those that are left. When
// Redis does not answer one, it would not answer the next.
func (a *Adapter) tryRefunds(ctx context.Context, all []refund) []refund {
	var left []refund
	for i, r := range all {
		promoted, err := r.policy.Refund(ctx, r.Request)
		a.promote(promoted...)
		if err == nil || time.Now().After(r.until) {
			continue
		}
		left = append(left, r)
		if errors.Is(err, throttle.ErrUnavailable) && !throttle.Answered(err) {
			return append(left, all[i+1:]...)
		}
	}
	return left
}

// lastRefunds tries once more, for a moment, what is left at the end.
func (a *Adapter) lastRefunds(left []refund) {
	ctx, cancel := context.WithTimeout(context.Background(), afterTimeout)
	defer cancel()
	for {
		select {
		case r := <-a.refunds:
			left = append(left, r)
			continue
		default:
		}
		break
	}
	for _, r := range left {
		if ctx.Err() != nil {
			return
		}
		_, _ = r.policy.Refund(ctx, r.Request)
	}
}

// promote lets jobs come earlier, in the background. It never blocks: a promotion that
// finds no room is dropped, and its job comes later than it could.
func (a *Adapter) promote(promoted ...throttle.Promotion) {
	for _, p := range promoted {
		select {
		case a.promotions <- p:
		default:
		}
	}
}

// passPromotions moves the tasks that may come earlier, in any queue. All promotions
// that have come in meanwhile are handled in one call. While a slot is free every call
// names the jobs that may have it, and one by one the work would never catch up.
func (a *Adapter) passPromotions(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-a.promotions:
			for queue, tasks := range a.gather(p) {
				a.passOn(ctx, queue, tasks)
			}
		}
	}
}

// gather returns a promotion and those that wait behind it, by queue.
func (a *Adapter) gather(first throttle.Promotion) map[string]promotion.Tasks {
	promoted := []throttle.Promotion{first}
	for len(promoted) < promotionsTogether {
		select {
		case p := <-a.promotions:
			promoted = append(promoted, p)
			continue
		default:
		}
		break
	}
	return promotion.ByQueue(promoted...)
}

// passOn lets the promoted tasks of a queue come earlier. Of those that are offered a
// lease it wakes as many as there is room for. Without it all come at the instants that
// they were promised.
func (a *Adapter) passOn(ctx context.Context, queue string, tasks promotion.Tasks) {
	w := a.wakers[queue]
	if w != nil {
		w.wakeOffered(ctx, tasks)
	}
	if len(tasks) == 0 || tasks.Retime(ctx, a.rdb, a.keys(queue)) != nil || w == nil {
		return
	}
	w.expect(tasks.First())
}

// logFew logs the same trouble at most every [logQuiet].
func (a *Adapter) logFew(what string, log func()) {
	now := time.Now()
	if last, ok := a.reported.Load(what); ok && now.Sub(last.(time.Time)) < logQuiet {
		return
	}
	a.reported.Store(what, now)
	log()
}

// failed logs that a call of the background work failed, and waits a moment.
func (a *Adapter) failed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	a.logFew(what, func() { a.log.Warn(what, zap.Error(err)) })
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}
