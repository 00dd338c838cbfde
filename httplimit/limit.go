package httplimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/giveback"
	"github.com/headwayq/headway/internal/stderrlog"
	"github.com/headwayq/headway/throttle"
)

// StatusDefault answers a request that a rule refuses.
const StatusDefault = http.StatusTooManyRequests

// Rule is a limit and what it is counted for.
type Rule struct {
	// Limiter decides. The limiters of a [Middleware] share one client and one
	// configuration; those of [throttle.Concurrent] come last.
	Limiter *throttle.Limiter

	// Key says what a request is counted for: [ByIP], [ByUser], [ByRoute],
	// [ByHeader], [Same], [Join], or a function of yours.
	Key KeyFunc

	// Cost says how many permits a request takes, at least 1. An error answers
	// 400. Defaults to 1.
	Cost func(*http.Request) (int, error)
}

// Headers says whether answers tell clients about the limits.
type Headers int

const (
	// HeadersOn sets RateLimit-Policy and RateLimit. The default.
	HeadersOn Headers = iota
	// HeadersOff keeps the limits and their names to the server. Retry-After
	// is set all the same.
	HeadersOff
)

// Config is how a [Middleware] acts. The zero Config is usable.
type Config struct {
	// Match says which requests are limited; others go on untouched. Defaults
	// to all.
	Match func(*http.Request) bool

	// MaxWait is how long a request may wait for its turn before it is refused.
	// It waits in the line, in order of arrival, and holds its connection and its
	// goroutine. A request that would have to wait longer is refused at once; one that
	// waits for a slot of throttle.Concurrent when the time is over.
	// Defaults to 0, no wait.
	MaxWait time.Duration

	// Refund says, by the status of the answer, which requests are given back
	// once their handler has returned: those that failed, say. A handler that
	// panics before it answers has status 500. When Refund itself panics, nothing is
	// given back, and leases end. Defaults to none.
	Refund func(status int) bool

	// Status answers a request that a rule refuses, 400 to 599. Defaults to
	// [StatusDefault].
	Status int

	// Headers are on or off. Defaults to [HeadersOn].
	Headers Headers

	// OnRefuse answers in place of a problem document. Retry-After and the
	// RateLimit fields are set, the status is not; d.Rule refuses until d.At.
	OnRefuse func(w http.ResponseWriter, r *http.Request, d throttle.Decision)

	// OnError answers when nothing could be decided; [StatusOf] tells what would
	// have been answered. An error of your own KeyFunc comes here as it is.
	OnError func(w http.ResponseWriter, r *http.Request, err error)

	// Logger is told when the limits stop to decide and when they decide again, and
	// of leases that were lost. Defaults to zap's production lines on stderr, warnings
	// and errors only; zap.NewNop() silences them.
	Logger *zap.Logger
}

// Middleware is middleware that lets requests through at the pace of its rules. It
// holds nothing that must be closed: what it does in the background ends when the client
// of its limiters is closed. It is safe for concurrent use. Its Config is not read after New.
type Middleware struct {
	policy *throttle.Policy
	rules  []Rule
	cfg    Config
	away   atomic.Bool // the limits did not decide when they were asked last

	unsettled *giveback.Queue // what Redis did not take back after a handler had returned
}

