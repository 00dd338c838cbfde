package throttle

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle/gate"
)

// store is where permits are counted and lines stand: Redis, or the memory of
// this process. Each call is atomic; an error means that it is not known
// whether the call took effect.
type store interface {
	// acquire puts the answer into the call, which is not used again after an error.
	acquire(ctx context.Context, c *luascripts.Call) error
	cancel(ctx context.Context, a luascripts.CancelArgs) (luascripts.CancelReply, error)
	close(ctx context.Context, a luascripts.CloseArgs) (luascripts.CloseReply, error)
	adjust(ctx context.Context, a luascripts.AdjustArgs) (luascripts.CancelReply, error)
	// check answers in order; each fails alone, and so does renew.
	refresh(ctx context.Context, bookings []luascripts.RefreshArgs) []luascripts.RefreshReply
	renew(ctx context.Context, leases []luascripts.RenewArgs) []luascripts.RenewReply
	release(ctx context.Context, p luascripts.RuleCall, token uint64) (luascripts.ReleaseReply, error)
	peek(ctx context.Context, k luascripts.LimitKeys, a luascripts.PeekArgs) (luascripts.PeekReply, error)
	reset(ctx context.Context, k luascripts.LimitKeys, n luascripts.Numbers) (luascripts.CancelReply, error)
}

// redisStore asks the scripts.
type redisStore struct {
	rdb       redis.UniversalClient
	coalescer *coalescer
}

func (s redisStore) acquire(ctx context.Context, c *luascripts.Call) error {
	return s.coalescer.acquire(ctx, c)
}

func (s redisStore) cancel(ctx context.Context, a luascripts.CancelArgs) (luascripts.CancelReply, error) {
	return luascripts.Cancel(ctx, s.rdb, a)
}

func (s redisStore) close(ctx context.Context, a luascripts.CloseArgs) (luascripts.CloseReply, error) {
	return luascripts.Close(ctx, s.rdb, a)
}

func (s redisStore) adjust(ctx context.Context, a luascripts.AdjustArgs) (luascripts.CancelReply, error) {
	return luascripts.Adjust(ctx, s.rdb, a)
}

func (s redisStore) refresh(ctx context.Context, bookings []luascripts.RefreshArgs) []luascripts.RefreshReply {
	return luascripts.Refresh(ctx, s.rdb, bookings)
}

func (s redisStore) renew(ctx context.Context, leases []luascripts.RenewArgs) []luascripts.RenewReply {
	return luascripts.Renew(ctx, s.rdb, leases)
}

func (s redisStore) release(ctx context.Context, p luascripts.RuleCall, token uint64) (luascripts.ReleaseReply, error) {
	return luascripts.Release(ctx, s.rdb, p, token)
}

func (s redisStore) peek(ctx context.Context, k luascripts.LimitKeys, a luascripts.PeekArgs) (luascripts.PeekReply, error) {
	return luascripts.Peek(ctx, s.rdb, k, a)
}

func (s redisStore) reset(ctx context.Context, k luascripts.LimitKeys, n luascripts.Numbers) (luascripts.CancelReply, error) {
	return luascripts.Reset(ctx, s.rdb, k, n)
}

// asksMax bounds how often a store is asked with other numbers: once around
// what its clock was last, and then around what it answered.
const roundTripsMax = 3

// errClock says that a store's clock moved away from each answer it gave.
var errClock = errors.New("its clock is in no window that it was asked about")

// desk is a store, and what is known of its clock: the windows of a calendar
// are computed around it before each call.
type clockedStore struct {
	store
	offset atomic.Int64 // nanoseconds that its clock was ahead of ours, when last heard
}

// ask calls f around the store's clock, and again when that clock turns out to be
// elsewhere. f answers the status and the clock.
func (d *clockedStore) retryCovered(f func(around time.Time) (luascripts.Status, time.Time, error)) error {
	_, err := d.retryCoveredTimed(f)
	return err
}

// asked is when a call was made and answered, by the local, monotonic clock.
type roundTripTimes struct{ began, ended time.Time }

