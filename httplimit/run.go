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

// settling gives back what a request was granted, or some of it.
type settling func(context.Context) ([]throttle.Promotion, error)

// giveBack makes a call that gives back what a request was granted. If Redis does not do it now, it is made again for as long as that counts.
func (l *Middleware) giveBack(ctx context.Context, d throttle.Decision, counts time.Duration, call settling) error {
	do := func(ctx context.Context) error {
		_, err := call(ctx)
		return err
	}
	err := do(ctx)
	if throttle.ForWorkers.MayPass(err) {
		l.unsettled.Add(throttle.ForWorkers.Servers(l.policy, d.Request), counts, do)
	}
	return err
}

// settle ends the leases of what was granted, and gives it back. It is done before
// the answer is complete, so that a client that has it finds the permits there. What Redis does not do is repeated in
// the background while it counts.
func (l *Middleware) settle(ctx context.Context, d throttle.Decision, release settling, refund bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	leases, permits := throttle.ForWorkers.CountsFor(l.policy, d.Request)
	failed := l.giveBack(ctx, d, leases, release)
	if refund {
		permitsBack := func(ctx context.Context) ([]throttle.Promotion, error) { return l.policy.Refund(ctx, d.Request) }
		failed = errors.Join(failed, l.giveBack(ctx, d, permits, permitsBack))
	}
	if failed != nil {
		l.note(context.WithoutCancel(ctx), d, failed)
	}
}
