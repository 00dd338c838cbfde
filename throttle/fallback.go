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

// unavailablePause is how long Redis is not asked after it did not answer.
const unavailablePause = 250 * time.Millisecond

// FailureMode says what a limiter does while Redis is unavailable: while a call ends
// with [ErrUnavailable], and not because its caller's context ended. So the client's
// time-outs must be shorter than the deadlines of the callers. Otherwise no call
// finds out that Redis hangs.
//
// With FailOpen and FailLocal a call that gets no answer is decided without Redis.
// It is taken back in Redis in the background, in case only its reply was lost. Then
// Redis is not asked for 250 ms, and all calls are decided without it at once. After
// that one caller at a time tries Redis again, and waits for it as long as the
// client's time-outs say. Once Redis answers it decides again. A Redis that answers
// and refuses (it is full) is asked each time, and nothing is taken back: it charged
// nothing.
//
// A job that had a place in Redis and was served without it holds up the others
// until 100 ms after its instant.
//
// Only asking for permits has a fallback. [Limiter.Peek] and its like, and giving
// back what Redis granted, fail with [ErrUnavailable].
type FailureMode int

// What may decide while Redis is unavailable.
const (
	// FailClosed grants nothing: the error is the caller's. The default.
	FailClosed FailureMode = iota
	// FailOpen grants everything at once that the limit could ever admit, and
	// counts it nowhere.
	FailOpen
	// FailLocal lets the same limit decide in the memory of this process, from
	// nothing spent: together n processes may grant n times the limit. A job
	// that waits has its place there as long as Redis is unavailable, and starts
	// at the end of the line in Redis when that answers again. What was granted locally
	// is not known to Redis.
	FailLocal
)

var failureModeNames = []string{"fail closed", "fail open", "fail local"}

func (a FailureMode) valid() bool { return a >= 0 && int(a) < len(failureModeNames) }

// String names the constant: "fail open".
func (a FailureMode) String() string {
	if !a.valid() {
		return "FailureMode(" + strconv.Itoa(int(a)) + ")"
	}
	return failureModeNames[a]
}

// availability is what a limiter knows about whether Redis answers. fallback counts
// in its place.
type availability struct {
	mode     FailureMode
	fallback atomic.Pointer[clockedStore]
	now      func() time.Time // fallback's clock; nil for that of this process

	mu     sync.Mutex
	until  time.Time // Redis is not asked before; zero while it answers
	trying bool      // a caller is asking it again
}

// skipRedis says that Redis is not to be asked now. After false one of available,
// unavailable and unknown must follow.
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

// isUnavailable says that Redis did not answer when it was asked last.
func (a *availability) isUnavailable() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.until.IsZero()
}

// available notes that Redis answered.
func (a *availability) available() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until, a.trying = time.Time{}, false
}

// unavailable notes that Redis did not answer.
func (a *availability) unavailable() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until, a.trying = time.Now().Add(unavailablePause), false
}

// unknown notes that a caller did not wait for the answer. That proves nothing, but
// a Redis that was unavailable still is.
func (a *availability) unknown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.until.IsZero() {
		a.until, a.trying = time.Now().Add(unavailablePause), false
	}
}

// fallbackStore is the store that counts while Redis is unavailable.
func (a *availability) fallbackStore() *clockedStore {
	if d := a.fallback.Load(); d != nil {
		return d
	}
	a.fallback.CompareAndSwap(nil, newMemoryDesk(a.now))
	return a.fallback.Load()
}

// decideOrFallback asks Redis, or decides without it.
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
	case ForWorkers.Answered(err): // and charged nothing
		p.availability.available()
		return p.decideWithoutRedis(ctx, mode, r, d)
	}
	return p.fallBack(ctx, mode, r, d)
}

// fallBack decides without a Redis whose answer did not come.
func (p *Policy) fallBack(ctx context.Context, mode luascripts.Mode, r *Request, d *Decision) error {
	p.availability.unavailable()
	err := p.decideWithoutRedis(ctx, mode, r, d)
	lost := *r
	if !d.Granted {
		lost.Job = ""        // a job that will ask again keeps its place in Redis, if it got one
		d.Token = NewToken() // and asks with another token: this one is refused from now on
	}
	// It ends with withdrawTimeout, or with the client's own time-outs.
	go p.withdrawFromStore(context.WithoutCancel(ctx), lost)
	return err
}

// decideWithoutRedis is [Policy.decideByFallback] with pointers: its callers are on
// the way of every call, which must not pay for the stack that this one takes.
//
//go:noinline
func (p *Policy) decideWithoutRedis(ctx context.Context, mode luascripts.Mode, r *Request, d *Decision) (err error) {
	*d, err = p.decideByFallback(ctx, mode, *r)
	return err
}

// decideByFallback decides without Redis. A gate that is shut stays shut, and a rule
// that is known to be closed stays closed.
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

// lastKnown are the active limits as they were read last.
func (p *Policy) lastKnown() []activeLimit {
	in := make([]activeLimit, len(p.rules))
	for i, l := range p.rules {
		in[i] = activeLimit{Limit: l.limitLastKnown(), closed: l.closedLastKnown()}
	}
	return in
}

// leaveFallback takes a job out of the lines of this process.
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

// instead is what a limit would have done instead of a shadowed grant.
type instead uint8

const (
	insteadOfNothing instead = iota // it is not a shadowed grant
	insteadOfWait                   // refused it, or let it wait
	insteadOfLate                   // let it wait too long
	insteadOfNever                  // never admitted it
	insteadOfFault                  // not said: its state can't be read
)

// decideInShadowInto is [Policy.decideInShadow] with pointers.
//
//go:noinline
func (p *Policy) decideInShadowInto(ctx context.Context, mode luascripts.Mode, r *Request, d *Decision) (err error) {
	*d, err = p.decideInShadow(ctx, mode, *r)
	return err
}

// decideInShadow asks without waiting or booking, and grants what was refused.
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
