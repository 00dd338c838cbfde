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

// ask calls f around the store's clock, and again when that clock turns out to be
// elsewhere. f answers the status and the clock.
func (d *desk) ask(f func(around time.Time) (luascripts.Status, time.Time, error)) error {
	_, err := d.askTimed(f)
	return err
}

// asked is when a call was made and answered, by the local, monotonic clock.
type asked struct{ began, ended time.Time }

// askTimed is [desk.ask], and tells about the last call.
func (d *desk) askTimed(f func(around time.Time) (luascripts.Status, time.Time, error)) (at asked, err error) {
	for range asksMax {
		at.began = time.Now()
		status, now, err := f(at.began.Add(d.ahead()))
		at.ended = time.Now()
		d.heardAt(now, at.ended)
		if err != nil || status != luascripts.NotCovered {
			return at, err
		}
	}
	return at, errClock
}

// number puts the numbers of the limits in force into parts.
func number(parts []luascripts.Part, in []ruling, around time.Time) {
	for i := range parts {
		parts[i].Numbers = in[i].numbers(around)
		parts[i].Version = in[i].version
	}
}

// clock is what the store's clock should say now.
func (d *desk) clock() time.Time { return time.Now().Add(d.ahead()) }

func (d *desk) ahead() time.Duration { return time.Duration(d.offset.Load()) }

func (d *desk) heard(now time.Time) { d.heardAt(now, time.Now()) }

func (d *desk) heardAt(now, local time.Time) {
	if !now.IsZero() {
		d.offset.Store(int64(now.Sub(local)))
	}
}

// acquireBy looks at no call that failed: others may work on it still.
func (d *desk) acquireBy(ctx context.Context, in []ruling, gates []GateAt, c *luascripts.Call) (asked, error) {
	at, err := d.askTimed(func(around time.Time) (luascripts.Status, time.Time, error) {
		number(c.Parts, in, around)
		c.Gate = gateAround(gates, around)
		if err := d.acquire(ctx, c); err != nil {
			return 0, time.Time{}, err
		}
		return c.Status, c.Now, nil
	})
	if err != nil {
		return at, err
	}
	return at, orOutdated(nil, c.Status, c.Part, c.Version)
}

func (d *desk) cancelBy(ctx context.Context, in []ruling, a luascripts.CancelArgs) (reply luascripts.CancelReply, err error) {
	err = d.ask(func(around time.Time) (luascripts.Status, time.Time, error) {
		number(a.Parts, in, around)
		reply, err = d.cancel(ctx, a)
		return reply.Status, reply.Now, err
	})
	return reply, orOutdated(err, reply.Status, reply.Part, reply.Version)
}

func (d *desk) closeBy(ctx context.Context, in []ruling, a luascripts.CloseArgs) (reply luascripts.CloseReply, err error) {
	err = d.ask(func(around time.Time) (luascripts.Status, time.Time, error) {
		number(a.Parts, in, around)
		reply, err = d.close(ctx, a)
		return reply.Status, reply.Now, err
	})
	return reply, orOutdated(err, reply.Status, reply.Part, reply.Version)
}

func (d *desk) settleBy(ctx context.Context, in []ruling, a luascripts.SettleArgs) (reply luascripts.CancelReply, err error) {
	err = d.ask(func(around time.Time) (luascripts.Status, time.Time, error) {
		number(a.Parts, in, around)
		reply, err = d.settle(ctx, a)
		return reply.Status, reply.Now, err
	})
	return reply, orOutdated(err, reply.Status, reply.Part, reply.Version)
}

func (d *desk) peekBy(ctx context.Context, in ruling, k luascripts.Limit, a luascripts.PeekArgs) (reply luascripts.PeekReply, err error) {
	a.Closed = in.closed
	err = d.ask(func(around time.Time) (luascripts.Status, time.Time, error) {
		a.Numbers = in.numbers(around)
		a.Version = in.version
		reply, err = d.peek(ctx, k, a)
		return reply.Status, reply.Now, err
	})
	return reply, orOutdated(err, reply.Status, 1, reply.Version)
}

func (d *desk) resetBy(ctx context.Context, in ruling, k luascripts.Limit) (reply luascripts.CancelReply, err error) {
	err = d.ask(func(around time.Time) (luascripts.Status, time.Time, error) {
		n := in.numbers(around)
		n.Version = in.version
		reply, err = d.reset(ctx, k, n)
		return reply.Status, reply.Now, err
	})
	return reply, orOutdated(err, reply.Status, 1, reply.Version)
}

// orOutdated is err, or what a part of another version means.
func orOutdated(err error, status luascripts.Status, part int, version int64) error {
	if err == nil && status == luascripts.Outdated {
		return &outdatedError{version, part - 1}
	}
	return err
}