// New puts rules together, narrowest key first: an address before a route, a route
// before all. All faults are reported at once; each unwraps to
// [throttle.ErrInvalidConfig].
func New(rules []Rule, cfg Config) (*Middleware, error) {
	cfg.Status = cmp.Or(cfg.Status, StatusDefault)
	cfg.Logger = stderrlog.Or(cfg.Logger)
	cfg.Logger = cfg.Logger.With(zap.String("component", "httplimit"))
	l := &Middleware{rules: append([]Rule(nil), rules...), cfg: cfg}
	l.unsettled = throttle.ForWorkers.NewGiveBacks(settleWithin, func(line string, err error) { l.cfg.Logger.Warn(line, zap.Error(err)) })
	errs := []error{cfg.validate()}
	limiters := make([]*throttle.Limiter, len(rules))
	whole := true
	for i, r := range rules {
		limiters[i] = r.Limiter
		if r.Limiter == nil {
			whole = false
			errs = append(errs, fmt.Errorf("%w: httplimit: rule %d has no Limiter", throttle.ErrInvalidConfig, i+1))
		}
		if r.Key == nil {
			errs = append(errs, fmt.Errorf("%w: httplimit: rule %d has no Key", throttle.ErrInvalidConfig, i+1))
		}
	}
	if whole {
		var err error
		l.policy, err = throttle.NewPolicy(limiters...)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return l, nil
}

func (c Config) validate() error {
	var errs []error
	if c.Status < 400 || c.Status > 599 {
		errs = append(errs, fmt.Errorf("%w: httplimit: Status %d, want 400 to 599", throttle.ErrInvalidConfig, c.Status))
	}
	if c.MaxWait < 0 {
		errs = append(errs, fmt.Errorf("%w: httplimit: MaxWait %v, want 0 or more", throttle.ErrInvalidConfig, c.MaxWait))
	}
	if c.Headers != HeadersOn && c.Headers != HeadersOff {
		errs = append(errs, fmt.Errorf("%w: httplimit: Headers %d, want HeadersOn or HeadersOff", throttle.ErrInvalidConfig, c.Headers))
	}
	return errors.Join(errs...)
}

// Policy is what decides: for its rules and its counts.
func (l *Middleware) Policy() *throttle.Policy { return l.policy }

// Handler limits next. A request is charged once, before next is called. With a
// rule of [throttle.Concurrent] it holds its leases until next returns, also when
// next panics; the request's context ends with [throttle.ErrLeaseLost] as its
// cause when a lease is lost meanwhile. A nil next panics.
func (l *Middleware) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("httplimit: nil handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.cfg.Match != nil && !l.cfg.Match(r) {
			next.ServeHTTP(w, r)
			return
		}
		want, err := l.request(r)
		if err != nil {
			l.fail(w, r, err)
			return
		}
		d, err := l.decide(r.Context(), want)
		l.note(r.Context(), d, err)
		if err != nil {
			if errors.Is(err, throttle.ErrExceedsLimit) {
				l.tellPolicy(w.Header())
			}
			l.fail(w, r, err)
			return
		}
		l.tellPolicy(w.Header())
		l.tellLeft(r.Context(), w.Header(), d)
		if !d.Granted {
			l.refuse(w, r, d)
			return
		}
		l.run(w, r, next, d)
	})
}

// request is what r asks of the rules.
func (l *Middleware) request(r *http.Request) (throttle.Request, error) {
	wants := make([]throttle.KeyCost, len(l.rules))
	for i, rule := range l.rules {
		key, err := rule.Key(r)
		if err != nil {
			return throttle.Request{}, &RequestError{Rule: rule.Limiter.Rule(), What: "key", Err: err}
		}
		cost := 1
		if rule.Cost != nil {
			if cost, err = rule.Cost(r); err != nil {
				return throttle.Request{}, &RequestError{Rule: rule.Limiter.Rule(), What: "cost", Err: err}
			}
		}
		wants[i] = throttle.KeyCost{Key: key, Cost: cost}
	}
	return throttle.Request{Key: wants[0].Key, Cost: wants[0].Cost, More: wants[1:]}, nil
}

// decide asks without waiting first: that answer tells what is left, and who has
// nothing to wait for leaves no place in a line.
func (l *Middleware) decide(ctx context.Context, want throttle.Request) (d throttle.Decision, err error) {
	d, err = l.policy.TryAcquire(ctx, want)
	if err != nil || d.Granted || l.cfg.MaxWait == 0 || wait(d) > l.cfg.MaxWait && !l.forSlot(d) {
		return d, err
	}
	refused := d
	want.MaxWait = l.cfg.MaxWait
	d, err = l.policy.Acquire(ctx, want)
	if late, ok := errors.AsType[*throttle.TooLateError](err); ok { // others came first
		refused.Rule, refused.At, refused.Now = late.Rule, late.At, late.At.Add(-late.Wait)
		return refused, nil
	}
	return d, err
}

// forSlot says that a slot is missing: it may be free long before the end of the lease that is told.
func (l *Middleware) forSlot(d throttle.Decision) bool {
	return slices.ContainsFunc(l.policy.Rules(), func(of *throttle.Limiter) bool { return of.Rule() == d.Rule && of.Limit().IsConcurrent() })
}

// wait is how long the limit lets nothing like it through.
func wait(d throttle.Decision) time.Duration { return d.At.Sub(d.Now) }

// note logs that the limits stopped to decide, or decide again.
func (l *Middleware) note(ctx context.Context, d throttle.Decision, err error) {
	fallback := d.Fallback != throttle.FailClosed
	switch {
	case err != nil && (ctx.Err() != nil || StatusOf(err) != http.StatusServiceUnavailable): // the client's doing
	case err != nil || fallback:
		if l.away.CompareAndSwap(false, true) {
			l.cfg.Logger.Warn("limits do not decide", zap.Error(err), zap.Stringer("instead", d.Fallback))
		}
	default:
		if l.away.CompareAndSwap(true, false) {
			l.cfg.Logger.Info("limits decide again")
		}
	}
}
