package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/throttle/gate"
)

// origin is where a grant was made, and so where it can be given back.
type origin uint8

const (
	fromStore    origin = iota // or not known
	fromFallback               // counted in this process while Redis was unavailable
	fromNowhere                // counted nowhere
)

// acquisition is one request on its way to its decision.
type acquisition struct {
	p    *Policy
	mode limitscripts.Mode
	r    Request
	d    Decision

	limits []limitInForce // by which a store is asked now
}

// decide answers a request: it checks the request, asks Redis or the fallback by the
// limits in force, and counts the answer. A grant that the request had before is forgotten.
func decide(ctx context.Context, p *Policy, mode limitscripts.Mode, r Request) (Decision, error) {
	r.grant, r.made = grant{}, fromStore
	if r.Token == 0 {
		r.Token = NewToken()
	}
	a := acquisitions.Get().(*acquisition)
	*a = acquisition{p: p, mode: mode, r: r}
	err := a.r.check(p.rules)
	if err == nil {
		switch {
		case p.cfg.Shadow:
			err = a.inShadow(ctx)
		case p.fallback.mode == FailClosed:
			err = a.inStore(ctx)
		default:
			err = p.fallback.decide(ctx, a)
		}
	}
	a.count(ctx, err)
	d := a.d
	*a = acquisition{} // it keeps no keys
	acquisitions.Put(a)
	return d, err
}

// acquisitions keeps those that are decided, to be used again: they are more than half of the memory in the
// benchmark's row "client's memory for a call". One whose call panicked is not kept.
var acquisitions = sync.Pool{New: func() any { return &acquisition{} }}

// begin begins a decision anew. Who may come earlier for a hash slot that was asked before another one failed still may.
func (a *acquisition) begin() {
	a.d = Decision{Request: a.r, Rule: a.p.rules[0].rule, Promoted: a.d.Promoted}
}

// inStore decides by the limits in force where the policy counts.
func (a *acquisition) inStore(ctx context.Context) error {
	a.begin()
	if a.p.owed.has(a.r.Token) {
		return a.withdrawn()
	}
	t, err := newStoreCallAssuming(ctx, a.p, byRequest(&a.r))
	if err == nil {
		if t.assumed != nil { // also when a hook of the client panics
			defer func() { t.assumed.end(ctx, time.Time{}, cmp.Or(err, errOtherLimit)) }()
		}
		if err = a.ask(ctx, &t); err == nil {
			a.makeAnew(ctx, &t)
		}
	}
	if _, sharded := a.p.store.store.(clusterStore); sharded && err != nil && (t.outdated > 0 || ForWorkers.Answered(err)) {
		lost := a.r // a hash slot that was asked before may have granted, and this token is not sent again
		lost.Job = ""
		a.p.giveBack(ctx, lost, noPlace)
	}
	return err
}

func (a *acquisition) withdrawn() error { return fmt.Errorf("%w: rule %q", ErrWithdrawn, a.d.Rule) }

// ask asks a store until it decides, and reads its reply. It asks again when a limit that was sent is not in force any more, when
// another limit is stored than the one that was assumed, and when the store's clock is in none of the windows that were sent.
func (a *acquisition) ask(ctx context.Context, t *storeCall) error {
	c := calls.Get().(*limitscripts.Call)
	a.fill(c)
	for again := true; again; {
		t.began = time.Now()
		around := t.store.shows(t.began)
		if len(a.r.Gates) > 0 {
			c.Gate = gateAround(a.r.Gates, around)
		}
		if c.Known = nil; t.assumed != nil {
			c.Known = t.assumed.toCheck()
		}
		if rule, err := a.p.rules.setFittingLimits(c.Rules, t.limits, around); err != nil {
			if t.assumed == nil {
				a.d.Rule = rule
			} else if err = t.readLimitsAgain(ctx, a.p, 0); err == nil { // the limit may be a larger one by now
				continue
			}
			freeCall(c)
			return err
		}
		var said answer
		a.limits = t.limits
		err := t.store.acquire(ctx, c, a)
		if err == nil { // after an error others may work on the call still
			said = answer{c.Status, c.Rule, c.Version, c.Now}
		}
		if t.assumed != nil && (said.status == limitscripts.Outdated || err != nil && rediserr.Of(err).Answered()) {
			if err := t.readLimitsAgain(ctx, a.p, said.rule); err != nil {
				return err
			}
			continue
		}
		if again, err = t.again(ctx, "acquire", said, err); err != nil {
			return err
		}
	}
	if t.assumed != nil {
		t.assumed.end(ctx, t.began, nil) // the limits are in force, whatever the decision is
		t.assumed = nil
	}
	reply := c.AcquireReply
	t.localTimes(&reply, slack(c.Rules))
	if t.store.stands {
		reply.Local.Until = time.Time{}
	}
	freeCall(c)
	return a.read(&reply, t.limits, t.roundTripTimes)
}