// askTimed is [desk.ask], and tells about the last call.
func (d *clockedStore) retryCoveredTimed(f func(around time.Time) (luascripts.Status, time.Time, error)) (at roundTripTimes, err error) {
	for range roundTripsMax {
		at.began = time.Now()
		status, now, err := f(at.began.Add(d.offsetToStore()))
		at.ended = time.Now()
		d.observeClockAt(now, at.ended)
		if err != nil || status != luascripts.NotCovered {
			return at, err
		}
	}
	return at, errClock
}

// number puts the numbers of the limits in force into parts.
func number(parts []luascripts.RuleCall, in []activeLimit, around time.Time) {
	for i := range parts {
		parts[i].Numbers = in[i].numbers(around)
		parts[i].Version = in[i].version
	}
}

// clock is what the store's clock should say now.
func (d *clockedStore) clock() time.Time { return time.Now().Add(d.offsetToStore()) }

func (d *clockedStore) offsetToStore() time.Duration { return time.Duration(d.offset.Load()) }

func (d *clockedStore) observeClock(now time.Time) { d.observeClockAt(now, time.Now()) }

func (d *clockedStore) observeClockAt(now, local time.Time) {
	if !now.IsZero() {
		d.offset.Store(int64(now.Sub(local)))
	}
}

// acquireBy looks at no call that failed: others may work on it still.
func (d *clockedStore) acquireBy(ctx context.Context, in []activeLimit, gates []gate.At, c *luascripts.Call) (roundTripTimes, error) {
	at, err := d.retryCoveredTimed(func(around time.Time) (luascripts.Status, time.Time, error) {
		number(c.Rules, in, around)
		c.Gate = gateAround(gates, around)
		if err := d.acquire(ctx, c); err != nil {
			return 0, time.Time{}, err
		}
		return c.Status, c.Now, nil
	})
	if err != nil {
		return at, err
	}
	return at, orOutdated(nil, c.Status, c.Rule, c.Version)
}

func (d *clockedStore) cancelBy(ctx context.Context, in []activeLimit, a luascripts.CancelArgs) (reply luascripts.CancelReply, err error) {
	err = d.retryCovered(func(around time.Time) (luascripts.Status, time.Time, error) {
		number(a.Rules, in, around)
		reply, err = d.cancel(ctx, a)
		return reply.Status, reply.Now, err
	})
	return reply, orOutdated(err, reply.Status, reply.Rule, reply.Version)
}

func (d *clockedStore) closeBy(ctx context.Context, in []activeLimit, a luascripts.CloseArgs) (reply luascripts.CloseReply, err error) {
	err = d.retryCovered(func(around time.Time) (luascripts.Status, time.Time, error) {
		number(a.Rules, in, around)
		reply, err = d.close(ctx, a)
		return reply.Status, reply.Now, err
	})
	return reply, orOutdated(err, reply.Status, reply.Rule, reply.Version)
}

func (d *clockedStore) adjustBy(ctx context.Context, in []activeLimit, a luascripts.AdjustArgs) (reply luascripts.CancelReply, err error) {
	err = d.retryCovered(func(around time.Time) (luascripts.Status, time.Time, error) {
		number(a.Rules, in, around)
		reply, err = d.adjust(ctx, a)
		return reply.Status, reply.Now, err
	})
	return reply, orOutdated(err, reply.Status, reply.Rule, reply.Version)
}

func (d *clockedStore) peekBy(ctx context.Context, in activeLimit, k luascripts.LimitKeys, a luascripts.PeekArgs) (reply luascripts.PeekReply, err error) {
	a.Closed = in.closed
	err = d.retryCovered(func(around time.Time) (luascripts.Status, time.Time, error) {
		a.Numbers = in.numbers(around)
		a.Version = in.version
		reply, err = d.peek(ctx, k, a)
		return reply.Status, reply.Now, err
	})
	return reply, orOutdated(err, reply.Status, 1, reply.Version)
}

func (d *clockedStore) resetBy(ctx context.Context, in activeLimit, k luascripts.LimitKeys) (reply luascripts.CancelReply, err error) {
	err = d.retryCovered(func(around time.Time) (luascripts.Status, time.Time, error) {
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
