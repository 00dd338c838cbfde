package worker

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// ErrNoGrant says that a context is not that of a handler whose task type has a policy.
var ErrNoGrant = errors.New("worker: no grant in this context")

type attemptKey struct{}

func withAttempt(ctx context.Context, t *attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, t)
}

// Adjust corrects what the running attempt has paid, from its handler after the
// work: the actual cost of the rules whose cost the policy takes from the task, or
// of the rules that are named. 0 gives all of it back; what is more than the limit
// holds uses it up (leaky, smooth and warmup owe the rest, too). To adjust to the
// same again does nothing.
// After throttle.ErrUnavailable it may have been done: adjust again. Outside of a
// handler with a policy it is [ErrNoGrant].
func Adjust(ctx context.Context, actual int, rules ...string) error {
	t, _ := ctx.Value(attemptKey{}).(*attempt)
	if t == nil {
		return ErrNoGrant
	}
	costs := make(map[string]int)
	for _, rule := range rules {
		costs[rule] = actual
	}
	if len(rules) == 0 {
		for _, r := range t.policy.Rules {
			if r.Cost != nil {
				costs[r.Name] = actual
			}
		}
	}
	return t.adjust(ctx, costs)
}

// adjust corrects the charge of the policy's own grant.
func (t *attempt) adjust(ctx context.Context, costs map[string]int) error {
	t.mu.Lock()
	var bill *throttle.Charge
	if len(t.grants) > 0 && t.policy.decide != nil {
		bill = t.grants[0].bill // what the task was admitted by
	}
	t.mu.Unlock()
	if bill == nil {
		return ErrNoGrant
	}
	promoted, err := bill.Adjust(ctx, costs)
	t.a.promote(promoted...)
	return err
}

// notCharged is a failure after which nothing was used.
type notCharged struct{ error }

func (e notCharged) Unwrap() error { return e.error }

// NotCharged marks a handler's error: nothing was used of what the attempt has
// paid, and all of it comes back. An attempt whose answer was lost may have been
// charged by the provider: it is for errors that are sure, such as a connection
// that was refused. NotCharged(nil) is nil.
func NotCharged(err error) error {
	if err == nil {
		return nil
	}
	return notCharged{err}
}

// settleUp gives back what a failed attempt did not use, and makes a deferral of
// what its provider has put off.
func (t *attempt) settleUp(ctx context.Context, p taskPolicy, err error) error {
	if err == nil || t.a.deferrals.of(err) != nil {
		return err
	}
	_, free := errors.AsType[notCharged](err)
	if free || p.Charge == queue.ChargeSuccess {
		t.unpay(ctx)
	}
	if later, ok := errors.AsType[*RetryAfterError](err); ok {
		return t.postpone(ctx, p, later, err)
	}
	return err
}

// unpay gives back all permits of the attempt, whose handler has returned.
func (t *attempt) unpay(ctx context.Context) {
	t.mu.Lock()
	grants := slices.Clone(t.grants)
	t.mu.Unlock()
	for _, g := range grants {
		t.giveBack(ctx, g)
	}
}

// unbill gives back what a grant has paid after it was settled to something else.
func (t *attempt) unbill(ctx context.Context, g held) {
	nothing := make(map[string]int)
	for _, l := range g.policy.Rules() {
		nothing[l.Rule()] = 0
	}
	promoted, err := g.bill.Adjust(ctx, nothing)
	t.a.promote(promoted...)
	if err != nil {
		t.a.logFew("unpaid", func() {
			t.a.log.Warn("permits that were settled can't be given back: they stay charged", zap.Stringer("rules", g.policy), zap.Error(err))
		})
	}
}
