package throttle

// This file is for those who write a worker: a program that runs jobs, defers those
// that may not run yet, and wakes them when their instants come. Packages worker and
// queue are made with it. A program that only asks for permits needs none of it.

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/giveback"
	"github.com/headwayq/headway/internal/limitscripts"
)

// ForWorkers are the calls for packages that build on this one, such as a worker. They are here, and not methods
// of [Limiter] and [Policy], so that those hold what every program needs.
var ForWorkers workerCalls

type workerCalls struct{}

// Host is what a worker puts into the context of a running task, so that
// [Limiter.Acquire] gives the worker slot back instead of sleeping in it. Its
// methods are called from the goroutines of the handler.
type Host interface {
	// Job is the id under which the task waits in lines.
	Job() string
	// MaxWait is how long from now the task may wait, as in [Request].
	MaxWait() time.Duration
	// Ask redeems on behalf of the task: [Policy.Redeem] with what the worker
	// wants to see of it. A call that was lost it takes back itself; the error
	// is what the handler has to return.
	Ask(ctx context.Context, p *Policy, r Request) (Decision, error)
	// Begin waits the rest until a grant's instant and makes the grant part of
	// the attempt. Not fresh means that the process stood still meanwhile: the
	// grant was given back, the job got the first place in the line for it, and the caller asks
	// anew. An error means that it was given back, and what to return.
	Begin(ctx context.Context, p *Policy, d Decision) (fresh bool, err error)
	// DeferStale defers the task as Defer does, after several grants in a row that were not
	// fresh; d says for how long. A nil error means that the task can't be deferred and
	// has waited: the caller asks anew.
	DeferStale(ctx context.Context, p *Policy, d Decision) error
	// Defer returns the error that the handler has to return. When the handler has returned
	// it, the attempt's earlier grants go back.
	Defer(ctx context.Context, p *Policy, d Decision) error
}

type hostKey struct{}

// WithHost returns a context in which [Limiter.Acquire] defers to h.
func (workerCalls) WithHost(ctx context.Context, h Host) context.Context {
	return context.WithValue(ctx, hostKey{}, h)
}

// BookingRef is a booking without the keys in clear: what a worker stores beside a
// deferred task.
type BookingRef struct {
	Policy *Policy
	IDs    []string // the keys as [Limiter.ID] gives them, by rule
	Costs  []int    // by rule
	Job    string
}

// Ref is the booking of r by a policy, without the keys in clear.
func (workerCalls) Ref(p *Policy, r Request) BookingRef {
	ref := BookingRef{Policy: p, IDs: p.rules.ids(r), Job: r.Job}
	for i := range p.rules {
		ref.Costs = append(ref.Costs, r.keyCost(i).Cost)
	}
	return ref
}

// ShareLedger says whether two requests, each by its policy, are counted in a common
// ledger: by rules of one name on one key.
func (workerCalls) ShareLedger(p *Policy, r Request, q *Policy, s Request) bool {
	for i, l := range p.rules {
		for j, m := range q.rules {
			if l.Ledger(r.keyCost(i).Key) == m.Ledger(s.keyCost(j).Key) {
				return true
			}
		}
	}
	return false
}

// BookingStatus is where a booking stands.
type BookingStatus struct {
	Known   bool      // the job has a booking
	Rule    string    // by which it waits
	At      time.Time // its instant now, by Redis' clock
	Now     time.Time // Redis' clock
	Permits int       // ahead of it in the line in which it stands

	// Only Lookup tells these.
	Jobs   int       // ahead of it, as Permits
	Closed time.Time // until when the key of the rule is closed; zero for not
	Held   time.Time // until when the rule is held after a failover, see [State]; zero for not
	Parked bool      // it came too late: those behind it do not wait for it, and when it comes it stands before them

	// Only Refresh tells these.
	Promoted []Promotion // jobs that may come earlier: this job is not in their way any more
	Err      error       // what kept this one from being answered
}

// request is what the booking was made for, without the keys.
func (b BookingRef) request() Request {
	r := Request{Job: b.Job, Cost: b.Costs[0]}
	for _, cost := range b.Costs[1:] {
		r.More = append(r.More, KeyCost{Cost: cost})
	}
	return r
}

