package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/bounded"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/throttle/internal/errtext"
)

// limitInForce is the limit by which a rule decides now, with the version under which
// it was stored; 0 for the limit in code. A ledger knows the version that it was
// written under, and refuses a call with an older one. Otherwise a process that has
// not heard of a change, or a call that was long on its way, would grant by the old
// limit.
type limitInForce struct {
	Limit
	version int64
	closed  time.Time // until when the rule is closed on all keys; zero for not
}

// asInForce is the limit that a reading found. When a ledger knows a version that is not
// stored any more, the limit counts as that version.
func (f *limitMemory) asInForce(k *knownLimit) limitInForce {
	return limitInForce{k.limit, max(k.version, f.floor.Load()), k.closed}
}

// putInto puts the limit into a call of its rule, computed around an instant.
func (a *limitInForce) putInto(c *limitscripts.RuleCall, around time.Time) {
	c.Numbers, c.Version, c.Closed = a.numbers(around), a.version, a.closed
}

// lastLimits are the limits by which a policy decided last. The zero value is ready.
type lastLimits struct {
	known atomic.Pointer[[]limitInForce] // what is in it stays as it is
}

// of are the limits by which the rules decide now about keys. Most rules have one limit for
// all of them.
func (f *lastLimits) of(ctx context.Context, rules ruleSet, keys keySet, byKey bool) ([]limitInForce, error) {
	limits, err := f.inForce(ctx, rules)
	if err != nil || !byKey {
		return limits, err
	}
	limits = slices.Clone(limits) // others go by these
	for i, l := range rules {
		if limits[i], err = l.ofKey(ctx, limits[i], keys, i, 0); err != nil {
			return nil, err
		}
	}
	return limits, nil
}

// inForce are the limits by which the rules decide now. Most are those of the call before,
// and then in the same memory: nobody writes to it.
func (f *lastLimits) inForce(ctx context.Context, rules ruleSet) ([]limitInForce, error) {
	var known, fresh []limitInForce
	if last := f.known.Load(); last != nil {
		known = *last
	}
	for i, l := range rules {
		r, err := l.limitInForce(ctx)
		if err != nil {
			return nil, err
		}
		if fresh == nil && i < len(known) && known[i] == r {
			continue
		}
		if fresh == nil {
			fresh = append(make([]limitInForce, 0, len(rules)), known[:i]...)
		}
		fresh = append(fresh, r)
	}
	if fresh == nil {
		return known, nil
	}
	f.known.Store(new(fresh))
	return fresh, nil
}

// lastLimitInForce is the limit in force as it was read last.
func (l *Limiter) lastLimitInForce() limitInForce {
	k := l.remembered.last.Load()
	if k == nil {
		k = &knownLimit{}
	}
	r := l.remembered.asInForce(k)
	r.Limit = l.limitLastKnown()
	return r
}

// limitLastKnown is the limit in force as this limiter read it last.
func (l *Limiter) limitLastKnown() Limit {
	if k := l.remembered.last.Load(); k != nil && k.err == nil {
		return k.limit
	}
	return l.limit
}

// closedLastKnown is until when the rule is closed, as it was heard last.
func (l *Limiter) closedLastKnown() time.Time {
	if k := l.remembered.last.Load(); k != nil {
		return k.closed
	}
	return time.Time{}
}

// outdatedError says that the ledger of a rule was written under a newer limit.
type outdatedError struct {
	version int64
	rule    int // its index in the policy, from 0; in replies rules count from 1
}

func (e *outdatedError) Error() string {
	return fmt.Sprintf("throttle: the ledger was written under a limit of version %d", e.version)
}

func (e *outdatedError) Unwrap() error { return ErrUnavailable }

// catchUp reads what is stored now, because a ledger knows this version. If that
// version is not stored any more, there is nothing newer to find.
func (l *Limiter) catchUp(ctx context.Context, version int64) (limitInForce, error) {
	k := l.readLimit(ctx)
	if k.err != nil {
		return limitInForce{}, k.err
	}
	ofKey := l.cfg.LimitOf != nil && version&1 == 1 // an odd version is that of the limit of one key, see [Limiter.ofKey]
	for floor := l.remembered.floor.Load(); !ofKey && floor < version && k.version < version; floor = l.remembered.floor.Load() {
		if l.remembered.floor.CompareAndSwap(floor, version) {
			break
		}
	}
	return l.remembered.asInForce(&k), nil
}

