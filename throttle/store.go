package throttle

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/giveback"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redisclock"
)

// store is where permits are counted and lines stand: Redis, or the memory of
// this process. On one server each call is atomic. After an error that Redis did not answer it is not known
// whether the call took effect.
type store interface {
	// acquire puts the answer into the call, which is not used again after an error. Where one server granted in vain, because
	// another one refuses, the grant goes back by the undoer.
	acquire(ctx context.Context, c *limitscripts.Call, by undoer) error
	cancel(ctx context.Context, a limitscripts.CancelArgs) (limitscripts.CancelReply, error)
	close(ctx context.Context, a limitscripts.CloseArgs) (limitscripts.CloseReply, error)
	adjust(ctx context.Context, a limitscripts.AdjustArgs) (limitscripts.CancelReply, error)
	// refresh and renew answer in order; each entry has its own error.
	refresh(ctx context.Context, bookings []limitscripts.RefreshArgs) []limitscripts.RefreshReply
	renew(ctx context.Context, leases []limitscripts.RenewArgs) []limitscripts.RenewReply
	release(ctx context.Context, p limitscripts.RuleCall, token uint64) (limitscripts.ReleaseReply, error)
	peek(ctx context.Context, k limitscripts.LimitKeys, a limitscripts.PeekArgs) (limitscripts.PeekReply, error)
	reset(ctx context.Context, k limitscripts.LimitKeys, n limitscripts.Numbers) (limitscripts.CancelReply, error)
}

// undoer gives grants back, or places in lines, that a call got in one hash slot of a Cluster.
type undoer interface {
	undo(ctx context.Context, g hashSlotGrant)
}

// hashSlotGrant is what a call got in one hash slot of a Cluster.
type hashSlotGrant struct {
	at    hashSlot // its rules
	token Token    // zero when there is only a place in a line
	job   string   // the job whose place is given up, or that gets one again by away or park; empty when there is no place, or it stays as it is
	worth []int64  // by rule of the whole call
	each  []time.Time
	away  time.Time // until when the job keeps its turn there, by the clock of the hash slot's server; zero for no turn
	park  bool      // the job is parked there
	again bool      // the call failed, and may be repeated with the same token: its caller sees to it that the grant goes back
}

// redisStore runs the scripts.
type redisStore struct {
	rdb       redis.UniversalClient
	coalescer *coalescer
}

func (s redisStore) acquire(ctx context.Context, c *limitscripts.Call, _ undoer) error {
	return s.coalescer.acquire(ctx, c)
}

func (s redisStore) cancel(ctx context.Context, a limitscripts.CancelArgs) (limitscripts.CancelReply, error) {
	return limitscripts.Cancel(ctx, s.rdb, a)
}

func (s redisStore) close(ctx context.Context, a limitscripts.CloseArgs) (limitscripts.CloseReply, error) {
	return limitscripts.Close(ctx, s.rdb, a)
}

func (s redisStore) adjust(ctx context.Context, a limitscripts.AdjustArgs) (limitscripts.CancelReply, error) {
	return limitscripts.Adjust(ctx, s.rdb, a)
}

func (s redisStore) refresh(ctx context.Context, bookings []limitscripts.RefreshArgs) []limitscripts.RefreshReply {
	return limitscripts.Refresh(ctx, s.rdb, bookings)
}

func (s redisStore) renew(ctx context.Context, leases []limitscripts.RenewArgs) []limitscripts.RenewReply {
	return limitscripts.Renew(ctx, s.rdb, leases)
}

func (s redisStore) release(ctx context.Context, p limitscripts.RuleCall, token uint64) (limitscripts.ReleaseReply, error) {
	return limitscripts.Release(ctx, s.rdb, p, token)
}

func (s redisStore) peek(ctx context.Context, k limitscripts.LimitKeys, a limitscripts.PeekArgs) (limitscripts.PeekReply, error) {
	return limitscripts.Peek(ctx, s.rdb, k, a)
}

