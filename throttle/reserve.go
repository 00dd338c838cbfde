package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// Reservation is a place in the line of a key, or already the grant that it led
// to. Unlike one of x/time/rate it is not a fixed instant at which its holder
// may simply go: an instant is only what follows from the place now, moves
// forward when a job ahead leaves, and back when a permit is spent late. So
// its holder asks with Take or Wait, and a place that is given up leaves
// no hole, whatever its position.
//
// It is not renewed in the background. A holder that does not come within 100 ms of the
// last instant it was given lets the others pass; the place itself is kept for
// an hour more. All methods are safe for concurrent use.
type Reservation struct {
	p   *Policy
	job string

	waiting askLock // held while a caller is in Wait
	asking  askLock // one call at a time; held while Redis is asked

	mu    sync.Mutex
	d     Decision // what was answered last
	ahead bool     // it is a grant whose instant Wait has yet to see: it may go back
	next  Request  // what is asked for
	owed  bool     // it is a grant that has to go back, and may have gone already
	lost  bool     // a call of next's token was not answered
	over  bool     // given back
}

// askLock is a lock that is held over calls to Redis. Whoever waits for it gives up when its own context ends.
type askLock chan struct{}

func newAskLock() askLock { return make(askLock, 1) }

// lock returns the cause of the context when that ended first. A lock that is free is taken also after the end.
func (l askLock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l askLock) unlock() { <-l }

// newReservation keeps the answer to r.
func newReservation(p *Policy, r Request, d Decision) *Reservation {
	r.MaxWait = 0 // it bounded the decision to reserve
	v := &Reservation{p: p, job: r.Job, waiting: newAskLock(), asking: newAskLock(), next: r}
	v.keep(d, byTake)
	return v
}

// Granted says that the permits are spent: the holder may go.
func (v *Reservation) Granted() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.d.Granted && !v.ahead && !v.over
}

// lastAnswer is what a caller without a permit was told last.
func (v *Reservation) lastAnswer() Decision {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.d
	d.Granted = false
	return d
}

// At is the instant of the last answer, by the clock that decides: of the grant,
// or the one that followed from the place.
func (v *Reservation) At() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.d.At
}

// Delay is how long it is until the instant of the last answer, 0 when granted.
// Take or Wait then: to have waited is not enough.
func (v *Reservation) Delay() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.d.Wait() // a grant that is not ahead has its instant behind it
}

// Take turns the place into the grant if its instant has come, and otherwise
// returns the new instant. It does not wait. A reservation that was granted stays
// it. A grant that is too old to be acted on when Take hears of it (see [Limiter.TryAcquire]), as after a call whose answer
// was lost, is made anew or given back: then Take asks again at once, and after three such grants tells an instant in a moment. After
// Cancel the error is [ErrWithdrawn]; after [ErrUnavailable] the place is what it was: call again. A limit that fell below the cost is an
// [ExceedsLimitError], and the place is given up.
func (v *Reservation) Take(ctx context.Context) (Decision, error) {
	if err := v.asking.lock(ctx); err != nil {
		return v.lastAnswer(), v.p.rules.fault(ctx, "acquire", 0, 0, err)
	}
	defer v.asking.unlock()
	v.mu.Lock()
	d, ahead := v.d, v.ahead && !v.owed
	v.mu.Unlock()
	if ahead { // a caller is in Wait
		d.Granted = false
		return d, v.gone()
	}
	return v.ask(ctx, byTake)
}

// Wait blocks until the permits are granted: nil means that the caller may go.
// It wakes when the place moves up; what other processes do is noticed within a second. When ctx
// ends it returns ctx's cause and the place stays: Wait again, or Cancel. Other
// errors are those of Take.
func (v *Reservation) Wait(ctx context.Context) error {
	if err := v.waiting.lock(ctx); err != nil { // two would share a channel, and a grant that one of them hands back
		return err
	}
	defer v.waiting.unlock()
	w := newWaiter(v.p, v.job)
	defer w.stop()
	for stale := 0; ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d, err := w.ask(func() (Decision, error) { return v.lockAndAsk(ctx, w.reason.early()) })
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case !d.Granted:
			if err := w.waitForPlace(ctx, d); err != nil {
				return err
			}
		default:
			if ok, err := v.waitOrReturn(ctx, d); ok || err != nil {
				return err
			}
			stale++
			if err := wait(ctx, stalePause(stale)); err != nil {
				return err
			}
		}
	}
}

// waitOrReturn waits the rest until a grant's instant. When that fails, or comes too
// late, the grant must not be used: it is given back, and the job gets the first place in the line. When ctx ends while
// another caller has the lock, the grant stays owed: a Cancel gives it back, and so does the next call.
func (v *Reservation) waitOrReturn(ctx context.Context, d Decision) (ok bool, err error) {
	err = wait(ctx, d.Wait())
	busy := v.asking.lock(ctx)
	if busy == nil {
		defer v.asking.unlock()
	}
	err = cmp.Or(err, busy)
	if gone := v.gone(); gone != nil {
		return false, gone
	}
	v.mu.Lock()
	ours := v.ahead // else it was granted before this Wait
	good := !ours || err == nil && !d.stale()
	v.ahead, v.owed = !good, !good
	v.mu.Unlock()
	if good {
		return true, nil
	}
	if busy != nil {
		return false, err
	}
	back := v.returnOwed(ctx)
	return false, cmp.Or(err, back)
}