// Refresh asks for the current instants of many bookings, in order, and renews their
// promises: those instants are what the jobs are promised from now on. It takes one
// round trip for all bookings in Redis, which must be rdb, and one call each for
// those of a [NewLocal]. A booking that the limits in force never admit is an
// [ExceedsLimitError]. On Redis Cluster the bookings of a master that does not answer within a second fail
// with [ErrUnavailable].
func (workerCalls) Refresh(ctx context.Context, rdb redis.UniversalClient, bookings []BookingRef) []BookingStatus {
	out := make([]BookingStatus, len(bookings))
	var there, here []int
	limits := make([][]limitInForce, len(bookings))
	silent := map[*Policy]error{} // whose limits a silent master has: to find that out takes seconds, and nobody else remembers it
	for i, b := range bookings {
		err, began := silent[b.Policy], time.Now()
		if err == nil {
			limits[i], err = b.Policy.limitsInForce(ctx, byID(b.IDs...))
		}
		switch {
		case err == nil:
			_, err = b.Policy.rules.fits(limits[i], new(b.request()))
		case errors.Is(err, ErrUnavailable) && time.Since(began) > limitPatience/2:
			silent[b.Policy] = err
		}
		switch {
		case err != nil:
			out[i].Err = err
		case b.Policy.rdb == nil:
			here = append(here, i)
		default:
			there = append(there, i)
		}
	}
	refreshOn(ctx, storeOn(rdb), bookings, limits, there, out)
	for _, i := range here {
		refreshOn(ctx, bookings[i].Policy.store, bookings, limits, []int{i}, out)
	}
	return out
}

// refreshOn asks a store about the bookings of the given indices, and again about
// those that it did not decide about, see [storeCall].
func refreshOn(ctx context.Context, s store, bookings []BookingRef, limits [][]limitInForce, indices []int, out []BookingStatus) {
	for n := 0; len(indices) > 0; n++ {
		args := make([]limitscripts.RefreshArgs, len(indices))
		for j, i := range indices {
			p := bookings[i].Policy
			args[j] = limitscripts.RefreshArgs{Rules: p.calls(bookings[i].IDs, bookings[i].request()), Policy: p.name, Job: bookings[i].Job,
				HoldAfterFailover: p.cfg.HoldAfterFailover}
			setLimits(args[j].Rules, limits[i], p.store.now())
		}
		var again []int
		began := time.Now()
		replies := s.refresh(ctx, args)
		when := roundTripTimes{began: began, ended: time.Now()}
		for j, r := range replies {
			i, err := indices[j], r.Err
			p := bookings[i].Policy
			when.observe(p.store, r.Now)
			if err == nil && r.Status == limitscripts.NotCovered {
				again, err = append(again, i), errClock
			}
			if err == nil && r.Status == limitscripts.Outdated {
				if limits[i], err = p.rules.catchUp(ctx, limits[i], byID(bookings[i].IDs...), r.Rule-1, r.Version); err == nil {
					again, err = append(again, i), &outdatedError{r.Version, r.Rule - 1}
				}
			}
			err = p.rules.fault(ctx, "refresh", r.Rule, r.Status, err)
			out[i] = BookingStatus{Known: err == nil && r.Status == limitscripts.Booked, At: r.At, Now: r.Now, Permits: r.Before,
				Promoted: p.rules.promotions(r.Promoted, bookings[i].IDs, r.Now), Err: err}
			if r.Rule > 0 && r.Rule <= len(p.rules) {
				out[i].Rule = p.rules[r.Rule-1].rule
			}
		}
		if indices = again; n+1 == roundTripsMax {
			return
		}
	}
}

// CancelBooking takes a booking out of its lines; see [Policy.Cancel].
func (workerCalls) CancelBooking(ctx context.Context, b BookingRef) ([]Promotion, error) {
	return refund{p: b.Policy, ids: b.IDs, r: b.request()}.run(ctx)
}

// First gives a booking the first place in the line of a rule of its policy, and the first
// turn in the narrower ones. The key is closed for a millisecond: that is how others are
// made to wait. A job that is lost in between has no place and asks anew. It returns the jobs
// that may come earlier because the booking left its old place.
func (workerCalls) First(ctx context.Context, b BookingRef, rule string) ([]Promotion, error) {
	n := slices.IndexFunc(b.Policy.rules, func(l *Limiter) bool { return l.rule == rule })
	if n < 0 {
		return nil, fmt.Errorf("%w: policy %v has no rule %q", ErrInvalidConfig, b.Policy, rule)
	}
	promoted, err := refund{p: b.Policy, ids: b.IDs, r: b.request()}.run(ctx)
	if err == nil {
		_, err = closeID(ctx, b.Policy, n, b.IDs, b.request(), time.Millisecond)
	}
	return promoted, err
}