// makeAnew lets a grant that is too old to be acted on count from now on. Such a call asks all hash slots of a Cluster at once, so its answer
// is younger than that of a call which asks them one after the other. If that fails the grant stays as it is, and as old, and the caller gives
// it back. A grant of an earlier call with this token stays as it is, too: somebody may act on it already.
func (a *acquisition) makeAnew(ctx context.Context, t *storeCall) {
	if !a.d.Granted || a.d.repeated || !a.d.stale() || ctx.Err() != nil {
		return
	}
	c := &limitscripts.Call{}
	a.fill(c)
	c.Mode, c.Inline, c.MaxWait, c.WantLeft, c.Templates = limitscripts.Anew, 0, -1, false, nil
	around := t.begin()
	if len(a.r.Gates) > 0 {
		c.Gate = gateAround(a.r.Gates, around)
	}
	setLimits(c.Rules, a.limits, around)
	for i, worth := range a.d.grant.worth {
		c.Rules[i].Worth = worth
	}
	if t.store.acquire(ctx, c, a) != nil { // others may work on the call still, and it may have been done
		a.d.grant.worth = nil
		return
	}
	t.ended = time.Now()
	t.observe(t.store, c.Now)
	if c.Status != limitscripts.Granted {
		a.d.grant.takeOver(c.Each, c.Worth)
		return
	}
	reply, before := c.AcquireReply, a.d
	t.localTimes(&reply, slack(c.Rules))
	_ = a.read(&reply, a.limits, t.roundTripTimes) // a grant is no error
	a.d.Rule, a.d.From, a.d.Promised, a.d.Left = before.Rule, before.From, before.Promised, before.Left
	a.d.startEarliest = t.began // of all hash slots
}

// undo gives back what one hash slot of a Cluster granted, while the call goes on. If that fails, it is repeated in the background, unless
// the whole call may be. The first try states no instants: with them Redis would remember the token for as long as a grant counts, and
// jobs that wait for a wide rule are undone all the time. After it has perhaps run, none may be stated either: by them the permits would
// come back a second time, once Redis has forgotten the token. The token is known for a minute.
func (a *acquisition) undo(ctx context.Context, g hashSlotGrant) {
	p, r := a.p, a.r
	r.Token, r.Job, r.grant = g.token, g.job, grant{worth: g.worth}
	f := refund{p: p, ids: p.rules.ids(r), r: r, at: g.at, away: g.away, park: g.park, once: true}
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	back, err := f.in(soon, storeCall{rules: p.rules, store: p.store, keys: byRequest(&a.r), limits: a.limits})
	a.d.Promoted = append(a.d.Promoted, back.promoted...)
	if err == nil || g.token == 0 || g.again {
		return
	}
	if on, ok := p.store.store.(clusterStore); !back.mayHaveRun && ok && on.coalescer.cluster != nil { // another client may repeat calls all the same
		f.r.grant = grant{limits: a.limits, worth: slices.Clone(g.worth), by: p, key: r.Key, each: slices.Clone(g.each)}
	} else {
		f.r.grant.worth = slices.Clone(g.worth)
	}
	p.giveBackLater(ctx, f, a.limits[g.at.from:g.at.to])
}

// calls keeps calls that were answered, to be used again. One that failed may be under way still.
var calls = sync.Pool{New: func() any { return &limitscripts.Call{} }}

