package throttle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
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
// client's time-outs say; on Redis Cluster for a stored limit 2 s at most. Once Redis answers it decides again. A Redis that answers
// and refuses (it is full) is asked each time, and nothing is taken back: it charged
// nothing.
//
// What a policy knows of this holds for all its keys. So on Redis Cluster one master that does not
// answer lets the keys of the others be decided without Redis, too, for these 250 ms. With FailClosed
// only the keys of that master fail.
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

// fallback is how a policy decides while Redis does not answer, and what it knows about
// whether Redis answers.
type fallback struct {
	mode  FailureMode
	local atomic.Pointer[clockedStore] // counts in Redis' place, in mode [FailLocal]; nil until it is needed
	now   func() time.Time             // its clock; nil for that of this process

	mu     sync.Mutex
	until  time.Time // Redis is not asked before; zero while it answers
	trying bool      // a caller is asking it again
}

// skipRedis says that Redis is not to be asked now. After false one of available,
// unavailable and unknown must follow.
func (f *fallback) skipRedis() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.until.IsZero() {
		return false
	}
	if f.trying || time.Now().Before(f.until) {
		return true
	}
	f.trying = true
	return false
}

// isUnavailable says that Redis did not answer when it was asked last.
func (f *fallback) isUnavailable() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.until.IsZero()
}

// available notes that Redis answered.
func (f *fallback) available() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until, f.trying = time.Time{}, false
}

// unavailable notes that Redis did not answer.
func (f *fallback) unavailable() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until, f.trying = time.Now().Add(unavailablePause), false
}

// unknown notes that a caller did not wait for the answer. That proves nothing, but
// a Redis that was unavailable still is.
func (f *fallback) unknown() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.until.IsZero() {
		f.until, f.trying = time.Now().Add(unavailablePause), false
	}
}

// localStore is the store that counts while Redis is unavailable.
func (f *fallback) localStore() *clockedStore {
	if s := f.local.Load(); s != nil {
		return s
	}
	f.local.CompareAndSwap(nil, &clockedStore{store: newMemoryStore(f.now)})
	return f.local.Load()
}

// decide asks Redis, or decides without it.
func (f *fallback) decide(ctx context.Context, a *acquisition) error {
	if f.skipRedis() {
		return f.withoutRedis(ctx, a)
	}
	returned := false
	defer func() {
		if !returned { // a hook of the client panics: the next caller asks
			f.unknown()
		}
	}()
	err := a.inStore(ctx)
	returned = true
	switch {
	case errors.Is(err, ErrExceedsLimit): // Redis was not asked
		f.unknown()
		return err
	case !errors.Is(err, ErrUnavailable):
		f.available()
		f.leave(ctx, a)
		return err
	case ctx.Err() != nil:
		f.unknown()
		return err
	case ForWorkers.Answered(err): // and charged nothing
		f.available()
		err = f.withoutRedis(ctx, a)
		if _, sharded := a.p.store.store.(clusterStore); sharded && a.d.Granted && a.r.Job != "" { // some hash slots may have given it places: it needs none now
			r := a.r
			r.Token, r.grant = 0, grant{}
			go withdrawFromRedis(context.WithoutCancel(ctx), a.p, r) // ends as in afterSilence
		}
		return err
	}
	return f.afterSilence(ctx, a)
}

// afterSilence decides without a Redis whose answer did not come.
func (f *fallback) afterSilence(ctx context.Context, a *acquisition) error {
	f.unavailable()
	err := f.withoutRedis(ctx, a)
	lost := a.r
	if !a.d.Granted {
		lost.Job = ""          // a job that will ask again keeps its place in Redis, if it got one
		a.d.Token = NewToken() // and asks with another token: this one is refused from now on
	}
	// It ends with withdrawTimeout, or with the client's own time-outs.
	go withdrawFromRedis(context.WithoutCancel(ctx), a.p, lost)
	return err
}

func withdrawFromRedis(ctx context.Context, p *Policy, r Request) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	_, _ = refund{p: p, ids: p.rules.ids(r), r: r}.toStore(ctx)
}

// leave takes a job out of the lines of this process: it has its place in Redis now, or
// needs none.
func (f *fallback) leave(ctx context.Context, a *acquisition) {
	local := f.local.Load()
	if local == nil || a.r.Job == "" {
		return
	}
	r := a.r
	r.Token, r.grant = 0, grant{}
	_, _ = refund{p: a.p, ids: a.p.rules.ids(r), r: r}.in(ctx, newStoreCallBy(a.p, local, a.p.rules.lastKnown(ctx, byRequest(&a.r))))
}

