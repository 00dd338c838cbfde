package throttle

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// asksMax bounds how often a store is asked with other numbers: once around
// what its clock was last, and then around what it answered.
const asksMax = 3

// errClock says that a store's clock moved away from each answer it gave.
var errClock = errors.New("its clock is in no window that it was asked about")

// desk is a store, and what is known of its clock: the windows of a calendar
// are computed around it before each call.
type desk struct {
	store
	offset atomic.Int64 // nanoseconds that its clock was ahead of ours, when last heard
}

// ask calls f with the limit's numbers around the store's clock, and again when
// that clock turns out to be elsewhere. f answers the status, the clock and the
// version of a newer limit.
func (d *desk) ask(in ruling, f func(n luascripts.Numbers) (luascripts.Status, time.Time, int64, error)) error {
	for range asksMax {
		n := in.numbers(d.clock())
		n.Version = in.version
		status, now, version, err := f(n)
		d.heard(now)
		switch {
		case err != nil:
			return err
		case status == luascripts.Outdated:
			return &outdatedError{version}
		case status != luascripts.NotCovered:
			return nil
		}
	}
	return errClock
}

// clock is what the store's clock should say now.
func (d *desk) clock() time.Time { return time.Now().Add(time.Duration(d.offset.Load())) }

func (d *desk) heard(now time.Time) {
	if !now.IsZero() {
		d.offset.Store(int64(time.Until(now)))
	}
}

func (d *desk) acquireBy(ctx context.Context, in ruling, k luascripts.Limit, a luascripts.AcquireArgs) (reply luascripts.AcquireReply, err error) {
	err = d.ask(in, func(n luascripts.Numbers) (luascripts.Status, time.Time, int64, error) {
		a.Numbers = n
		reply, err = d.acquire(ctx, k, a)
		return reply.Status, reply.Now, reply.Version, err
	})
	return reply, err
}

func (d *desk) cancelBy(ctx context.Context, in ruling, k luascripts.Limit, a luascripts.CancelArgs) (reply luascripts.CancelReply, err error) {
	err = d.ask(in, func(n luascripts.Numbers) (luascripts.Status, time.Time, int64, error) {
		a.Numbers = n
		reply, err = d.cancel(ctx, k, a)
		return reply.Status, reply.Now, reply.Version, err
	})
	return reply, err
}

func (d *desk) peekBy(ctx context.Context, in ruling, k luascripts.Limit, a luascripts.PeekArgs) (reply luascripts.PeekReply, err error) {
	err = d.ask(in, func(n luascripts.Numbers) (luascripts.Status, time.Time, int64, error) {
		a.Numbers = n
		reply, err = d.peek(ctx, k, a)
		return reply.Status, reply.Now, reply.Version, err
	})
	return reply, err
}

func (d *desk) resetBy(ctx context.Context, in ruling, k luascripts.Limit) (reply luascripts.CancelReply, err error) {
	err = d.ask(in, func(n luascripts.Numbers) (luascripts.Status, time.Time, int64, error) {
		reply, err = d.reset(ctx, k, n)
		return reply.Status, reply.Now, reply.Version, err
	})
	return reply, err
}