// freeCall lets a call be used for another, with the memory of its rules. It keeps no keys.
func freeCall(c *limitscripts.Call) {
	rules := c.Rules
	clear(rules)
	*c = limitscripts.Call{}
	c.Rules = rules[:0]
	calls.Put(c)
}

// fill prepares c to ask for the request. It uses the memory of c.Rules again. Numbers and gates are put in later,
// when the store's clock is known.
func (a *acquisition) fill(c *limitscripts.Call) {
	p, r := a.p, &a.r
	longest, inline := time.Duration(-1), p.cfg.InlineWait // -1: any wait; in a request that is 0
	if r.MaxWait != 0 {
		longest = max(0, r.MaxWait)
	}
	if r.notAhead {
		inline = 0
	}
	ruleCalls := c.Rules[:0]
	for i, l := range p.rules {
		of := r.keyCost(i)
		ruleCalls = append(ruleCalls, limitscripts.RuleCall{LimitKeys: l.names.Of(l.ID(of.Key)), Cost: of.Cost})
	}
	p.oneKey.mark(ruleCalls)
	c.AcquireArgs = limitscripts.AcquireArgs{
		Rules: ruleCalls, Policy: p.name, Token: uint64(r.Token), Job: r.Job,
		Mode: a.mode, Inline: inline, MaxWait: longest, WantLeft: r.wantLeft, HoldAfterFailover: p.cfg.HoldAfterFailover,
		Durable: luascripts.Durability{Replicas: p.cfg.Replicas, Within: p.cfg.ReplicasWithin}, Templates: &p.templates,
	}
}

// read makes a store's reply, which is no fault, the decision.
func (a *acquisition) read(reply *limitscripts.AcquireReply, limits []limitInForce, when roundTripTimes) error {
	rules, r, d := a.p.rules, &a.r, &a.d
	d.Rule = rules.decidedBy(reply, r.Gates)
	d.Granted, d.Refused = reply.Status == limitscripts.Granted, reply.Status == limitscripts.Refused
	d.Gated = reply.Status == limitscripts.Booked && reply.Rule == 0
	d.At, d.From, d.Now, d.Promised, d.Fence = reply.At, reply.From, reply.Now, reply.Promised, reply.Fence
	d.grant.limits = limits
	if len(reply.Promoted) > 0 { // few calls promote a job: the others need no ids
		d.Promoted = append(d.Promoted, rules.promotions(reply.Promoted, rules.ids(*r), reply.Now)...)
	}
	d.start, d.until, d.repeated, d.startEarliest = reply.Local.Start, reply.Local.Until, reply.Local.Repeated, when.began.Add(reply.At.Sub(reply.Now))
	if r.wantLeft {
		d.Left = reply.Left
	}
	switch reply.Status {
	case limitscripts.Granted:
		d.grant.fromReply(a.p, r.Key, reply)
	case limitscripts.TooLate:
		at := openedAt(r.Gates, d.At) // the lease of a slot may end when a gate is closed
		return &TooLateError{Rule: d.Rule, At: at, Wait: at.Sub(d.Now), MaxWait: r.MaxWait}
	case limitscripts.Withdrawn:
		return a.withdrawn()
	}
	return nil
}

// count counts the decision and tells the observer.
func (a *acquisition) count(ctx context.Context, err error) {
	p := a.p
	if !p.cfg.Shadow || !a.mode.NeverGrants() { // in shadow mode nobody gets a place
		p.counters.add(a.mode, &a.d, err)
	}
	if p.decided != nil {
		p.decided(a.d, err)
	}
	a.tell(ctx, err)
}

var errOtherLimit = errors.New("another limit is in force than the one known here")

// assumedLimits are the limits that a call assumes to be in force, because they were read too long ago. Redis
// compares them with what is stored, and decides only when both are the same. So a call that comes rarely is one
// round trip, and it reads the limits as well.
type assumedLimits struct {
	rules    ruleSet
	known    []*knownLimit   // by rule
	readings []*limitReading // by rule; nil where none is due, or another caller reads: these are compared, too
}