func (s redisStore) reset(ctx context.Context, k limitscripts.LimitKeys, n limitscripts.Numbers) (limitscripts.CancelReply, error) {
	return limitscripts.Reset(ctx, s.rdb, k, n)
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
	for i, r := range limitscripts.StoredLimits(ctx, s.rdb, s.prefix, rules) {
		_, malformed := errors.AsType[*luascripts.ReplyError](r.Err)
		out[i] = storedLimit{text: r.Text, version: r.Version, replaced: r.Replaced, malformed: malformed, err: r.Err, closed: r.Closed, closing: r.Closing}
	}
	return out
}

func (s redisLimits) change(ctx context.Context, rule string, c limitChange) (bool, int64, error) {
	return limitscripts.SetLimit(ctx, s.rdb, s.prefix, rule,
		limitscripts.SetLimitArgs{Limit: c.text, Absent: c.absent, TTL: c.ttl, Replaced: c.replaced, Version: c.version})
}

func (s redisLimits) closeRule(ctx context.Context, rule string, d time.Duration) (time.Time, int64, error) {
	return limitscripts.CloseRule(ctx, s.rdb, s.prefix, rule, d)
}

// changes listens to the rule's channel. A connection that fails only means
// that the caller reads the limit itself.
func (s redisLimits) changes(ctx context.Context, rule string) (wait func(time.Duration), stop func()) {
	sub := s.rdb.Subscribe(ctx, limitscripts.StoredLimitKey(s.prefix, rule))
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
	clock  redisclock.Clock
	ahead  atomic.Int64 // nanoseconds that it was ahead of ours in the last reply
	stands bool         // it stands still, in a test: nobody knows how old an answer is
}

// shows is what the store's clock should show at an instant of ours.
func (s *clockedStore) shows(at time.Time) time.Time { return at.Add(time.Duration(s.ahead.Load())) }

// now is what the store's clock should show now.
func (s *clockedStore) now() time.Time { return s.shows(time.Now()) }

// giveBacks repeats what the store did not take back at once; nil for one that always does.
func (s *clockedStore) giveBacks() *giveback.Queue {
	switch on := s.store.(type) {
	case redisStore:
		return on.coalescer.late
	case clusterStore:
		return on.coalescer.late
	}
	return nil
}

// errClock says that a store's clock moved away from each answer it gave.
var errClock = errors.New("its clock is in no window that it was asked about")

// storeCall is one call of a store, with the limits that it is sent with. It is sent again while the
// store does not decide: its clock is in none of the windows that were sent, or one of
// the limits that were sent was replaced. Most callers loop like this ([acquisition.ask] may read the
// limits with its call, too):
//
//	for again := true; again; {
//		setLimits(rules, t.limits, t.begin())
//		reply, err = t.store.cancel(ctx, args)
//		again, err = t.again(ctx, "cancel", answer{reply.Status, reply.Rule, reply.Version, reply.Now}, err)
//	}
type storeCall struct {
	rules   ruleSet
	store   *clockedStore
	keys    keySet
	limits  []limitInForce // by which the store is asked now
	fixed   bool           // newer limits are not looked for
	assumed *assumedLimits // what the store is to compare with the stored limits; nil for nothing

	roundTripTimes     // of the last call
	clocks         int // replies in a row that its clock was in no window
	outdated       int // replies that a limit was replaced
	changed        int // replies that another limit was stored than the one known here
}

// roundTripTimes is when a call was made and answered, by the local, monotonic clock.
type roundTripTimes struct {
	began, ended time.Time
	shown        time.Time // when the server's clock showed what the answer says, at the latest
	confirmed    bool      // earlier answers say so, too
}