// Lookup reads where a booking stands. It is Refresh without a promise: a job to
// which an instant is promised is late when it does not come then, and a reader does
// not tell the job. It asks the master once, on Redis Cluster once for each key. A
// booking that the limits in force never admit is an [ExceedsLimitError]; when Redis
// is unavailable the error unwraps to [ErrUnavailable]. hold says that pools hold keys after a
// failover, even if the limiters here do not.
func (workerCalls) Lookup(ctx context.Context, booking BookingRef, hold bool) (BookingStatus, error) {
	p := booking.Policy
	if p.rdb == nil {
		return BookingStatus{}, fmt.Errorf("%w: rule %q counts in its own process, where its lines can't be read", ErrInvalidConfig, p.rules[0].rule)
	}
	t, err := newStoreCall(ctx, p, byID(booking.IDs...))
	if err != nil {
		return BookingStatus{}, err
	}
	r := booking.request()
	calls := p.calls(booking.IDs, r)
	parts := []hashSlot{{0, len(calls)}}
	if _, sharded := p.store.store.(clusterStore); sharded {
		parts = hashSlots(calls)
	}
	var out BookingStatus
	for n := 0; n < len(parts); {
		if _, err := p.rules.fits(t.limits, &r); err != nil {
			return BookingStatus{}, err
		}
		outdated := t.outdated
		s, again, err := lookup(ctx, &t, calls, parts[n], booking, hold)
		switch {
		case err != nil:
			return BookingStatus{}, err
		case t.outdated > outdated: // what the hash slots before answered is outdated too
			n, out = 0, BookingStatus{}
			continue
		case again:
			continue
		}
		if !out.Known || s.Known && s.At.Sub(s.Now) > out.At.Sub(out.Now) {
			out = s // the job waits for the rule that lets it wait longest; each hash slot has a clock of its own
		}
		n++
	}
	return out, nil
}

// lookup asks once about the calls of one hash slot.
func lookup(ctx context.Context, t *storeCall, calls []limitscripts.RuleCall, at hashSlot, booking BookingRef,
	hold bool) (s BookingStatus, again bool, err error) {
	p := booking.Policy
	setLimits(calls, t.limits, t.begin())
	a := limitscripts.RefreshArgs{Rules: calls[at.from:at.to], Policy: p.name, Job: booking.Job}
	r, err := limitscripts.Lookup(ctx, p.rdb, a, hold || p.cfg.HoldAfterFailover)
	rule := r.Rule + at.from
	again, err = t.again(ctx, "lookup", answer{r.Status, rule, r.Version, r.Now}, err)
	s = BookingStatus{Known: r.Status == limitscripts.Booked, At: r.At, Now: r.Now, Permits: r.Permits, Jobs: r.Jobs, Closed: r.Closed, Held: r.Held.Until,
		Parked: r.Parked}
	if s.Known && rule > 0 && rule <= len(p.rules) {
		s.Rule = p.rules[rule-1].rule
	}
	return s, again, err
}

// Peek is [Limiter.Peek] by the id of a key, see [Limiter.ID], for those who do not know
// the key in clear. State.Next is that of a new job of this cost; one that the limit in
// force never admits is an [ExceedsLimitError]. hold says that pools hold keys after a failover, even if the
// limiter here does not.
func (workerCalls) Peek(ctx context.Context, l *Limiter, id string, cost, most int, hold bool) (State, error) {
	s, _, err := l.peekID(ctx, id, peeking{cost: cost, most: most, hold: hold})
	return s, err
}

// Spent is Peek for one permit, and what of the newest grants the ledger still knows, the
// newest first, at most so many: their instants and permits. Of a limit that only counts an
// instant is the last of so many permits, and of a lease its end.
func (workerCalls) Spent(ctx context.Context, l *Limiter, id string, most int, hold bool) (s State, at []time.Time, permits []int, err error) {
	s, spent, err := l.peekID(ctx, id, peeking{cost: 1, grants: most, hold: hold})
	for _, g := range spent {
		at, permits = append(at, g.At), append(permits, g.Permits)
	}
	return s, at, permits, err
}