// newStoreCallAssuming is [newStoreCall], but the limits are not read first when that is due: the call compares those
// known here with the stored ones, where one server has all keys.
func newStoreCallAssuming(ctx context.Context, p *Policy, keys keySet) (storeCall, error) {
	if s, ok := p.store.store.(redisStore); ok && !p.keyLimits && !s.coalescer.scattered.Load() {
		assumed, err := p.rules.assumeLimits(ctx)
		if err != nil {
			return storeCall{}, err
		}
		if assumed != nil {
			return storeCall{rules: p.rules, store: p.store, keys: keys, limits: assumed.limits(), assumed: assumed}, nil
		}
	}
	return newStoreCall(ctx, p, keys)
}

// readLimitsAgain follows a call that assumed a wrong limit. The rule, counted from 1, says whose limit that was: it is
// read, and the next call assumes the limits again. After roundTripsMax such calls all limits are read first. So
// they are when rule is 0: then Redis answered an error, as when the limits are on another server, and to read them
// may say better what is wrong. The caller sends its call again.
func (t *storeCall) readLimitsAgain(ctx context.Context, p *Policy, rule int) (err error) {
	t.assumed.end(ctx, time.Time{}, errOtherLimit)
	t.assumed = nil
	if rule >= 1 && rule <= len(t.rules) {
		t.rules[rule-1].readLimit(ctx)
		if t.changed++; t.changed < roundTripsMax { // what is known of the others may still hold
			if t.assumed, err = t.rules.assumeLimits(ctx); err != nil {
				return err
			}
		}
	}
	if t.assumed != nil {
		t.limits = t.assumed.limits()
		return nil
	}
	t.limits, err = p.limitsInForce(ctx, t.keys)
	return err
}

// assumeLimits begins a reading of the limits, nil when none is due. While another caller reads them, and what is
// known is too old to go by, it waits for that caller: so calls that come at once are one batch afterwards.
func (rs ruleSet) assumeLimits(ctx context.Context) (*assumedLimits, error) {
	due, other := rs.dueReadings()
	for ; other != nil; due, other = rs.dueReadings() {
		select {
		case <-other.over:
			if other.err != nil && !other.abandoned {
				return nil, other.err
			}
		case <-ctx.Done():
			return nil, rs[0].fault(ctx, "limit", 0, ctx.Err())
		}
	}
	if !due {
		return nil, nil
	}
	a := &assumedLimits{rs, make([]*knownLimit, len(rs)), make([]*limitReading, len(rs))}
	for i, l := range rs {
		f := &l.remembered
		f.mu.Lock()
		a.known[i] = f.last.Load()
		if a.known[i] == nil {
			a.known[i] = &knownLimit{limit: l.limit}
		}
		if f.reading == nil && !f.fresh(a.known[i]) {
			f.reading = &limitReading{over: make(chan struct{})}
			a.readings[i] = f.reading
		}
		f.mu.Unlock()
	}
	return a, nil
}

// dueReadings says whether a reading is due that nobody has begun, or otherwise for whose reading to wait
// first. Neither when the stored limit of a rule could not be read last time: then it is read before the call.
func (rs ruleSet) dueReadings() (due bool, other *limitReading) {
	for _, l := range rs {
		f := &l.remembered
		k := f.last.Load()
		if k != nil && k.err != nil {
			return false, nil // it has to be read again
		}
		if f.fresh(k) {
			continue
		}
		f.mu.Lock()
		underWay := f.reading
		f.mu.Unlock()
		switch {
		case underWay == nil:
			due = true
		case k == nil || k.age() >= limitTrust:
			return false, underWay
		}
	}
	return due, nil
}

func (a *assumedLimits) limits() []limitInForce {
	limits := make([]limitInForce, len(a.rules))
	for i, l := range a.rules {
		limits[i] = l.remembered.asInForce(a.known[i])
	}
	return limits
}