// keySet are the keys of a call by rule: those of its request, or only their ids.
type keySet struct {
	r   *Request
	ids []string
}

func byRequest(r *Request) keySet { return keySet{r: r} }

func byID(ids ...string) keySet { return keySet{ids: ids} }

// of is the key of the rule i, if it is known here.
func (k keySet) of(l *Limiter, i int) (key string, known bool) {
	if k.r != nil {
		key = k.r.keyCost(i).Key
		l.met.id(l, key)
		return key, true
	}
	if i >= len(k.ids) {
		return "", false
	}
	if id := k.ids[i]; !strings.HasPrefix(id, "#") {
		return id, true // as [limitscripts.KeyID] leaves it
	}
	return l.met.key(k.ids[i])
}

// keysMet are the keys that this process has met, by ids that are hashes. Only limits of
// their own need them. The zero value is ready.
type keysMet struct {
	mu   sync.Mutex
	keys map[string]string
}

// keysMetMax bounds them. Without its key the limit of a key can't be found, until the process
// meets it again.
const keysMetMax = 16384

// id is [Limiter.ID], which is remembered where limits are found by keys.
func (m *keysMet) id(l *Limiter, key string) string {
	id := l.ID(key)
	if l.cfg.LimitOf == nil || id == key {
		return id
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys == nil || len(m.keys) >= keysMetMax {
		m.keys = make(map[string]string)
	}
	m.keys[id] = key
	return id
}

func (m *keysMet) key(id string) (key string, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key, known = m.keys[id]
	return key, known
}

// ofKey is the limit of the key of the rule i: its own, or in, which is that of the rule. newer
// is a version that its ledger knows, or 0.
//
// A limit of a function has an odd version, the microsecond in which it was set, and a stored
// limit has an even one, see setlimit.lua. So a ledger tells which of the two it knows.
func (l *Limiter) ofKey(ctx context.Context, in limitInForce, keys keySet, i int, newer int64) (limitInForce, error) {
	if l.cfg.LimitOf == nil {
		return in, nil
	}
	key, known := keys.of(l, i)
	if !known {
		return in, &keyLimitError{Rule: l.rule, Reason: "this process has not met the key, and Redis has only its hash"}
	}
	var since time.Time
	if newer > 0 {
		since = time.UnixMicro(newer)
	}
	own, changed, err := l.askLimitOf(ctx, key, since)
	if p, ok := errors.AsType[limitOfPanic](err); ok {
		return in, &keyLimitError{Rule: l.rule, Reason: p.Error(), Err: err}
	}
	if err != nil {
		return in, &keyLimitError{Rule: l.rule, Reason: fmt.Sprintf("Config.LimitOf returned an error of type %T", err), Err: err}
	}
	if own != (Limit{}) {
		if err = own.Validate(); err == nil {
			err = l.sameCounting(own)
		}
		if err != nil {
			return in, &keyLimitError{Rule: l.rule, Reason: "Config.LimitOf returned a limit that makes no sense: " + err.Error(), Err: err}
		}
		in.Limit = own
	}
	if !changed.IsZero() {
		in.version = max(in.version, changed.UnixMicro()|1)
	}
	return in, nil
}

// askLimitOf calls the user's function. Limits are also looked up where no handler runs: a panic there would end
// this process, and then every other that looks up the same key.
func (l *Limiter) askLimitOf(ctx context.Context, key string, newer time.Time) (limit Limit, changed time.Time, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = limitOfPanic{p}
		}
	}()
	return l.cfg.LimitOf(ctx, key, newer)
}

// limitOfPanic is the error of a Config.LimitOf that panicked. It tells no more than a type: the value may name the key.
type limitOfPanic struct{ value any }