// List is [Limiter.List] by the id of a key, see [Limiter.ID].
func (workerCalls) List(ctx context.Context, l *Limiter, id string, from ListFrom, most int, hold bool) (Listing, error) {
	return l.list(ctx, id, from, most, hold)
}

// Close is [Limiter.CloseKey] by the id of a key, see [Limiter.ID].
func (workerCalls) Close(ctx context.Context, l *Limiter, id string, d time.Duration) (until time.Time, err error) {
	if err := checkClosing(d); err != nil {
		return time.Time{}, err
	}
	reply, err := closeID(ctx, l.policy, 0, []string{id}, Request{Cost: 1}, d)
	if err == nil {
		l.tellClosed(ctx, d, reply.Until)
	}
	return reply.Until, err
}

// Open is [Limiter.OpenKey] by the id of a key, see [Limiter.ID].
func (workerCalls) Open(ctx context.Context, l *Limiter, id string) ([]Promotion, error) {
	reply, err := closeID(ctx, l.policy, 0, []string{id}, Request{Cost: 1}, 0)
	if err != nil {
		return nil, err
	}
	l.tellClosed(ctx, 0, time.Time{})
	return l.opened(ctx, id, reply)
}

// LimitStatuses asks for the limits in force of many limiters, in order, with
// one round trip for those that share a client and a prefix. Each limiter goes
// by the answer from then on.
func (workerCalls) LimitStatuses(ctx context.Context, limiters []*Limiter) []LimitStatus {
	out := make([]LimitStatus, len(limiters))
	together := make(map[redisLimits][]int)
	for i, l := range limiters {
		if s, ok := l.limits.(redisLimits); ok && reflect.ValueOf(s.rdb).Comparable() { // else it is no key of a map
			together[s] = append(together[s], i)
			continue
		}
		out[i] = l.readLimit(ctx).status()
	}
	for s, indices := range together {
		rules := make([]string, len(indices))
		for n, i := range indices {
			rules[n] = limiters[i].rule
		}
		began := time.Now()
		for n, stored := range s.storedOf(ctx, rules) {
			i := indices[n]
			out[i] = limiters[i].resolve(ctx, began, stored).status()
		}
	}
	return out
}

func (k knownLimit) status() LimitStatus {
	return LimitStatus{Limit: k.limit, Stored: k.stored, Version: k.changed, Closed: k.closed, Err: k.err, Replaced: k.replaced}
}

// FollowFile brings the limit that a policy file has in force in all processes, by storing it,
// and returns what is in force then. was is the limit that this process read from the file
// before it was edited; zero at the start.
//
// It leaves what is stored as it is in two cases. One is a limit that an operator stored. The
// other is a limit that replaced this very one: then this process has an older copy of the
// file, unless what was edited is the limit in force. A program that is started with an older
// file does not bring an old limit back.
func (workerCalls) FollowFile(ctx context.Context, l *Limiter, was, now Limit) (LimitStatus, error) {
	k, err := l.followFile(ctx, was, now)
	return k.status(), err
}

// Answered says that an error came from a Redis that answered, and refused: it
// is full, or one of our keys holds something else. To repeat the call at once does not help,
// and this very call was not charged (one before it, whose answer was lost, may
// have been).
func (workerCalls) Answered(err error) bool {
	u, ok := errors.AsType[*unavailableError](err)
	return ok && u.answered
}

// ShadowedFor is what the answer would have been in place of a grant that shadow mode made:
// [ErrThrottled], [ErrTooLate], [ErrExceedsLimit], or [ErrStoredLimit] for whatever can't be
// read. It is nil for any other grant, also for one that was made while Redis is away.
func (workerCalls) ShadowedFor(d Decision) error {
	switch d.instead {
	case insteadOfWait:
		return ErrThrottled
	case insteadOfLate:
		return ErrTooLate
	case insteadOfNever:
		return ErrExceedsLimit
	case insteadOfFault:
		return ErrStoredLimit
	}
	return nil
}

// LeaseFor is the shortest lease of a grant: renew it well before it is over. 0
// when there is none.
func (workerCalls) LeaseFor(p *Policy, d Decision) time.Duration { return shortestLease(p, d) }

