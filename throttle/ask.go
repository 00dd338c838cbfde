package throttle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// origin is where a grant was made, and so where it can be given back.
type origin uint8

const (
	fromStore   origin = iota // or not known
	fromSpare                 // counted in this process while Redis was away
	fromNowhere               // counted nowhere
)

// ask decides about r, whatever the limiter's mode, and tells who observes.
func (l *Limiter) ask(ctx context.Context, mode luascripts.Mode, r Request) (Decision, error) {
	r.worth, r.made = 0, fromStore
	if r.Token == 0 {
		r.Token = NewToken()
	}
	if err := l.check(r); err != nil {
		l.tell(ctx, mode, Decision{}, err)
		return Decision{}, err
	}
	decide := l.decide
	if l.cfg.Shadow {
		decide = l.watch
	}
	d, err := decide(ctx, mode, r)
	l.tell(ctx, mode, d, err)
	return d, err
}

// askStore decides by the limit in force, where the limiter counts.
func (l *Limiter) askStore(ctx context.Context, mode luascripts.Mode, r Request) (Decision, error) {
	d := Decision{Request: r, Rule: l.rule}
	err := l.ruled(ctx, func(in ruling) (err error) {
		d, err = l.askDesk(ctx, l.store, in, mode, r)
		return err
	})
	return d, err
}

// askDesk asks for r and reads the answer.
func (l *Limiter) askDesk(ctx context.Context, at *desk, in ruling, mode luascripts.Mode, r Request) (Decision, error) {
	if err := l.fits(in.Limit, r); err != nil {
		return Decision{Request: r, Rule: l.rule}, err
	}
	longest, inline := time.Duration(-1), l.cfg.InlineWait
	if r.MaxWait != 0 {
		longest = max(0, r.MaxWait)
	}
	if r.prompt {
		inline = 0
	}
	reply, err := at.acquireBy(ctx, in, l.keys(l.ID(r.Key)), luascripts.AcquireArgs{
		Cost: r.Cost, Token: uint64(r.Token), Job: r.Job, Mode: mode, Inline: inline, MaxWait: longest,
	})
	if err := l.fault("acquire", reply.Status, err); err != nil {
		return Decision{Request: r, Rule: l.rule}, err
	}
	d := Decision{
		Request: r, Rule: l.rule, Granted: reply.Status == luascripts.Granted,
		At: reply.At, From: reply.From, Now: reply.Now, Promised: reply.Promised,
		Next: l.turn(reply.Next, reply.Now), start: time.Now().Add(reply.At.Sub(reply.Now)), limit: in.Limit,
	}
	switch reply.Status {
	case luascripts.Granted:
		d.worth = reply.Worth
	case luascripts.TooLate:
		return d, &TooLateError{Rule: l.rule, At: d.At, Wait: d.At.Sub(d.Now), MaxWait: r.MaxWait}
	case luascripts.Withdrawn:
		return d, fmt.Errorf("%w: rule %q", ErrWithdrawn, l.rule)
	}
	return d, nil
}

// takeBack gives back what r has, where it has it. The size of the limit does
// not matter: it may have been a larger one when the grant was made.
func (l *Limiter) takeBack(ctx context.Context, r Request, back bool) (Turn, error) {
	if err := l.check(r); err != nil {
		return Turn{}, err
	}
	if r.made == fromNowhere {
		return Turn{}, nil
	}
	return l.takeBackID(ctx, l.ID(r.Key), r, back)
}

func (l *Limiter) takeBackID(ctx context.Context, id string, r Request, back bool) (Turn, error) {
	if spare := l.away.spare.Load(); spare != nil {
		turn, given, err := l.cancelAt(ctx, spare, ruling{Limit: l.LimitLastKnown()}, id, r, back)
		if err != nil || given || r.made == fromSpare {
			return turn, err
		}
	}
	var turn Turn
	give := func(in ruling) (err error) {
		turn, _, err = l.cancelAt(ctx, l.store, in, id, r, back)
		return err
	}
	err := l.ruled(ctx, give)
	if errors.Is(err, ErrStoredLimit) { // who has something to give back is not to blame
		err = give(l.lastRuling())
	}
	return turn, err
}

func (l *Limiter) cancelAt(ctx context.Context, at *desk, in ruling, id string, r Request, back bool) (_ Turn, given bool, _ error) {
	reply, err := at.cancelBy(ctx, in, l.keys(id), luascripts.CancelArgs{
		Cost: r.Cost, Token: uint64(r.Token), Job: r.Job, Worth: r.worth, Back: back && l.fits(in.Limit, r) == nil,
	})
	if err := l.fault("cancel", reply.Status, err); err != nil {
		return Turn{}, false, err
	}
	return l.turn(reply.Next, reply.Now), reply.Status == luascripts.Granted, nil
}

// leave takes r.Job out of the line, as well as it can: a place that nobody
// takes is passed 100 ms after its instant.
func (l *Limiter) leave(ctx context.Context, r Request) {
	r.Token = 0
	l.withdraw(ctx, r)
}

// turn makes a Turn of a store's answer, and rings the job when it waits in
// this very process.
func (l *Limiter) turn(t luascripts.Turn, now time.Time) Turn {
	if t.Job == "" {
		return Turn{}
	}
	l.waiters.ring(t.Job)
	return Turn{Job: t.Job, At: t.At, Wait: max(0, t.At.Sub(now))}
}

// check refuses what no limit could admit before it costs a round trip.
func (l *Limiter) check(r Request) error {
	if err := checkKey(r.Key); err != nil {
		return err
	}
	if len(r.Job) > JobMax {
		return checkJob(r.Job)
	}
	return l.checkCost(r.Cost)
}

func (l *Limiter) checkCost(cost int) error {
	if cost < 1 {
		return fmt.Errorf("%w: %d permits for rule %q, want at least 1", ErrInvalidCost, cost, l.rule)
	}
	return nil
}

// fits says whether the limit can ever admit r.
func (l *Limiter) fits(limit Limit, r Request) error {
	if r.Cost > limit.MaxCost() {
		return &ExceedsLimitError{Rule: l.rule, Cost: r.Cost, Limit: limit}
	}
	return nil
}

func checkKey(key string) error {
	if key == "" || len(key) > KeyMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidKey, len(key), KeyMax)
	}
	return nil
}

func checkJob(job string) error {
	if job == "" || len(job) > JobMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidJob, len(job), JobMax)
	}
	return nil
}
