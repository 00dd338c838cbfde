package throttle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/fake"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
)

// Limiter is a named limit: a rule, on a Redis server, or with [NewLocal] in
// this process. It counts permits per key. Limiters of the same name and prefix
// share their state, in any number of processes, and should have the same
// limit in code. When two differ, each decides by its own limit, and writes the ledger in the form of that.
// That may drop grants that the other one still needs; two sliding limits keep them. So change
// a limit that is in use with [Limiter.SetLimit], which goes before both, and not by a
// rolling deploy.
//
// A Limiter holds no state that matters and needs no closing; it does not own
// the client. It is safe for concurrent use. A call for permits whose context has ended
// already asks nothing, and returns the cause of the context. When Redis does not answer, every
// method returns an error that unwraps to [ErrUnavailable] and nothing is
// granted, unless [Config.OnUnavailable] or [Config.Shadow] say otherwise.
type Limiter struct {
	rdb        redis.UniversalClient // nil for one that counts in this process
	store      *clockedStore
	rule       string
	named      string                // the rule as it stands in keys, see Config.PerClient
	names      limitscripts.RuleKeys // of its keys
	limit      Limit                 // in code
	limits     limitStore
	remembered limitMemory
	met        keysMet // the keys seen so far, by their ids; only with Config.LimitOf
	cfg        Config
	waiters    waiters
	policy     *Policy // of only this rule

	fallbackNow func() time.Time // of what counts while Redis is unavailable; nil for the local clock
	decided     func(any, error) // hears each decision, in tests; may be nil
	joined      func(*Policy)    // called with each policy whose first rule this is; may be nil
}

// New returns the limiter of a rule. It does not talk to Redis. All faults of
// its arguments are reported at once, unwrapping to [ErrInvalidConfig] or
// [ErrInvalidLimit]. A nil client panics.
func New(rdb redis.UniversalClient, rule string, limit Limit, cfg Config) (*Limiter, error) {
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		panic("throttle: nil Redis client")
	}
	if c, ok := rdb.(*fake.Client); ok {
		return newFake(c, rule, limit, cfg)
	}
	if _, cluster := rdb.(*redis.ClusterClient); cfg.Replicas > 0 && luascripts.Sharded(rdb) && !cluster {
		return nil, fmt.Errorf("%w: Replicas with a %T, want a redis.Client or a redis.ClusterClient", ErrInvalidConfig, rdb)
	}
	l, err := newRule(storeOn(rdb), rule, limit, cfg)
	if err != nil {
		return nil, err
	}
	l.rdb, l.limits = rdb, redisLimits{rdb, l.cfg.Prefix}
	_, l.remembered.bounded = rdb.(*redis.ClusterClient)
	_, l.store.stands = rdb.(fake.StandingClock)
	l.policy = newPolicy([]*Limiter{l})
	return l, nil
}

// newRule is a limiter without its policy, which [New] adds.
func newRule(s store, rule string, limit Limit, cfg Config) (*Limiter, error) {
	if err := errors.Join(validateRule(rule), limit.Validate(), cfg.validate()); err != nil {
		return nil, err
	}
	cfg = cfg.fill()
	cfg.Secret = slices.Clone(cfg.Secret)
	if cfg.InlineWait == InlineWaitNone {
		cfg.InlineWait = 0
	}
	l := &Limiter{store: &clockedStore{store: s}, rule: rule, named: rule, limit: limit, limits: &memoryLimits{}, cfg: cfg}
	if cfg.PerClient {
		l.named += "@" + cfg.Client
	}
	l.names = limitscripts.NewRuleKeys(cfg.Prefix, l.named)
	return l, nil
}

// Policy is the policy of only this rule.
func (l *Limiter) Policy() *Policy { return l.policy }

// sharesWith says whether two rules can be decided together.
func (l *Limiter) sharesWith(other *Limiter) bool {
	a, b := l.cfg, other.cfg
	sameStore := l.store.store == other.store.store
	return sameStore && a.Prefix == b.Prefix && bytes.Equal(a.Secret, b.Secret) && a.InlineWait == b.InlineWait &&
		a.PerClient == b.PerClient && a.Client == b.Client && a.OnUnavailable == b.OnUnavailable && a.Shadow == b.Shadow &&
		a.HoldAfterFailover == b.HoldAfterFailover && a.Replicas == b.Replicas && a.ReplicasWithin == b.ReplicasWithin
}

