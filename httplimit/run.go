package httplimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/throttle"
)

// settleWithin bounds what is said to Redis after the handler has returned, each time.
const settleWithin = time.Second

// run calls the handler of a request that was granted, and settles afterwards.
func (l *Middleware) run(w http.ResponseWriter, r *http.Request, next http.Handler, d throttle.Decision) {
	leased := throttle.ForWorkers.LeaseFor(l.policy, d) > 0
	if l.cfg.Refund == nil && !leased {
		next.ServeHTTP(w, r)
		return
	}
	ctx, release := l.policy.Hold(r.Context(), d)
	if leased {
		r = r.WithContext(ctx)
	}
	var seen *recorder
	if l.cfg.Refund != nil {
		w, seen = record(w)
	}
	returned := false
	defer func() {
		if errors.Is(context.Cause(ctx), throttle.ErrLeaseLost) {
			l.cfg.Logger.Warn("lease lost", zap.Stringer("policy", l.policy))
		}
		refund := false
		defer func() { l.settle(ctx, d, release, refund) }() // also when Refund panics: a slot would be renewed for ever
		refund = seen != nil && l.cfg.Refund(seen.final(returned))
	}()
	next.ServeHTTP(w, r)
	returned = true
}

// settle ends the leases of what was granted, and gives it back. It is done before
// the answer is complete, so that a client that has it finds the permits there. What Redis does not answer is repeated in
// the background while it counts, see [unsettled].
func (l *Middleware) settle(ctx context.Context, d throttle.Decision, release func(context.Context) ([]throttle.Promotion, error), refund bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	endLeases := func(ctx context.Context) error {
		_, err := release(ctx)
		return err
	}
	giveBack := func(ctx context.Context) error {
		_, err := l.policy.Refund(ctx, d.Request)
		return err
	}
	leases, permits := throttle.ForWorkers.CountsFor(d)
	failed := endLeases(ctx)
	if unanswered(failed) {
		l.unsettled.add(endLeases, leases)
	}
	if refund {
		err := giveBack(ctx)
		if unanswered(err) {
			l.unsettled.add(giveBack, permits)
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		l.note(context.WithoutCancel(ctx), d, failed)
	}
}
