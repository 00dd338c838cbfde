package throttle

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redisclock"
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
	// refresh and renew answer in order; each entry has its own error.
	refresh(ctx context.Context, bookings []luascripts.RefreshArgs) []luascripts.RefreshReply
	renew(ctx context.Context, leases []luascripts.RenewArgs) []luascripts.RenewReply
	release(ctx context.Context, p luascripts.RuleCall, token uint64) (luascripts.ReleaseReply, error)
	peek(ctx context.Context, k luascripts.LimitKeys, a luascripts.PeekArgs) (luascripts.PeekReply, error)
	reset(ctx context.Context, k luascripts.LimitKeys, n luascripts.Numbers) (luascripts.CancelReply, error)
}

// redisStore runs the scripts.
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

// limitStore is where limits are stored that go before those in code.
type limitStore interface {
	// stored reads the limit of a rule.
	stored(ctx context.Context, rule string) storedLimit
	// change sets or takes away the limit of a rule.
	change(ctx context.Context, rule string, c limitChange) (done bool, version int64, err error)
	// closeRule closes a rule on all keys for d from now on; 0 opens it, and below 0
	// it only tells all limiters that something has changed.
	closeRule(ctx context.Context, rule string, d time.Duration) (until time.Time, version int64, err error)
	// changes lets a caller wait for a change: for d at most, and never longer
	// than ctx. It may return early; stop ends it.
	changes(ctx context.Context, rule string) (wait func(d time.Duration), stop func())
}

// storedLimit is what is stored for a rule: no text means that nothing is.
type storedLimit struct {
	text      string
	version   int64
	replaced  []string // the limits before it, the newest first, when a policy file has it
	malformed bool     // we did not write it
	err       error

	closed  time.Time // until when the rule is closed on all keys; zero for not
	closing int64     // version of that
}

// limitChange is a change of a stored limit.
type limitChange struct {
	text   string        // "" to take it away
	absent bool          // only if none is stored
	ttl    time.Duration // zero for ever

	// Of a limit that a policy file has, which is stored only if nothing newer is.
	replaced []string // the limits before it, the newest first
	version  int64    // of what is stored now
}

// redisLimits stores limits in Redis.
type redisLimits struct {
	rdb    redis.UniversalClient
	prefix string
}

func (s redisLimits) stored(ctx context.Context, rule string) storedLimit {
	return s.storedOf(ctx, []string{rule})[0]
}

// storedOf reads the limits of many rules in one round trip.
func (s redisLimits) storedOf(ctx context.Context, rules []string) []storedLimit {
	out := make([]storedLimit, len(rules))
	for i, r := range luascripts.StoredLimits(ctx, s.rdb, s.prefix, rules) {
		_, malformed := errors.AsType[*luascripts.ReplyError](r.Err)
		out[i] = storedLimit{text: r.Text, version: r.Version, replaced: r.Replaced, malformed: malformed, err: r.Err, closed: r.Closed, closing: r.Closing}
	}
	return out
}

func (s redisLimits) change(ctx context.Context, rule string, c limitChange) (bool, int64, error) {
	return luascripts.SetLimit(ctx, s.rdb, s.prefix, rule,
		luascripts.SetLimitArgs{Limit: c.text, Absent: c.absent, TTL: c.ttl, Replaced: c.replaced, Version: c.version})
}

func (s redisLimits) closeRule(ctx context.Context, rule string, d time.Duration) (time.Time, int64, error) {
	return luascripts.CloseRule(ctx, s.rdb, s.prefix, rule, d)
}

// changes listens to the rule's channel. A connection that fails only means
// that the caller reads the limit itself.
func (s redisLimits) changes(ctx context.Context, rule string) (wait func(time.Duration), stop func()) {
	sub := s.rdb.Subscribe(ctx, luascripts.StoredLimitKey(s.prefix, rule))
	ended := context.AfterFunc(ctx, func() { _ = sub.Close() }) // a read in progress would outlive ctx
	wait = func(d time.Duration) {
		end := time.Now().Add(d)
		if _, err := sub.ReceiveTimeout(ctx, d); err == nil || ctx.Err() != nil {
			return
		}
		t := time.NewTimer(time.Until(end)) // nothing left after a time-out; a broken connection must not spin
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	return wait, func() {
		ended()
		_ = sub.Close()
	}
}

// clockedStore is a store and what is known of its clock: the windows of a calendar
// are computed around that clock before each call. The servers of a Redis Cluster have a
// clock each; this one is then that of the server which answered last.
type clockedStore struct {
	store
	clock redisclock.Clock
	ahead atomic.Int64 // nanoseconds that it was ahead of ours in the last reply
}

// now is what the store's clock should show now.
func (s *clockedStore) now() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// errClock says that a store's clock moved away from each answer it gave.
var errClock = errors.New("its clock is in no window that it was asked about")