// CountsFor is for how long, at most, the leases and the permits count that r was granted: leases that are not
// renewed any more. It goes by the limits that granted it. When r may have been granted by a call that was not
// answered, it goes by those of its keys as they are known now. 0 when there are none.
func (workerCalls) CountsFor(p *Policy, r Request) (leases, permits time.Duration) {
	limits := r.grant.limits
	if len(limits) == 0 {
		limits = p.rules.lastKnown(context.Background(), byRequest(&r))
	}
	for _, by := range limits {
		if by.IsConcurrent() {
			leases = max(leases, by.Window())
		} else {
			permits = max(permits, by.counts())
		}
	}
	return leases, permits
}

// MayPass says that a call which ended with an error may succeed later: Redis did not answer, or an operator mends what it
// refused. Of the errors of several calls, which are joined, it goes by the first that says that Redis did not do
// as it should; see [Policy.Release].
func (workerCalls) MayPass(err error) bool {
	if u, ok := errors.AsType[*unavailableError](err); ok && u.final {
		return errors.Is(err, ErrStoredLimit)
	}
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrStoredLimit)
}

// Servers names the masters of a Redis Cluster that have the keys of a request. It is empty where one server has all
// keys. It asks nobody, and goes by what the client knows already.
func (workerCalls) Servers(p *Policy, r Request) string {
	return serversOf(p, p.rules.ids(r), hashSlot{})
}