// observe learns from the answer of a store what its clock shows.
func (t *roundTripTimes) observe(s *clockedStore, now time.Time) {
	if !now.IsZero() {
		t.shown, t.confirmed = s.clock.Observe(now, t.began, t.ended)
		s.ahead.Store(int64(now.Sub(t.shown)))
	}
}

// localTimes puts those of an answer into it, unless the store has done so. A grant may be at most
// `old` when it is acted on. As long as one answer is all that is known of a clock, the grant
// may be as old as the call.
func (t *roundTripTimes) localTimes(r *limitscripts.AcquireReply, old time.Duration) {
	if !r.Local.Start.IsZero() {
		return
	}
	ahead := r.At.Sub(r.Now)
	r.Local.Start = t.shown.Add(ahead)
	since := r.Local.Start
	if !t.confirmed {
		since = t.began.Add(ahead)
	}
	r.Local.Until = since.Add(old)
	r.Local.Repeated = r.Status == limitscripts.Granted && ahead < 0 // a new grant is not made for the past
}

// How old a grant may be when it is acted on, at the least and at the most; an older one is made anew, or given back. A
// process often stands still for less than the least, when other programs run or garbage is collected.
const (
	staleMin = 10 * time.Millisecond
	staleMax = time.Second
	// staleHashSlots is the least where several servers are asked one after the other.
	staleHashSlots = 50 * time.Millisecond
)

// slack is how old a grant of the rules may be when it is acted on: a tenth of the shortest
// window.
func slack(calls []limitscripts.RuleCall) time.Duration {
	least := staleMax
	for i := range calls {
		least = min(least, max(calls[i].Window/10, staleMin))
	}
	return least
}

// answer is what every reply says about itself.
type answer struct {
	status  limitscripts.Status
	rule    int // from 1; 0 for none
	version int64
	now     time.Time
}

// newStoreCall begins a call where the policy counts, by the limits that are in force.
func newStoreCall(ctx context.Context, p *Policy, keys keySet) (storeCall, error) {
	in, err := p.limitsInForce(ctx, keys)
	return storeCall{rules: p.rules, store: p.store, keys: keys, limits: in}, err
}

// newStoreCallBy begins a call by given limits, which stay what they are.
func newStoreCallBy(p *Policy, store *clockedStore, limits []limitInForce) storeCall {
	return storeCall{rules: p.rules, store: store, limits: limits, fixed: true}
}

// begin returns what the store's clock should say now.
func (t *storeCall) begin() time.Time {
	t.began = time.Now()
	return t.store.shows(t.began)
}

// again takes in an answer, and says whether to call once more. Otherwise the error
// is how the call ended, as callers of this package see it.
func (t *storeCall) again(ctx context.Context, op string, a answer, err error) (bool, error) {
	t.ended = time.Now()
	t.observe(t.store, a.now)
	switch {
	case err != nil:
	case a.status == limitscripts.NotCovered:
		if t.clocks++; t.clocks < roundTripsMax {
			return true, nil
		}
		err = errClock
	case a.status == limitscripts.Outdated:
		t.clocks = 0
		t.outdated++
		if t.fixed || t.outdated >= roundTripsMax+len(t.rules)-1 {
			err = &outdatedError{a.version, a.rule - 1}
			break
		}
		newer, err := t.rules.catchUp(ctx, t.limits, t.keys, a.rule-1, a.version)
		if err != nil {
			return false, err
		}
		t.limits = newer
		return true, nil
	}
	return false, t.rules.fault(ctx, op, a.rule, a.status, err)
}

// setLimits puts the limits into the calls of their rules, computed around an instant.
func setLimits(calls []limitscripts.RuleCall, limits []limitInForce, around time.Time) {
	for i := range calls {
		limits[i].putInto(&calls[i], around)
	}
}

// roundTripsMax bounds how often a store is called with other windows: once around
// its clock as far as that is known, and then around the clock in each reply. It
// also bounds how often it is called with newer limits, with one more for each
// further rule.
const roundTripsMax = 3