// returnOwed gives a grant back that is owed, with asking held. After an error it
// stays owed: whether it went is not known, so it must not be used.
func (v *Reservation) returnOwed(ctx context.Context) error {
	v.mu.Lock()
	owed, r := v.owed, v.d.Request
	v.mu.Unlock()
	if !owed {
		return nil
	}
	if err := v.p.returnGrant(ctx, r); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.d.Granted, v.ahead, v.owed, v.next.Token = false, false, false, NewToken()
	return nil
}

// askedBy says for whom a reservation asks.
type askedBy int

const (
	byTake      askedBy = iota // which can't wait: no grant ahead of its instant
	byWait                     // which waits the rest until the instant of a grant that is ahead
	byEarlyWait                // a Wait that asks before its instant: others may be first, so no grant ahead
)

func (v *Reservation) lockAndAsk(ctx context.Context, early bool) (Decision, error) {
	if err := v.asking.lock(ctx); err != nil {
		return v.lastAnswer(), err
	}
	defer v.asking.unlock()
	if early {
		return v.ask(ctx, byEarlyWait)
	}
	return v.ask(ctx, byWait)
}

// ask is called with asking held.
func (v *Reservation) ask(ctx context.Context, by askedBy) (Decision, error) {
	err := v.gone()
	if err == nil {
		err = v.returnOwed(ctx)
	}
	v.mu.Lock()
	d, r := v.d, v.next
	d.Granted = d.Granted && !v.owed
	v.mu.Unlock()
	if err != nil || d.Granted {
		return d, err
	}
	r.notAhead = by != byWait
	for stale := 1; ; stale++ {
		d, err = v.p.decideForJob(ctx, limitscripts.GrantOrBook, r)
		if errors.Is(err, ErrWithdrawn) {
			// A hash slot of a Cluster took this token back, because another one refused it or did not answer.
			r.Token = v.anotherToken(ctx, r)
			d, err = v.p.decideForJob(ctx, limitscripts.GrantOrBook, r)
		}
		if err != nil {
			v.noteLost(ctx, err)
			return d, err
		}
		if by != byTake || !v.p.cameLate(&d) {
			break
		}
		v.owe(d)
		err = v.returnOwed(ctx)
		d.Granted = false
		if err != nil {
			return d, err
		}
		if stale == staleMost {
			d = d.in(stalePause(stale))
			break
		}
		v.mu.Lock()
		r.Token = v.next.Token
		v.mu.Unlock()
	}
	if by == byTake && d.Wait() > 0 {
		d.Granted = false // a Wait was granted it ahead, and its answer was lost: Take gets it at its instant
	}
	v.keep(d, by)
	return d, nil
}

// owe notes a grant that has to go back: nobody may act on it.
func (v *Reservation) owe(d Decision) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.d, v.ahead, v.owed = d, true, true
}

// noteLost notes that a call of the token may have been charged somewhere, although its answer did not come.
func (v *Reservation) noteLost(ctx context.Context, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lost = v.lost || ctx.Err() != nil || errors.Is(err, ErrUnavailable) && !ForWorkers.Answered(err)
}

// anotherToken draws the token of the next calls. It first gives back what a lost call of the one before may
// have been charged in other hash slots. The place stays.
func (v *Reservation) anotherToken(ctx context.Context, r Request) Token {
	v.mu.Lock()
	lost := v.lost
	v.next.Token, v.lost = NewToken(), false
	token := v.next.Token
	v.mu.Unlock()
	if lost {
		r.Job = ""
		v.p.withdrawNow(context.WithoutCancel(ctx), r)
	}
	return token
}

// keep remembers an answer. The token stays the same, so that a call whose
// answer was lost can be repeated, until the fallback answers instead of Redis: then
// that call is taken back, and its token with it.
func (v *Reservation) keep(d Decision, by askedBy) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.d, v.ahead = d, by != byTake && d.Granted
	if d.Fallback != FailClosed {
		v.next.Token = NewToken()
	}
}

func (v *Reservation) gone() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over {
		return fmt.Errorf("%w: the reservation was given back, rule %q", ErrWithdrawn, v.p.String())
	}
	return nil
}

// Cancel gives back the place, or the grant if it was not used, at any
// position. Whoever comes next moves up, and is woken when it waits in this
// process. Take and Wait then answer [ErrWithdrawn]. It asks Redis once; it is
// idempotent: after an error, which unwraps to [ErrUnavailable], call it again.
func (v *Reservation) Cancel(ctx context.Context) error {
	v.mu.Lock()
	v.over = true
	v.mu.Unlock()
	for _, l := range v.p.rules {
		l.waiters.wake(v.job)
	}
	if err := v.asking.lock(ctx); err != nil {
		return v.p.rules.fault(ctx, "cancel", 0, 0, err)
	}
	defer v.asking.unlock()
	v.mu.Lock()
	r := v.next
	if v.d.Granted {
		r = v.d.Request
	}
	v.mu.Unlock()
	_, err := v.p.Refund(ctx, r)
	return err
}

// String prints the reservation without its key.
func (v *Reservation) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return "reservation: " + v.d.String()
}

// Format keeps the key out of every verb.
func (v *Reservation) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(v.String())) }