func (p limitOfPanic) Error() string {
	return fmt.Sprintf("Config.LimitOf panicked with a %T", p.value)
}

// catchUpKey asks the function for the limit of a key anew, because a ledger knows this
// version. If a function gave it that knew more than the one here, this process must not
// decide.
func (l *Limiter) catchUpKey(ctx context.Context, keys keySet, i int, version int64) (limitInForce, error) {
	in, err := l.ofKey(ctx, l.remembered.asInForce(l.remembered.last.Load()), keys, i, version)
	if err == nil && in.version < version {
		err = &keyLimitError{Rule: l.rule, Reason: fmt.Sprintf("another process knows one that was set at %v, and Config.LimitOf here does not",
			time.UnixMicro(version).UTC())}
	}
	return in, err
}

const (
	// limitFresh is how long a limiter decides by what it has read without
	// another reading, limitTrust how long at most: while one caller reads, and
	// when the reading fails.
	limitFresh = 500 * time.Millisecond
	limitTrust = time.Second
	// limitPoll is the safety net of a watch whose message got lost, and how
	// often a blocked caller reads it.
	limitPoll = 400 * time.Millisecond
	// limitPatience is how long a reading may take on a Redis Cluster. All callers of a rule share one. At a master
	// that stands still it would hold them up until the client's time-outs are over, also when another master
	// has been elected long before.
	limitPatience = 2 * time.Second
)

// errLimitSilent is why a reading was given up.
var errLimitSilent = fmt.Errorf("the stored limit was not told within %v", limitPatience)

// knownLimit is what one reading found. What is stored becomes the limit of a decision in these steps:
//
//	limitStore reads a storedLimit -> resolve makes it a knownLimit -> remember keeps it in limitMemory, unless
//	something newer is known -> asInForce makes it a limitInForce -> putInto writes it into a call of the rule
type knownLimit struct {
	limit    Limit // the one in force
	stored   bool
	version  int64     // of the last change that is known; 0 for none
	closed   time.Time // until when the rule is closed on all keys; zero for not
	closing  int64     // version of the last change of that
	changed  int64     // version of the last change of either
	replaced []string  // the limits that it replaced, the newest first, when a policy file has it
	err      error     // the stored limit can't be read: nothing is granted
	began    time.Time // of the reading: it held then or later
	done     time.Time
}

func (k *knownLimit) age() time.Duration { return time.Since(k.began) }

// limitMemory remembers the last reading. The zero value is ready.
type limitMemory struct {
	last  atomic.Pointer[knownLimit]
	floor atomic.Int64 // the newest version that a ledger knew and that is stored no more

	always  bool // the limit is read before each decision, because that costs nothing
	bounded bool // a reading is given up after limitPatience

	mu      sync.Mutex
	reading *limitReading // under way; guarded by mu
}

// limitReading is one reading of the stored limit, for all who need it at that moment.
type limitReading struct {
	over      chan struct{}
	err       error // why it failed
	abandoned bool  // the caller who began it has gone
}

// fresh says that k is good without another reading.
func (f *limitMemory) fresh(k *knownLimit) bool {
	return k != nil && !f.always && k.age() < limitFresh
}

// learn takes in what was read or written, unless something newer is known.
func (f *limitMemory) learn(k *knownLimit) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.last.Load()
	if old != nil && (k.version < old.version || k.changed < old.changed) && k.began.Before(old.done) {
		return false // it was on its way when the newer one came
	}
	f.last.Store(k)
	return old != nil && (old.limit != k.limit || !old.closed.Equal(k.closed) || (old.err == nil) != (k.err == nil))
}

// inForce is [Limiter.limitInForce] for those who need no version.
func (l *Limiter) inForce(ctx context.Context) (Limit, error) {
	in, err := l.limitInForce(ctx)
	return in.Limit, err
}

// limitInForce is the limit that decides now. What was read within limitFresh is
// good; then one caller reads while the others go on with what they know, at
// most limitTrust old. Older, and Redis must answer: nothing is granted by a
// limit that may have been lowered.
func (l *Limiter) limitInForce(ctx context.Context) (limitInForce, error) {
	if k := l.remembered.last.Load(); l.remembered.fresh(k) {
		return l.remembered.asInForce(k), k.err
	}
	return l.readOrWait(ctx)
}