// withoutRedis decides without Redis. A gate that is closed stays closed, and a rule
// that is known to be closed stays closed.
func (f *fallback) withoutRedis(ctx context.Context, a *acquisition) (err error) {
	a.begin()
	if f.mode == FailLocal {
		t := newStoreCallBy(a.p, f.localStore(), a.p.rules.lastKnown(ctx, byRequest(&a.r)))
		err = a.ask(ctx, &t)
		if a.d.Granted {
			a.d.made = fromFallback
		}
	} else {
		err = a.failOpen(ctx)
	}
	a.d.Fallback = f.mode
	if err != nil {
		a.d.Granted = false
	}
	return err
}

// decideAfterLateAnswers decides for a caller that does not wait, when Redis answers again and again, and too late. That is a Redis that is
// unavailable to it. Others ask Redis all the same.
func decideAfterLateAnswers(ctx context.Context, p *Policy, mode limitscripts.Mode, r Request) (Decision, error) {
	return decideWithoutAnswer(ctx, p, mode, r, &unavailableError{Op: "acquire", Reason: lateAnswers, answered: true})
}

// decideWithoutAnswer decides for a caller that has no answer of Redis to go by, and has an error in its place. It asks nobody.
func decideWithoutAnswer(ctx context.Context, p *Policy, mode limitscripts.Mode, r Request, err error) (Decision, error) {
	r.grant, r.made = grant{}, fromStore
	a := &acquisition{p: p, mode: mode, r: r}
	a.begin()
	switch {
	case p.cfg.Shadow:
		a.passInShadow(insteadOfFault)
		err = nil
	case p.fallback.mode != FailClosed:
		err = p.fallback.withoutRedis(ctx, a)
	}
	a.count(ctx, err)
	return a.d, err
}

var lateAnswers = fmt.Sprintf("%d grants in a row came too late to be acted on, and were given back", staleMost)

// failOpen grants whatever the limits could ever admit, while the gates and the
// rules are open.
func (a *acquisition) failOpen(ctx context.Context) error {
	rules, r, d, now := a.p.rules, &a.r, &a.d, time.Now()
	d.Granted, d.At, d.Now, d.start, d.made = !a.mode.NeverGrants(), now, now, now, fromNowhere
	if rule, err := rules.fits(rules.lastKnown(ctx, byRequest(r)), r); err != nil {
		d.Rule = rule
		return err
	}
	at, closed := rules.closedUntil(now)
	if opens := openedAt(r.Gates, at); opens.After(at) {
		at, closed = opens, closedGate(r.Gates, now, opens)
	}
	if at.After(now) {
		d.Granted, d.At, d.start, d.Rule = false, at, at, closed
		d.Refused = a.mode == limitscripts.Try || a.mode == limitscripts.BookLastRule
		if r.MaxWait != 0 && at.Sub(now) > max(0, r.MaxWait) {
			return &TooLateError{Rule: d.Rule, At: at, Wait: at.Sub(now), MaxWait: r.MaxWait}
		}
	}
	return nil
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

// inShadow asks without waiting or booking, and grants what was refused.
func (a *acquisition) inShadow(ctx context.Context) error {
	a.begin()
	r, d := &a.r, &a.d
	if a.mode.NeverGrants() { // it spends nothing, and is not to wait
		now := time.Now()
		d.At, d.Now, d.start = now, now, now
		return nil
	}
	asked := acquisition{p: a.p, mode: limitscripts.Try, r: *r}
	asked.r.MaxWait = 0 // the answer must not depend on it
	err := a.p.fallback.decide(ctx, &asked)
	*d = asked.d
	d.MaxWait = r.MaxWait
	switch {
	case err == nil && d.Granted:
		return nil
	case err == nil:
		d.instead = insteadOfWait
		if r.MaxWait != 0 && d.At.Sub(d.Now) > max(0, r.MaxWait) && (r.MaxWait < 0 || !a.p.rules.isConcurrent(d.Rule)) {
			d.instead = insteadOfLate
		}
		if !d.Promised.IsZero() {
			a.p.cancelBooking(ctx, *r) // it stands in the line from before, and runs now
		}
	case ctx.Err() != nil || errors.Is(err, ErrWithdrawn): // the caller's own doing
		return err
	case errors.Is(err, ErrExceedsLimit):
		d.instead = insteadOfNever
	default:
		d.instead = insteadOfFault
	}
	a.passInShadow(d.instead)
	return nil
}

// passInShadow grants what shadow mode does not hold up, instead of what it would have been told.
func (a *acquisition) passInShadow(of instead) {
	d := &a.d
	d.instead, d.Refused = of, false
	d.Granted, d.Shadowed, d.made, d.start, d.until = true, true, fromNowhere, time.Now(), time.Time{}
}