// Rule returns the limiter's name.
func (l *Limiter) Rule() string { return l.rule }

// Limit returns the limit in code; [Limiter.LimitStatus] the one that decides.
func (l *Limiter) Limit() Limit { return l.limit }

// TryAcquire takes n permits of key now, or none. It books nothing and does
// not pass jobs that wait: a [Decision] that is not granted says in At and
// Wait when a new job would go. n above the limit is an [ExceedsLimitError].
//
// A grant whose answer comes too late to be acted on is made anew by one more call, so that it counts from now on. If that fails, or comes
// too late as well, it is given back, and TryAcquire asks again at once. Too late is a tenth of the window
// after the grant, at least 10 ms, or 50 ms where several hash slots are asked, and at most 1 s. When that happens three times in a row
// the error unwraps to [ErrUnavailable].
func (l *Limiter) TryAcquire(ctx context.Context, key string, n int) (d Decision, err error) {
	if ctx.Err() != nil {
		return Decision{}, context.Cause(ctx)
	}
	return l.policy.try(ctx, Request{Key: key, Cost: n, Token: NewToken()})
}

// Acquire takes n permits of key and blocks until they are granted: nil means
// that the caller may go. It joins the line, so callers are served in order of
// arrival. It returns at once when it can never succeed: [ErrExceedsLimit], or
// [ErrTooLate] when ctx ends before the caller's instant; for a slot of [Concurrent] it
// waits until ctx ends. When ctx ends while
// it waits, it leaves the line and returns ctx's cause. A call that Redis does not
// answer ends with ctx only if the client's ContextTimeoutEnabled is set; without
// it, with the client's own time-outs.
//
// Inside a worker (see [ForWorkers]) it does not sleep: it returns an error that
// the worker recognises, and the task is deferred to its booking. Handlers
// return it as it is and are right in both worlds. There a task may ask once for
// the same permits: a second call with the same rule and key in one attempt, also
// beside the task's own policy, is refused for good, because deferring it would
// give the first permits back. Ask for all of them at once.
func (l *Limiter) Acquire(ctx context.Context, key string, n int) error {
	_, err := l.policy.Acquire(ctx, Request{Key: key, Cost: n})
	return err
}

// Reserve takes a place in the line of key for n permits, behind all that wait,
// or the permits themselves when they are there. It does not wait. A cost above
// the limit is an [ExceedsLimitError]; when Redis is unavailable the error unwraps to
// [ErrUnavailable], and nothing stays reserved. Inside a worker it does the same
// as outside: the place belongs to the caller, not to the task.
func (l *Limiter) Reserve(ctx context.Context, key string, n int) (*Reservation, error) {
	return l.policy.Reserve(ctx, Request{Key: key, Cost: n})
}

// Reset forgets what was spent on a key, also when that is corrupt. Jobs that wait keep
// their places.
func (l *Limiter) Reset(ctx context.Context, key string) ([]Promotion, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if local := l.policy.fallback.local.Load(); local != nil {
		known := l.policy.rules.lastKnown(ctx, byID(l.met.id(l, key)))
		_, _ = l.reset(ctx, newStoreCallBy(l.policy, local, known), key) // fails only with ctx, as the next call does
	}
	t, err := newStoreCall(ctx, l.policy, byID(l.met.id(l, key)))
	if err != nil {
		return nil, err
	}
	return l.reset(ctx, t, key)
}

func (l *Limiter) reset(ctx context.Context, t storeCall, key string) ([]Promotion, error) {
	k := l.names.Of(l.ID(key))
	var reply limitscripts.CancelReply
	for again := true; again; {
		n := t.limits[0].numbers(t.begin())
		n.Version = t.limits[0].version
		var err error
		reply, err = t.store.reset(ctx, k, n)
		again, err = t.again(ctx, "reset", answer{reply.Status, 1, reply.Version, reply.Now}, err)
		if err != nil {
			return nil, err
		}
	}
	return l.policy.rules.promotions(reply.Promoted, []string{l.ID(key)}, reply.Now), nil
}