// readOrWait reads the limit, or waits for another caller who reads it. On a Cluster a caller waits for limitPatience at most.
func (l *Limiter) readOrWait(ctx context.Context) (limitInForce, error) {
	f := &l.remembered
	var patience <-chan time.Time // for several readings, each of which may be abandoned
	for {
		f.mu.Lock()
		k := f.last.Load()
		other := f.reading
		if other == nil && !f.fresh(k) {
			mine := &limitReading{over: make(chan struct{})}
			f.reading = mine
			f.mu.Unlock()
			return l.readForAll(ctx, mine)
		}
		f.mu.Unlock()
		if k != nil && k.age() < limitTrust {
			return f.asInForce(k), k.err
		}
		if other == nil {
			continue // this process stood still, and what was fresh is too old
		}
		if f.bounded && patience == nil {
			timer := time.NewTimer(limitPatience)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-other.over:
			if other.err != nil && !other.abandoned {
				return limitInForce{}, other.err
			}
		case <-patience:
			return limitInForce{}, l.fault(ctx, "limit", 0, errLimitSilent)
		case <-ctx.Done():
			return limitInForce{}, l.fault(ctx, "limit", 0, ctx.Err())
		}
	}
}

// readForAll reads the limit for all callers that wait for it.
func (l *Limiter) readForAll(ctx context.Context, mine *limitReading) (limitInForce, error) {
	f := &l.remembered
	defer func() { // also when a hook of the client panics
		f.mu.Lock()
		defer f.mu.Unlock()
		f.reading = nil
		close(mine.over)
	}()
	k := l.readLimit(ctx)
	if errors.Is(k.err, ErrUnavailable) {
		mine.err, mine.abandoned = k.err, ctx.Err() != nil
	}
	if known := f.last.Load(); known != nil && known.age() < limitTrust {
		return f.asInForce(known), known.err // its own answer, or one that is good enough without it
	}
	return f.asInForce(&k), k.err
}

// readLimit asks for the limit in force and remembers the answer.
func (l *Limiter) readLimit(ctx context.Context) knownLimit {
	began := time.Now()
	if !l.remembered.bounded {
		return l.resolve(ctx, began, l.limits.stored(ctx, l.rule))
	}
	waiting, end := context.WithTimeout(ctx, limitPatience)
	defer end()
	asking, giveUp := context.WithCancel(ctx) // without that deadline: its end would look like that of the caller's context
	defer giveUp()
	stored, inTime := bounded.Call(waiting, func() storedLimit { return l.limits.stored(asking, l.rule) })
	if !inTime {
		stored = storedLimit{err: errLimitSilent}
	}
	return l.resolve(ctx, began, stored)
}

// resolve makes the limit in force of what was stored at a moment after began.
func (l *Limiter) resolve(ctx context.Context, began time.Time, s storedLimit) knownLimit {
	k := knownLimit{limit: l.limit, version: s.version, closed: s.closed, closing: s.closing, changed: max(s.version, s.closing), began: began, done: time.Now()}
	switch {
	case s.malformed:
		k.err = &storedLimitError{Rule: l.rule, Text: errtext.Clip(s.text)}
	case s.err != nil:
		k.limit, k.err = Limit{}, l.fault(ctx, "limit", 0, s.err)
		return k // nothing was heard
	case s.text != "":
		limit, err := ParseLimit(s.text)
		if err == nil && limit.IsConcurrent() != l.limit.IsConcurrent() {
			err = ErrInvalidLimit
		}
		k.replaced = s.replaced
		if k.limit, k.stored = limit, err == nil; err != nil {
			k.err = &storedLimitError{Rule: l.rule, Text: errtext.Clip(s.text)}
		}
	}
	if k.err != nil {
		k.limit = Limit{}
	}
	l.remember(k)
	return k
}

