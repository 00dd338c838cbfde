package throttle

import (
	"context"
	"time"
)

// Host is what a worker puts into the context of a running task, so that
// [Limiter.Acquire] gives the worker slot back instead of sleeping in it. Its
// methods are called from the goroutines of the handler.
type Host interface {
	// Job is the id under which the task waits in lines.
	Job() string
	// MaxWait is how long from now the task may wait, as in [Request].
	MaxWait() time.Duration
	// Ask redeems on behalf of the task: [Policy.Redeem] with what the worker
	// wants to see of it. A call that was lost it takes back itself; the error
	// is what the handler has to return.
	Ask(ctx context.Context, p *Policy, r Request) (Decision, error)
	// Begin waits the rest until a grant's instant and makes the grant part of
	// the attempt. Not fresh means that the process stood still meanwhile: the
	// grant was given back, with its turn, and the caller asks anew. An error
	// means that it was given back, and what to return.
	Begin(ctx context.Context, p *Policy, d Decision) (fresh bool, err error)
	// Defer gives earlier grants of the attempt back and answers the error that
	// the handler has to return.
	Defer(ctx context.Context, p *Policy, d Decision) error
}

type hostKey struct{}

// WithHost returns a context in which [Limiter.Acquire] defers to h.
func WithHost(ctx context.Context, h Host) context.Context {
	return context.WithValue(ctx, hostKey{}, h)
}

func hostFrom(ctx context.Context) Host {
	h, _ := ctx.Value(hostKey{}).(Host)
	return h
}

// acquireHosted asks once. A caller's own bound and the task's deadline both
// hold.
func (p *Policy) acquireHosted(ctx context.Context, h Host, r Request) (Decision, error) {
	r.Job = h.Job()
	r.Token = NewToken()
	if w := h.MaxWait(); w != 0 && (r.MaxWait == 0 || w < r.MaxWait) {
		r.MaxWait = w
	}
	for {
		d, err := h.Ask(ctx, p, r)
		switch {
		case err != nil:
			return d, err
		case !d.Granted:
			return d, h.Defer(ctx, p, d)
		}
		fresh, err := h.Begin(ctx, p, d)
		if fresh || err != nil {
			return d, err
		}
		r.Token = NewToken()
	}
}