// closeMax is the longest time for which a key or a rule can be closed.
const closeMax = 366 * day

func checkClosing(d time.Duration) error {
	if d < time.Millisecond || d > closeMax {
		return fmt.Errorf("%w: closed for %v, want 1ms to %v", ErrInvalidConfig, d, closeMax)
	}
	return nil
}

// CloseKey lets nothing through on a key for d from now on, 1 ms to 366 days,
// by Redis' clock: what is booked moves behind, keeps its order, and goes at the
// limit's pace from the instant that is returned. Of several closings the last to
// end counts. Other keys go on.
func (l *Limiter) CloseKey(ctx context.Context, key string, d time.Duration) (until time.Time, err error) {
	if err := checkClosing(d); err != nil {
		return time.Time{}, err
	}
	reply, err := closeKey(ctx, l.policy, 0, Request{Key: key, Cost: 1}, d)
	return reply.Until, err
}

// closeKey closes the key of a rule for d; 0 opens it. A job of r that has no place there gets the first
// one, and the first turn at the narrower rules and at those that share the key.
func closeKey(ctx context.Context, p *Policy, rule int, r Request, d time.Duration) (reply limitscripts.CloseReply, err error) {
	if err := r.check(p.rules); err != nil {
		return reply, err
	}
	reply, err = closeID(ctx, p, rule, p.rules.ids(r), r, d)
	if err == nil {
		p.rules[rule].tellClosed(ctx, d, reply.Until)
	}
	return reply, err
}

// tellClosed tells the observer that a key was closed for d, or opened when d is 0.
func (l *Limiter) tellClosed(ctx context.Context, d time.Duration, until time.Time) {
	tell := l.policy.cfg.Observer.KeyClosed
	if tell == nil {
		return
	}
	e := event.KeyClosed{Rule: l.rule}
	if d > 0 {
		e.Until = until
	}
	tell(ctx, e)
}

// closeID is closeKey by the ids of the keys, and tells no observer.
func closeID(ctx context.Context, p *Policy, rule int, ids []string, r Request, d time.Duration) (reply limitscripts.CloseReply, err error) {
	calls, end := p.calls(ids, r), rule+1
	for end < len(ids) && calls[end].SharesKey(&calls[rule]) && !p.rules[end].limit.IsConcurrent() {
		end++
	}
	t, err := newStoreCall(ctx, p, byID(ids...))
	if err != nil {
		return reply, err
	}
	args := limitscripts.CloseArgs{Rules: calls[:end], Rule: rule + 1, Policy: p.name, Job: r.Job, For: d}
	r.grant.addTo(args.Rules, p, r.Key)
	for again := true; again; {
		setLimits(args.Rules, t.limits, t.begin())
		reply, err = t.store.close(ctx, args)
		again, err = t.again(ctx, "close", answer{reply.Status, reply.Rule, reply.Version, reply.Now}, err)
	}
	return reply, err
}

// OpenKey ends a closing of a key before its time. The Promotions are the
// jobs that come next; pools plan the rule's deferred tasks anew, which takes about a second. On a
// key that is open it changes nothing.
func (l *Limiter) OpenKey(ctx context.Context, key string) ([]Promotion, error) {
	reply, err := closeKey(ctx, l.policy, 0, Request{Key: key, Cost: 1}, 0)
	if err != nil {
		return nil, err
	}
	return l.opened(ctx, l.ID(key), reply)
}

// opened are the jobs that come next on a key that was opened.
func (l *Limiter) opened(ctx context.Context, id string, reply limitscripts.CloseReply) ([]Promotion, error) {
	promoted := l.policy.rules.promotions(reply.Promoted, []string{id}, reply.Now)
	return promoted, l.announceChange(ctx)
}

// CloseRule is [Limiter.CloseKey] for all keys of the rule. It takes effect at once in
// this limiter and within a second in all others.
func (l *Limiter) CloseRule(ctx context.Context, d time.Duration) (until time.Time, err error) {
	if err := checkClosing(d); err != nil {
		return time.Time{}, err
	}
	return l.closeRule(ctx, d)
}

// OpenRule ends a closing of the rule before its time; keys that are closed stay
// closed.
func (l *Limiter) OpenRule(ctx context.Context) error {
	_, err := l.closeRule(ctx, 0)
	return err
}

