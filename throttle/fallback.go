package throttle

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// awayPause is how long a Redis that did not answer is left alone.
const unavailablePause = 250 * time.Millisecond

// Away says what a limiter does while Redis is away: while a call ends with
// [ErrUnavailable], and not because its caller's context ended. So a client's
// own time-outs must be shorter than the deadlines of the callers, or nobody
// finds out that Redis hangs.
//
// With FailOpen and FailLocal a call that finds Redis away is decided without
// it, and taken back there behind its caller's back, in case it was lost on its
// way back. Then Redis is left alone for 250 ms, in which all are decided
// without it at once; after that one caller at a time tries it again, and waits
// for it as long as the client's time-outs say. Once it answers it decides
// again. A Redis that answers and refuses (it is full) is asked each time, and
// nothing is taken back: it charged nothing.
//
// A place that somebody had in Redis and did not come back for, because it was
// served without, holds up the others until 100 ms after its instant.
//
// Only asking has a fallback. [Limiter.Peek] and its like, and giving back what
// Redis granted, fail with [ErrUnavailable] as ever.
type FailureMode int

// What may decide while Redis is away.
const (
	// FailClosed grants nothing: the error is the caller's. The default.
	FailClosed FailureMode = iota
	// FailOpen grants everything at once that the limit could ever admit, and
	// counts it nowhere.
	FailOpen
	// FailLocal lets the same limit decide in the memory of this process, from
	// nothing spent: together n processes may grant n times the limit. Who
	// waits there has its place there as long as Redis is away, and starts at
	// the end of the line in Redis when that is back. What was granted locally
	// is not known to Redis.
	FailLocal
)

var failureModeNames = []string{"fail closed", "fail open", "fail local"}

func (a FailureMode) valid() bool { return a >= 0 && int(a) < len(failureModeNames) }

// String names the constant: "fail open".
func (a FailureMode) String() string {
	if !a.valid() {
		return "Away(" + strconv.Itoa(int(a)) + ")"
	}
	return failureModeNames[a]
}

// away is what a limiter knows of Redis' absence. spare counts in its place.
type availability struct {
	mode     FailureMode
	fallback atomic.Pointer[clockedStore]
	now      func() time.Time // spare's clock; nil for that of this process

	mu     sync.Mutex
	until  time.Time // Redis is left alone; zero while it answers
	trying bool      // somebody asks it again
}

// leftAlone says that Redis is not to be asked now. Otherwise one of the three
// below must follow.
func (a *availability) skipRedis() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.until.IsZero() {
		return false
	}
	if a.trying || time.Now().Before(a.until) {
		return true
	}
	a.trying = true
	return false
}

// isGone says that Redis did not answer when it was asked last.
func (a *availability) isUnavailable() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.until.IsZero()
}

// back says that Redis answered.
func (a *availability) available() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until, a.trying = time.Time{}, false
}

// gone says that Redis did not answer.
func (a *availability) unavailable() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until, a.trying = time.Now().Add(unavailablePause), false
}

// unknown says that a caller did not wait for the answer: that proves nothing,
// but who was away is not back either.
func (a *availability) unknown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.until.IsZero() {
		a.until, a.trying = time.Now().Add(unavailablePause), false
	}
}

// desk is the one that counts while Redis is away.
func (a *availability) fallbackStore() *clockedStore {
	if d := a.fallback.Load(); d != nil {
		return d
	}
	a.fallback.CompareAndSwap(nil, newMemoryDesk(a.now))
	return a.fallback.Load()
}

// decide asks Redis, or what stands in for it.
func (p *Policy) decideOrFallback(ctx context.Context, mode luascripts.Mode, r *Request, d *Decision) error {
	if p.availability.mode == FailClosed {
		return p.decideInRedis(ctx, mode, r, d)
	}
	if p.availability.skipRedis() {
		return p.decideWithoutRedis(ctx, mode, r, d)
	}
	err := p.decideInRedis(ctx, mode, r, d)
	switch {
	case errors.Is(err, ErrExceedsLimit): // Redis was not asked
		p.availability.unknown()
		return err
	case !errors.Is(err, ErrUnavailable):
		p.availability.available()
		if fallback := p.availability.fallback.Load(); fallback != nil && r.Job != "" { // it has its place in Redis now, or needs none
			p.leaveFallback(ctx, fallback, r)
		}
		return err
	case ctx.Err() != nil:
		p.availability.unknown()
		return err
	case Answered(err): // and charged nothing
		p.availability.available()
		return p.decideWithoutRedis(ctx, mode, r, d)
	}
	return p.fallBack(ctx, mode, r, d)
}

// goAlone decides without a Redis whose answer did not come.
func (p *Policy) fallBack(ctx context.Context, mode luascripts.Mode, r *Request, d *Decision) error {
	p.availability.unavailable()
	err := p.decideWithoutRedis(ctx, mode, r, d)
	lost := *r
	if !d.Granted {
		lost.Job = ""        // who will ask again keeps its place in Redis, if it got one
		d.Token = NewToken() // and asks by another token: this one is refused from now on
	}
	// It ends with withdrawTimeout, or with the client's own time-outs.
	go p.withdrawFromStore(context.WithoutCancel(ctx), lost)
	return err
}