// toCheck is what Redis is to compare.
func (a *assumedLimits) toCheck() []limitscripts.KnownLimit {
	asked := make([]limitscripts.KnownLimit, len(a.rules))
	for i, l := range a.rules {
		asked[i] = limitscripts.KnownLimit{Prefix: l.cfg.Prefix, Rule: l.rule, Version: a.known[i].version, Closing: a.known[i].closing}
	}
	return asked
}

// end ends the reading. Every way out of the decision must call it: others wait for it.
// Without an error the known limits were in force after began. They count, unless another call has
// learned others meanwhile. When Redis did not answer, all callers that wait for it fail at
// once, and do not try one after the other.
func (a *assumedLimits) end(ctx context.Context, began time.Time, err error) {
	if a == nil {
		return
	}
	for i, mine := range a.readings {
		if mine == nil {
			continue
		}
		f := &a.rules[i].remembered
		if last := f.last.Load(); err == nil && (last == nil || last == a.known[i]) {
			k := *a.known[i]
			k.began, k.done = began, time.Now()
			f.learn(&k)
		}
		f.mu.Lock()
		if u, ok := errors.AsType[*unavailableError](err); ok && !u.answered {
			mine.err, mine.abandoned = err, ctx.Err() != nil
		}
		f.reading = nil
		close(mine.over)
		f.mu.Unlock()
	}
}

// fromReply takes in the reply that is the grant.
func (g *grant) fromReply(p *Policy, key string, r *limitscripts.AcquireReply) {
	g.worth, g.by, g.key, g.at, g.each = r.Worth, p, key, r.At, r.Each
}

// decidedBy names the rule that decided, or the gate.
func (rs ruleSet) decidedBy(reply *limitscripts.AcquireReply, gates []gate.InZone) string {
	switch {
	case reply.Rule > 0 && reply.Rule <= len(rs):
		return rs[reply.Rule-1].rule
	case reply.Status == limitscripts.Granted || len(gates) == 0:
		return rs[0].rule
	}
	return closedGate(gates, reply.Now, reply.At)
}

// promotions translates a store's reply about keys, which are given as they stand in
// Redis, by rule. It wakes those of the jobs that wait in this process.
func (rs ruleSet) promotions(told []limitscripts.Promotion, ids []string, now time.Time) []Promotion {
	var out []Promotion
	for _, t := range told {
		if t.Rule < 1 || t.Rule > len(rs) {
			continue
		}
		l := rs[t.Rule-1]
		leased := l.limit.IsConcurrent()
		offered := leased && !t.At.After(now)
		if offered || !leased { // a blocked caller asks often enough to see a lease end
			l.waiters.wake(t.Job)
		}
		booking := BookingRef{Policy: l.policy, IDs: []string{ids[t.Rule-1]}, Costs: []int{t.Cost}, Job: t.Job}
		out = append(out, Promotion{Job: t.Job, At: t.At, Wait: max(0, t.At.Sub(now)), Offered: offered, Booking: booking})
	}
	return out
}

// owedTokens are the tokens whose grants are given back in the background. A call that is repeated with one of them would be granted
// what is about to be taken away, so it is refused. It is safe for concurrent use; the zero value is ready.
type owedTokens struct {
	some atomic.Int64
	mu   sync.Mutex
	owed map[Token]owedToken
}

type owedToken struct {
	refunds int // that are under way: each hash slot of a Cluster has its own
	until   time.Time
}

func (o *owedTokens) add(token Token, d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owed == nil {
		o.owed = make(map[Token]owedToken)
	}
	now := time.Now()
	maps.DeleteFunc(o.owed, func(_ Token, t owedToken) bool { return now.After(t.until) }) // a queue drops what counts no more, and tells nobody
	o.owed[token] = owedToken{o.owed[token].refunds + 1, now.Add(d)}
	o.some.Store(int64(len(o.owed)))
}

func (o *owedTokens) remove(token Token) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.owed[token]; t.refunds > 1 {
		o.owed[token] = owedToken{t.refunds - 1, t.until}
	} else {
		delete(o.owed, token)
	}
	o.some.Store(int64(len(o.owed)))
}

func (o *owedTokens) has(token Token) bool {
	if o.some.Load() == 0 {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	t, ok := o.owed[token]
	return ok && time.Now().Before(t.until)
}