// limitTTLMin is the shortest time for which a limit can be stored.
const limitTTLMin = time.Second

// SetLimitOptions are what [Limiter.SetLimit] may do otherwise.
type SetLimitOptions struct {
	// For is how long the limit counts, at least 1 s; then the one in code counts again.
	// Zero means until it is set anew or taken away.
	For time.Duration
	// IfUnset stores the limit only if none is stored.
	IfUnset bool
}

// SetLimit stores a limit for the rule in Redis, and says whether it did. The stored
// limit goes before the one in code, in every process, until it is set anew or taken
// away with [Limiter.UnsetLimit]. It takes effect at once in this limiter and within a second
// in all others. A limit that makes no sense is an [ErrInvalidLimit]. After
// [ErrUnavailable] it may have been stored.
//
// When an answer is lost on the way the client asks again. With IfUnset, false may
// then mean this very call, and [Limiter.LimitStatus] tells which limit is stored.
func (l *Limiter) SetLimit(ctx context.Context, limit Limit, options SetLimitOptions) (set bool, err error) {
	if options.For != 0 && options.For < limitTTLMin {
		return false, fmt.Errorf("%w: a limit stored for %v, want at least %v", ErrInvalidConfig, options.For, limitTTLMin)
	}
	return l.setLimit(ctx, limit, limitChange{ttl: options.For, absent: options.IfUnset})
}

// UnsetLimit takes the stored limit away: the one in code counts again. Without
// one it does nothing.
func (l *Limiter) UnsetLimit(ctx context.Context) error {
	_, err := l.change(ctx, limitChange{}, knownLimit{limit: l.limit})
	return err
}

// LimitStatus is the limit by which a rule goes at a moment.
type LimitStatus struct {
	Limit   Limit     // that decides: the stored one, or the one in code
	Stored  bool      // it is stored, and goes before the one in code
	Version int64     // grows with each change of what is stored, and of the closing; 0 when nothing is
	Closed  time.Time // until when the rule is closed on all keys; zero for not
	Err     error     // why it is not known; nothing is granted then

	// Replaced are the limits that the stored one replaced, the newest first, when it is stored
	// because a policy file was edited. It is nil for a limit of [Limiter.SetLimit].
	Replaced []string
}

// LimitStatus asks Redis for the limit that decides now. This limiter goes by the answer
// from then on. A stored limit that this version can't read is an [ErrStoredLimit].
func (l *Limiter) LimitStatus(ctx context.Context) LimitStatus { return l.readLimit(ctx).status() }

// WatchLimit yields the limit in force, at once and after each change, until
// ctx ends or the loop does. Changes that follow each other closely may be seen
// as one. While the limit can't be read it yields one error and goes on.
func (l *Limiter) WatchLimit(ctx context.Context) iter.Seq2[Limit, error] {
	return func(yield func(Limit, error) bool) {
		bell, stop := l.limits.changes(ctx, l.rule)
		defer stop()
		var last knownLimit
		for first := true; ctx.Err() == nil; first = false {
			k := l.readLimit(ctx)
			if ctx.Err() != nil {
				return
			}
			same := !first && (k.err == nil) == (last.err == nil) && k.limit == last.limit
			if !same && !yield(k.limit, k.err) {
				return
			}
			last = k
			bell(limitPoll)
		}
	}
}

// ID is the form in which a key appears in Redis: as it is, or hashed, see
// [Config] and docs/redis-keys.md.
func (l *Limiter) ID(key string) string { return limitscripts.KeyID(l.cfg.Secret, key) }

// Ledger names the key in Redis that holds what was spent: limiters whose ledger
// is the same count together.
func (l *Limiter) Ledger(key string) string { return l.names.Of(l.ID(key)).Ledger() }

// PeekMax bounds how many places of a line one call returns.
const PeekMax = 250