// alone is [Policy.decideAlone] for who passes what is large by pointers: what that
// takes of the stack is not to be taken by each call.
//
//go:noinline
func (p *Policy) decideWithoutRedis(ctx context.Context, mode luascripts.Mode, r *Request, d *Decision) (err error) {
	*d, err = p.decideByFallback(ctx, mode, *r)
	return err
}

// decideAlone decides without Redis. A gate that is shut stays shut, and a rule that
// is known to be closed stays closed.
func (p *Policy) decideByFallback(ctx context.Context, mode luascripts.Mode, r Request) (d Decision, err error) {
	if p.availability.mode == FailLocal {
		t := p.retryBy(p.availability.fallbackStore(), p.lastKnown())
		err = p.acquireFrom(ctx, &t, mode, &r, &d)
		if d.Granted {
			d.made = fromFallback
		}
	} else {
		d, err = p.decideOpen(mode, r)
	}
	d.Fallback = p.availability.mode
	if err != nil {
		d.Granted = false
	}
	return d, err
}

// decideOpen grants whatever the limits could ever admit, while the gates and the
// rules are open.
func (p *Policy) decideOpen(mode luascripts.Mode, r Request) (Decision, error) {
	now := time.Now()
	d := Decision{Request: r, Rule: p.rules[0].rule, Granted: !mode.Books(), At: now, Now: now, start: now}
	d.made = fromNowhere
	if rule, err := p.fits(p.lastKnown(), &r); err != nil {
		d.Rule = rule
		return d, err
	}
	at, shut := p.closedUntil(now)
	if opens := openedAt(r.Gates, at); opens.After(at) {
		at, shut = opens, shutGate(r.Gates, now, opens)
	}
	if at.After(now) {
		d.Granted, d.At, d.start, d.Rule = false, at, at, shut
		d.Refused = mode == luascripts.Try || mode == luascripts.BookLastRule
		if r.MaxWait != 0 && at.Sub(now) > max(0, r.MaxWait) {
			return d, &TooLateError{Rule: d.Rule, At: at, Wait: at.Sub(now), MaxWait: r.MaxWait}
		}
	}
	return d, nil
}

// closedUntil is when all rules are open that this process knows to be closed.
func (p *Policy) closedUntil(now time.Time) (until time.Time, rule string) {
	until = now
	for _, l := range p.rules {
		if at := l.closedLastKnown(); at.After(until) {
			until, rule = at, l.rule
		}
	}
	return until, rule
}

// lastKnown are the limits in force as they were heard last.
func (p *Policy) lastKnown() []activeLimit {
	in := make([]activeLimit, len(p.rules))
	for i, l := range p.rules {
		in[i] = activeLimit{Limit: l.LimitLastKnown(), closed: l.closedLastKnown()}
	}
	return in
}

// leaveSpare takes a job out of the lines of this process.
func (p *Policy) leaveFallback(ctx context.Context, fallback *clockedStore, of *Request) {
	r := *of
	r.Token, r.grant = 0, grant{}
	_, _, _ = p.cancelAt(ctx, p.retryBy(fallback, p.lastKnown()), p.ids(r), r, false)
}

func (p *Policy) withdrawFromStore(ctx context.Context, r Request) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	if t, err := p.retry(ctx); err == nil {
		_, _, _ = p.cancelAt(ctx, t, p.ids(r), r, false)
	}
}

// instead is what a limit would have done with a shadowed grant.
type instead uint8

const (
	insteadOfNothing instead = iota // it is none
	insteadOfWait                   // refused it, or let it wait
	insteadOfLate                   // let it wait too long
	insteadOfNever                  // never admitted it
	insteadOfFault                  // not said: its state can't be read
)

// watched is [Policy.watch] for who passes what is large by pointers.
//
//go:noinline
func (p *Policy) decideInShadowInto(ctx context.Context, mode luascripts.Mode, r *Request, d *Decision) (err error) {
	*d, err = p.decideInShadow(ctx, mode, *r)
	return err
}

// watch asks without waiting or booking, and lets run what was refused.
func (p *Policy) decideInShadow(ctx context.Context, mode luascripts.Mode, r Request) (Decision, error) {
	if mode.Books() { // it spends nothing, and is not to wait
		now := time.Now()
		return Decision{Request: r, Rule: p.rules[0].rule, At: now, Now: now, start: now}, nil
	}
	unbounded := r
	unbounded.MaxWait = 0 // the answer must not depend on it
	var d Decision
	err := p.decideOrFallback(ctx, luascripts.Try, &unbounded, &d)
	d.MaxWait = r.MaxWait
	switch {
	case err == nil && d.Granted:
		return d, nil
	case err == nil:
		d.instead = insteadOfWait
		if r.MaxWait != 0 && d.At.Sub(d.Now) > max(0, r.MaxWait) {
			d.instead = insteadOfLate
		}
		if !d.Promised.IsZero() {
			p.leave(ctx, r) // it stands in the line from before, and runs now
		}
	case ctx.Err() != nil || errors.Is(err, ErrWithdrawn): // the caller's own doing
		return d, err
	case errors.Is(err, ErrExceedsLimit):
		d.instead = insteadOfNever
	default:
		d.instead = insteadOfFault
	}
	d.Refused = false
	d.Granted, d.Shadowed, d.made, d.start = true, true, fromNowhere, time.Now()
	return d, nil
}