// remember notes what is in force; those who block here read it again when it is
// something else.
func (l *Limiter) remember(k knownLimit) {
	if l.remembered.learn(&k) {
		l.waiters.wakeAll()
		l.tellLimit(&k)
	}
}

// tellLimit tells the observer that another limit is in force, or another closing.
func (l *Limiter) tellLimit(k *knownLimit) {
	if l.cfg.Observer.LimitChanged == nil {
		return
	}
	e := event.LimitChanged{Rule: l.rule, Stored: k.stored, Closed: k.closed}
	if k.err == nil {
		e.Limit = k.limit.String()
	}
	l.cfg.Observer.LimitChanged(context.Background(), e)
}

// setLimit stores a limit that is good, and says whether it did.
func (l *Limiter) setLimit(ctx context.Context, limit Limit, c limitChange) (bool, error) {
	if err := limit.Validate(); err != nil {
		return false, err
	}
	if err := l.sameCounting(limit); err != nil {
		return false, err
	}
	c.text = limit.String()
	return l.change(ctx, c, knownLimit{limit: limit, stored: true, replaced: c.replaced})
}

// sameCounting refuses a limit that counts otherwise than the one in code.
func (l *Limiter) sameCounting(limit Limit) error {
	if limit.IsConcurrent() == l.limit.IsConcurrent() {
		return nil
	}
	return &LimitError{Field: "kind", Value: limit.Kind(), Want: "one that counts like " + l.limit.Kind() + ", the limit in code: what runs at " +
		"once and what runs per window are kept apart"}
}

// change makes a change, after which `then` is in force.
func (l *Limiter) change(ctx context.Context, c limitChange, then knownLimit) (bool, error) {
	done, version, err := l.limits.change(ctx, l.rule, c)
	if err != nil {
		return false, l.fault(ctx, "setlimit", 0, err)
	}
	if done {
		if k := l.remembered.last.Load(); k != nil {
			then.closed, then.closing, then.changed, then.began = k.closed, k.closing, k.changed, k.began
		}
		then.version, then.changed, then.done = version, max(version, then.changed), time.Now()
		l.remember(then)
		l.readLimit(ctx) // what is known of the closing is as old as it was
	}
	return done, nil
}

// replacedMax bounds how many earlier limits of a policy file are remembered.
const replacedMax = 16

// followFile brings the limit that a policy file has in force in all processes. See
// FollowFile of [ForWorkers].
func (l *Limiter) followFile(ctx context.Context, was, now Limit) (knownLimit, error) {
	for tries := 0; ; tries++ {
		k := l.readLimit(ctx)
		own := k.stored && k.replaced == nil
		older := k.limit != was && slices.Contains(k.replaced, now.String())
		if k.err != nil || k.limit == now || own || older {
			return k, k.err
		}
		if tries == roundTripsMax {
			return k, fmt.Errorf("%w: the stored limit of rule %q changes all the time", ErrUnavailable, l.rule)
		}
		before := slices.DeleteFunc(append([]string{k.limit.String()}, k.replaced...), func(text string) bool { return text == now.String() })
		if _, err := l.setLimit(ctx, now, limitChange{replaced: before[:min(len(before), replacedMax)], version: k.version}); err != nil {
			return k, err
		}
	}
}

// announceChange makes all limiters of the rule, in all processes, read its limit anew, and changes nothing.
func (l *Limiter) announceChange(ctx context.Context) error {
	_, err := l.closeRule(ctx, -time.Microsecond) // a closing that is over already
	return err
}

func (l *Limiter) closeRule(ctx context.Context, d time.Duration) (time.Time, error) {
	until, version, err := l.limits.closeRule(ctx, l.rule, d)
	if err != nil {
		return time.Time{}, l.fault(ctx, "closerule", 0, err)
	}
	if k := l.remembered.last.Load(); k != nil && k.err == nil {
		then := *k
		then.closed, then.closing, then.changed, then.done = until, version, max(version, k.changed), time.Now()
		l.remember(then)
	}
	l.readLimit(ctx) // what is known of the limit is as old as it was
	return until, nil
}