// State is what a key looks like at one moment.
type State struct {
	Now       time.Time // by Redis' clock
	Available int       // permits that TryAcquire could take now; 0 while a job waits
	Next      time.Time // when a new job with one permit would go
	Waiting   int       // length of the line, without the jobs that are late
	Booked    []Waiting // the first of the line, in order

	Expires time.Duration // until what was spent is forgotten; 0 when nothing is known
	Closed  time.Time     // until when nothing goes, see [Limiter.CloseKey] and [Limiter.CloseRule]; zero for not

	// OwnClosed is until when the key itself is closed, and RuleClosed until when its rule is closed on all keys.
	// Closed is the later of both.
	OwnClosed, RuleClosed time.Time

	// Held is until when a new job of this cost is held because Redis may have forgotten grants, see
	// [Config.HoldAfterFailover]; zero for not. Nothing ends a hold early. Where a server was promoted and nobody has
	// asked it for permits yet, the hold is told as if it began now.
	Held time.Time
	// HoldUnknown says that the key may be held, and that this can't be found out: the client can use no Redis
	// functions, or its user may not call INFO. The other fields are then told as if it were not held.
	HoldUnknown bool
}

// Waiting is one place in a line.
type Waiting struct {
	Job  string
	Cost int
	At   time.Time // its instant as it follows from its place now; of a parked job, the one that it missed

	// Parked says that the job came too late: those behind it do not wait for it. Only
	// [Limiter.List] lists such jobs.
	Parked bool
}

// Peek reads a key without changing it: available permits, and the bookings, the first most of them (0 to [PeekMax]). It asks the
// master; on an unknown key everything is available.
func (l *Limiter) Peek(ctx context.Context, key string, most int) (State, error) {
	if err := checkKey(key); err != nil {
		return State{}, err
	}
	if most < 0 || most > PeekMax {
		return State{}, fmt.Errorf("%w: a peek at %d places, want 0 to %d", ErrInvalidConfig, most, PeekMax)
	}
	s, _, err := l.peekID(ctx, l.met.id(l, key), peeking{cost: 1, most: most})
	return s, err
}

// Available returns how many permits of key TryAcquire could take now: 0 while a job
// waits. It asks Redis once and does not wait; another caller may take
// them first. When Redis is unavailable the error unwraps to
// [ErrUnavailable]. So it does where State.HoldUnknown is true: nothing is granted there.
func (l *Limiter) Available(ctx context.Context, key string) (int, error) {
	s, err := l.Peek(ctx, key, 0)
	if err == nil {
		err = l.holdKnown(ctx, s)
	}
	if err != nil {
		return 0, err
	}
	return s.Available, nil
}

// TimeUntil returns how long a new job would take to get n permits of key,
// behind all jobs that wait; 0 is now. It asks Redis once and does not wait, and
// reserves nothing: see [Limiter.Reserve]. More than the limit can ever give is
// an [ExceedsLimitError]; when Redis is unavailable, or State.HoldUnknown is true, the error
// unwraps to [ErrUnavailable].
func (l *Limiter) TimeUntil(ctx context.Context, key string, n int) (time.Duration, error) {
	r := Request{Key: key, Cost: n}
	if err := r.check(l.policy.rules); err != nil {
		return 0, err
	}
	s, _, err := l.peekID(ctx, l.met.id(l, key), peeking{cost: n})
	if err == nil {
		err = l.holdKnown(ctx, s)
	}
	if err != nil {
		return 0, err
	}
	return max(0, s.Next.Sub(s.Now)), nil
}

// errHoldUnknown is why a call can't say what would be granted now.
var errHoldUnknown = errors.New("HoldAfterFailover needs Redis functions, and the right +info")

// holdKnown is the error of a question whose answer is only a number, when the key may be held.
func (l *Limiter) holdKnown(ctx context.Context, s State) error {
	if !s.HoldUnknown {
		return nil
	}
	return l.fault(ctx, "peek", 0, errHoldUnknown)
}

// peeking is what a peek asks for: when a new job of a cost would go, the first most of the line, and so many of
// the newest grants. hold says that others hold keys after a failover, even if this limiter does not.
type peeking struct {
	cost, most, grants int
	hold               bool
}

