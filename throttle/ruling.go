package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ruling is a limit in force with the version under which it was stored; 0 for
// the one in code. A ledger knows the version that it was written under, and
// refuses who comes with an older one: a process that has not heard of a change,
// or a call that was long on its way, would grant by the old limit.
type activeLimit struct {
	Limit
	version int64
	closed  time.Time // until when the rule is closed on all keys; zero for not
}

// ruling is what a look found. When a ledger knows a version that is stored
// nowhere any more, what is in force counts as that version.
func (f *limitInForce) active(k *knownLimit) activeLimit {
	return activeLimit{k.limit, max(k.version, f.floor.Load()), k.closed}
}

// lastRuling is the ruling that was heard last.
func (l *Limiter) lastActiveLimit() activeLimit {
	k := l.force.last.Load()
	if k == nil {
		k = &knownLimit{}
	}
	r := l.force.active(k)
	r.Limit = l.LimitLastKnown()
	return r
}

// outdatedError says that the ledger of a rule was written under a newer limit.
type outdatedError struct {
	version int64
	part    int // which rule of the policy, from 0
}

func (e *outdatedError) Error() string {
	return fmt.Sprintf("throttle: the ledger was written under a limit of version %d", e.version)
}

func (e *outdatedError) Unwrap() error { return ErrUnavailable }

// ruled calls f under the limits in force, and again after another look when a
// ledger was written under a newer one.
func (p *Policy) withActiveLimits(ctx context.Context, f func(in []activeLimit) error) error {
	in, err := p.activeLimits(ctx)
	if err != nil {
		return err
	}
	for range roundTripsMax + len(p.rules) - 1 {
		err = f(in)
		o, ok := errors.AsType[*outdatedError](err)
		if !ok {
			return err
		}
		var failed error
		if in, failed = p.catchUp(ctx, in, o.part, o.version); failed != nil {
			return failed
		}
	}
	return err // the limits change faster than they can be asked for: nothing was decided
}

// rulings are the limits by which the policy decides now. Most are those of the call
// before, and then in the same memory: nobody writes to it.
func (p *Policy) activeLimits(ctx context.Context) ([]activeLimit, error) {
	var known, fresh []activeLimit
	if last := p.last.Load(); last != nil {
		known = *last
	}
	for i, l := range p.rules {
		r, err := l.activeLimit(ctx)
		if err != nil {
			return nil, err
		}
		if fresh == nil && i < len(known) && known[i] == r {
			continue
		}
		if fresh == nil {
			fresh = append(make([]activeLimit, 0, len(p.rules)), known[:i]...)
		}
		fresh = append(fresh, r)
	}
	if fresh == nil {
		return known, nil
	}
	p.last.Store(new(fresh))
	return fresh, nil
}

// catchUp is in with what is in force of a rule whose ledger knows this version.
func (p *Policy) catchUp(ctx context.Context, in []activeLimit, part int, version int64) ([]activeLimit, error) {
	if part < 0 || part >= len(p.rules) {
		return nil, &outdatedError{version, part} // a store that does not say which
	}
	r, err := p.rules[part].catchUp(ctx, version)
	if err != nil {
		return nil, err
	}
	in = slices.Clone(in)
	in[part] = r
	return in, nil
}

// catchUp looks at what is stored now, because a ledger knows this version. If
// that is stored no more, nothing newer is to be found.
func (l *Limiter) catchUp(ctx context.Context, version int64) (activeLimit, error) {
	k := l.readLimit(ctx)
	if k.err != nil {
		return activeLimit{}, k.err
	}
	for floor := l.force.floor.Load(); floor < version && k.version < version; floor = l.force.floor.Load() {
		if l.force.floor.CompareAndSwap(floor, version) {
			break
		}
	}
	return l.force.active(&k), nil
}
