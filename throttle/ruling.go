package throttle

import (
	"context"
	"errors"
	"fmt"
)

// ruling is a limit in force with the version under which it was stored; 0 for
// the one in code. A ledger knows the version that it was written under, and
// refuses who comes with an older one: a process that has not heard of a change,
// or a call that was long on its way, would grant by the old limit.
type ruling struct {
	Limit
	version int64
}

// ruling is what a look found. When a ledger knows a version that is stored
// nowhere any more, what is in force counts as that version.
func (f *limitInForce) ruling(k *knownLimit) ruling {
	return ruling{k.limit, max(k.version, f.floor.Load())}
}

// lastRuling is the ruling that was heard last.
func (l *Limiter) lastRuling() ruling {
	k := l.force.last.Load()
	if k == nil {
		k = &knownLimit{}
	}
	r := l.force.ruling(k)
	r.Limit = l.LimitLastKnown()
	return r
}

// outdatedError says that a ledger was written under a newer limit.
type outdatedError struct{ version int64 }

func (e *outdatedError) Error() string {
	return fmt.Sprintf("throttle: the ledger was written under a limit of version %d", e.version)
}

func (e *outdatedError) Unwrap() error { return ErrUnavailable }

// ruled calls f under the limit in force, and again after another look when a
// ledger was written under a newer one.
func (l *Limiter) ruled(ctx context.Context, f func(in ruling) error) error {
	in, err := l.ruling(ctx)
	if err != nil {
		return err
	}
	for range asksMax {
		err = f(in)
		o, ok := errors.AsType[*outdatedError](err)
		if !ok {
			return err
		}
		newer, failed := l.catchUp(ctx, o.version)
		if failed != nil {
			return failed
		}
		in = newer
	}
	return err // the limit changes faster than it can be asked for: nothing was decided
}

// catchUp looks at what is stored now, because a ledger knows this version. If
// that is stored no more, nothing newer is to be found.
func (l *Limiter) catchUp(ctx context.Context, version int64) (ruling, error) {
	k := l.readLimit(ctx)
	if k.err != nil {
		return ruling{}, k.err
	}
	for floor := l.force.floor.Load(); floor < version && k.version < version; floor = l.force.floor.Load() {
		if l.force.floor.CompareAndSwap(floor, version) {
			break
		}
	}
	return l.force.ruling(&k), nil
}