// peekID peeks at the key of an id.
func (l *Limiter) peekID(ctx context.Context, id string, q peeking) (s State, spent []limitscripts.Spent, err error) {
	t, err := newStoreCall(ctx, l.policy, byID(id))
	if err != nil {
		return s, nil, err
	}
	k := l.names.Of(id)
	var reply limitscripts.PeekReply
	var ruleClosed time.Time
	for again := true; again; {
		in := t.limits[0]
		if err := in.fits(l.rule, q.cost); err != nil {
			return s, nil, err
		}
		ruleClosed = in.closed
		a := limitscripts.PeekArgs{Numbers: in.numbers(t.begin()), Closed: in.closed, Cost: q.cost, Most: q.most, Spent: q.grants,
			HoldAfterFailover: q.hold || l.cfg.HoldAfterFailover}
		a.Version = in.version
		reply, err = t.store.peek(ctx, k, a)
		again, err = t.again(ctx, "peek", answer{reply.Status, 1, reply.Version, reply.Now}, err)
	}
	if err != nil {
		return s, nil, err
	}
	s = State{Now: reply.Now, Available: reply.Free, Next: reply.Next, Waiting: reply.Waiting, Expires: reply.Life, Closed: reply.Closed,
		OwnClosed: reply.Own, Held: reply.Held.Until, HoldUnknown: reply.Held.Unknown}
	if ruleClosed.After(s.Now) {
		s.RuleClosed = ruleClosed
	}
	for _, w := range reply.Listed {
		s.Booked = append(s.Booked, Waiting{Job: w.Job, Cost: w.Cost, At: w.At})
	}
	return s, reply.Spent, nil
}

// ListFrom is where a page of a line begins: behind the first Skip jobs of a ticket. The
// zero ListFrom is the front. Take it from [Listing.Next]; its numbers mean nothing else.
type ListFrom struct {
	Ticket int64
	Skip   int
}

// Listing is a page of a line.
type Listing struct {
	Now    time.Time // by Redis' clock
	All    int       // jobs in the line, also those that came too late
	Listed []Waiting
	Next   ListFrom // behind the last of these
}

// List reads a page of a key's line in its order, 1 to [PeekMax] places, without
// changing it: first the jobs that came too late, which are let in when they come.
// Jobs that wait in the line of another rule, and only keep their order here, are
// not in it. Where costs differ, instants behind the first page are those of
// a refresh: late rather than early. It asks the master once.
func (l *Limiter) List(ctx context.Context, key string, from ListFrom, most int) (Listing, error) {
	if err := checkKey(key); err != nil {
		return Listing{}, err
	}
	return l.list(ctx, l.met.id(l, key), from, most, false)
}

// list is List by the id of a key. hold is that of [peeking].
func (l *Limiter) list(ctx context.Context, id string, from ListFrom, most int, hold bool) (Listing, error) {
	if most < 1 || most > PeekMax {
		return Listing{}, fmt.Errorf("%w: a list of %d places, want 1 to %d", ErrInvalidConfig, most, PeekMax)
	}
	if l.rdb == nil {
		return Listing{}, fmt.Errorf("%w: rule %q counts in its own process, where its lines can't be read", ErrInvalidConfig, l.rule)
	}
	t, err := newStoreCall(ctx, l.policy, byID(id))
	if err != nil {
		return Listing{}, err
	}
	var reply limitscripts.ListReply
	for again := true; again; {
		in := t.limits[0]
		a := limitscripts.ListArgs{Numbers: in.numbers(t.begin()), Closed: in.closed, From: limitscripts.Ticket{Number: from.Ticket, Some: from.Skip > 0},
			Skip: from.Skip, Most: most, HoldAfterFailover: hold || l.cfg.HoldAfterFailover}
		a.Version = in.version
		reply, err = limitscripts.List(ctx, l.rdb, l.names.Of(id), a)
		again, err = t.again(ctx, "list", answer{reply.Status, 1, reply.Version, reply.Now}, err)
		if err != nil {
			return Listing{}, err
		}
	}
	out := Listing{Now: reply.Now, All: reply.All, Next: from}
	for _, w := range reply.Listed {
		out.Listed = append(out.Listed, Waiting{Job: w.Job, Cost: w.Cost, At: w.At, Parked: w.Parked})
		out.Next = out.Next.after(w.Ticket)
	}
	return out, nil
}

// after is behind one more place.
func (f ListFrom) after(ticket int64) ListFrom {
	if f.Skip > 0 && f.Ticket == ticket {
		f.Skip++
		return f
	}
	return ListFrom{ticket, 1}
}