// serversOf is ForWorkers.Servers by ids, of the rules of one hash slot, or of all rules when that is zero.
func serversOf(p *Policy, ids []string, at hashSlot) string {
	on, ok := p.store.store.(clusterStore)
	if !ok || on.coalescer.cluster == nil {
		return ""
	}
	var addrs []string
	for i, l := range p.rules {
		if at.to > 0 && (i < at.from || i >= at.to) {
			continue
		}
		if addr := on.coalescer.masterKnown(l.names.Of(ids[i]).Ledger()); addr != "" {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return strings.Join(slices.Compact(addrs), " ")
}

// NewGiveBacks makes a queue of calls that give back what Redis did not take back at once. Each may take as long as within. warn hears of
// calls that are dropped; nil for nobody.
func (workerCalls) NewGiveBacks(within time.Duration, warn func(line string, err error)) *giveback.Queue {
	return giveback.New(within, whatGiveBackErrorMeans, warn)
}

// WithGiveBacks returns a context in whose calls q repeats what Redis did not take back at once, such as a grant of one server of a Cluster
// after another one refused. promoted hears which jobs may come earlier then. Without it this package repeats such calls itself, and
// wakes only callers of this process.
func (workerCalls) WithGiveBacks(ctx context.Context, q *giveback.Queue, promoted func(...Promotion)) context.Context {
	return context.WithValue(ctx, giveBacksKey{}, giveBacks{q, promoted})
}

// Stale says that a grant is too old to be acted on: the process stood still, or the answer was
// long on its way, and acting late would come too close to the next grant. It was made anew in vain, or grew old after that. Then
// acquire again. The bound is a tenth of the window of each rule, at least 10 ms and at most 1 s; on
// Redis Cluster, where the keys are in several hash slots, at least 50 ms. It counts from when
// the rule's server counts the grant.
func (workerCalls) Stale(d Decision) bool { return d.stale() }

// StaleMost is how many grants in a row may be stale before a task is put off.
func (workerCalls) StaleMost() int { return staleMost }

// Later is a stale grant that was given back, with an instant in a moment at which the job asks again. The
// moment is the longer the more jobs of the policy were put off since the last InTime: 50 ms to 1 s.
func (workerCalls) Later(p *Policy, d Decision) Decision {
	return d.in(stalePause(staleMost - 1 + int(min(p.staleDeferrals.Add(1), 10))))
}

// InTime notes that a grant of the policy came in time.
func (workerCalls) InTime(p *Policy) {
	if p.staleDeferrals.Load() != 0 { // to write it with each grant would slow all down
		p.staleDeferrals.Store(0)
	}
}

// Return gives the grant of r.Token back like [Policy.Refund], and r.Job the first place in
// the line for it: a job that was let in and could not start. A job that a limit can't
// admit any more gets no place.
func (workerCalls) Return(ctx context.Context, p *Policy, r Request) ([]Promotion, error) {
	if err := checkJob(r.Job); err != nil {
		return nil, err
	}
	return p.refundOnce(ctx, r, firstPlace)
}

// WithoutAnswer decides about a call of [Policy.Redeem] whose answer its worker does not wait for any longer: by Config.OnUnavailable
// and Config.Shadow, as while Redis is away. It asks nobody. The decision has a token of its own: the caller takes the call itself
// back by the token of that. With FailClosed the error unwraps to [ErrUnavailable].
func (workerCalls) WithoutAnswer(ctx context.Context, p *Policy, r Request) (Decision, error) {
	r.Token = NewToken()
	return decideWithoutAnswer(ctx, p, limitscripts.GrantOrBook, r, &unavailableError{Op: "acquire", Reason: "the answer did not come in time"})
}

// Postpone closes the key of a rule of the policy for d from now on, and gives r.Job
// the first place in its line. It is for a job whose provider said that it comes too
// early. The grant stays spent. It returns the instant from which the key is open.
func (workerCalls) Postpone(ctx context.Context, p *Policy, rule string, r Request, d time.Duration) (until time.Time, err error) {
	if err := checkJob(r.Job); err != nil {
		return time.Time{}, err
	}
	if err := checkClosing(d); err != nil {
		return time.Time{}, err
	}
	for i, l := range p.rules {
		if l.rule == rule {
			reply, err := closeKey(ctx, p, i, r, d)
			return reply.Until, err
		}
	}
	return time.Time{}, fmt.Errorf("%w: policy %v has no rule %q", ErrInvalidConfig, p, rule)
}

// Adjusted says whether a correction of a charge was made, or may have been.
func (workerCalls) Adjusted(b *Charge) bool { return b.adjusted() }

// ValidateConfig returns everything that is wrong with a configuration of several rules,
// joined. Each fault unwraps to [ErrInvalidConfig]. [New] and [NewLocal] do the same for one.
func (workerCalls) ValidateConfig(c Config) error {
	err := c.validate()
	if c.LimitOf != nil {
		err = errors.Join(err, fmt.Errorf("%w: LimitOf is of one rule: give it to the rule of the policy, as queue.Rule.LimitOf", ErrInvalidConfig))
	}
	return err
}

// ValidateRule says whether a name can name a rule: 1 to 64 letters,
// digits, "_", "." and "-", but not "due", "places", "replan", "planned", "tick",
// "ticks", "batch", "batches", "sweep", "sent" or "fetched".
func (workerCalls) ValidateRule(name string) error { return validateRule(name) }

// FillConfig returns c with its defaults where it is zero, as [New] and [NewLocal] use it.
func (workerCalls) FillConfig(c Config) Config { return c.fill() }

// LimitOfKey is the limit by which a limiter decides now about a key, see [Config.LimitOf].
func (workerCalls) LimitOfKey(ctx context.Context, l *Limiter, key string) (Limit, error) {
	return ForWorkers.LimitOfID(ctx, l, l.met.id(l, key))
}

// LimitOfID is LimitOfKey by the id of a key, see [Limiter.ID]. Where keys are hashed, this
// process has to have met the key.
func (workerCalls) LimitOfID(ctx context.Context, l *Limiter, id string) (Limit, error) {
	in, err := l.policy.limitsInForce(ctx, byID(id))
	if err != nil {
		return Limit{}, err
	}
	return in[0].Limit, nil
}

// Meet is [Limiter.ID], and remembers the key where keys have limits of their own, see
// [Config.LimitOf]. Only keys that a process has met can be asked about by ids that are hashes.
func (workerCalls) Meet(l *Limiter, key string) (id string) { return l.met.id(l, key) }

// LimitLastKnown is the limit in force when this limiter read it last, and the one in
// code before that. It does not ask Redis.
func (workerCalls) LimitLastKnown(l *Limiter) Limit { return l.limitLastKnown() }

// BookMany books for many jobs as [Policy.Book] does for one, in their order, and
// answers in that order; each may fail by itself. All that are in Redis, which must be rdb,
// go together, up to 64 rules to a script call, on Redis Cluster to a pipeline for each node; one by
// one go those of a policy whose keys are in several hash slots of a Cluster, in shadow
// mode, and where [Config.OnUnavailable] decides without Redis.
func (workerCalls) BookMany(ctx context.Context, rdb redis.UniversalClient, requests []BookRequest) []Booking {
	return bookMany(ctx, rdb, requests)
}
