package memory

import (
	"sync"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// Store keeps the state of limits' keys in this process. Its methods are those
// of limitscripts, decide alike, never fail and never wait. It is made by [New],
// and safe for concurrent use: calls go one after another.
type Store struct {
	now func() time.Time

	mu    sync.Mutex
	keys  keys
	extra int64
}

// New makes an empty store that reads the time from now. Without one it starts
// from the wall clock and goes on with the monotonic one, so that nobody who
// sets the clock makes it credit or block anything.
func New(now func() time.Time) *Store {
	if now == nil {
		start := time.Now()
		now = func() time.Time { return start.Add(time.Since(start)) }
	}
	return &Store{now: now}
}

// Len is how many keys hold anything, and some that expired a moment ago.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys.all)
}

// Peek is what a key looks like; it changes nothing. Who is late is not in the
// line.
func (s *Store) Peek(k limitscripts.LimitKeys, a limitscripts.PeekArgs) limitscripts.PeekReply {
	r := limitscripts.PeekReply{Status: limitscripts.Granted}
	one := limitscripts.RuleCall{LimitKeys: k, Numbers: a.Numbers, Cost: a.Cost, Closed: a.Closed}
	now, no := s.on([]limitscripts.RuleCall{one}, "", "", func(c *call) {
		rule := &c.rules[0]
		rule.findAndMeasure()
		v, from := rule.view, max(c.now, rule.closed)
		r.Waiting, r.Free = v.last-v.first, rule.free(v.first < v.last)
		r.Next, r.Closed, r.Own = instantOf(rule.byTurns), instantOf(rule.closed), instantOf(rule.line.closedUntil(c.now))
		if rule.ledger.state != nil {
			r.Life = max(0, time.Duration(rule.ledger.expires-c.now/1000)*time.Millisecond)
		}
		goes := rule.jobsOneByOne(from)
		for _, w := range rule.line.order[v.first:min(v.last, v.first+a.Most)] {
			cost := costOf(w.member)
			at := goes(cost)
			r.Listed = append(r.Listed, limitscripts.Waiting{At: instantOf(at), Job: jobOf(w.member), Cost: int(cost)})
		}
	})
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	r.Now = instantOf(now)
	return r
}

// Reset forgets what was spent on a key. Jobs that wait keep their places.
func (s *Store) Reset(k limitscripts.LimitKeys, n limitscripts.Numbers) limitscripts.CancelReply {
	r := limitscripts.CancelReply{Status: limitscripts.Granted}
	now, no := s.on([]limitscripts.RuleCall{{LimitKeys: k, Numbers: n}}, "", "", func(c *call) {
		rule := &c.rules[0]
		rule.ledger, rule.tokens = ledger{}, tokens{}
		rule.open()
		r.Promoted = c.tellMissed(rule.promote(nil, false))
	})
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	r.Now = instantOf(now)
	return r
}

// swept is how many keys a call looks at for each of its own. Two are enough: a
// rule of a call adds one key at most, so the sweep is through before the keys doubled.
const swept = 2

// key is the state of a limit's key.
type key struct {
	name   string
	index  int // in keys.all, while it is kept
	ledger ledger
	tokens tokens
	line   line

	policies map[string]*set // whose jobs keep turns while a wider rule holds them up
	opening  set             // permits of those who wait for a gate, by the instant at which it opens
}

// expire drops what is forgotten by now.
func (k *key) expire(now int64) {
	ms := now / 1000
	if ms > k.ledger.expires {
		k.ledger = ledger{}
	}
	if ms > k.tokens.expires {
		k.tokens = tokens{}
	}
	k.line.expire(ms)
	k.opening.expire(ms)
	for _, turns := range k.policies {
		turns.expire(ms)
	}
	k.prune()
}

// prune forgets the policies that have no turns.
func (k *key) prune() {
	for policy, turns := range k.policies {
		if turns.len() == 0 {
			delete(k.policies, policy)
		}
	}
}

func (k *key) empty() bool {
	return k.ledger.state == nil && k.tokens.len() == 0 && k.line.empty() &&
		len(k.policies) == 0 && k.opening.len() == 0
}

// turns are those of a policy; prune forgets them when a call adds none.
func (k *key) turns(policy string) *set {
	turns := k.policies[policy]
	if turns == nil {
		turns = &set{}
		if k.policies == nil {
			k.policies = map[string]*set{}
		}
		k.policies[policy] = turns
	}
	return turns
}

// keys are those that hold anything.
type keys struct {
	byName map[string]*key
	all    []*key
	hand   int // where the sweep is
}

// get is a key, which is empty and not kept when nobody knows it.
func (s *keys) get(name string, now int64) *key {
	k := s.byName[name]
	if k == nil {
		return &key{name: name, index: -1}
	}
	k.expire(now)
	return k
}

// put keeps a key, or forgets it when it is empty.
func (s *keys) put(k *key) {
	k.prune()
	switch {
	case k.index < 0 && !k.empty():
		if s.byName == nil {
			s.byName = map[string]*key{}
		}
		s.byName[k.name] = k
		k.index = len(s.all)
		s.all = append(s.all, k)
	case k.index >= 0 && k.empty():
		delete(s.byName, k.name)
		last := s.all[len(s.all)-1]
		s.all[k.index], last.index = last, k.index
		s.all[len(s.all)-1] = nil
		s.all = s.all[:len(s.all)-1]
		k.index = -1
		s.shrink()
	}
}

// shrink returns memory once most of a large number of keys is gone: a map
// never does by itself.
func (s *keys) shrink() {
	if cap(s.all) < 1024 || len(s.all) > cap(s.all)/4 {
		return
	}
	s.all = append(make([]*key, 0, cap(s.all)/2), s.all...)
	s.byName = make(map[string]*key, len(s.all))
	for _, k := range s.all {
		s.byName[k.name] = k
	}
}

// sweep looks at the next few keys.
func (s *keys) sweep(now int64, rules int) {
	for range min(swept*rules, len(s.all)) {
		if s.hand >= len(s.all) {
			s.hand = 0
		}
		k := s.all[s.hand]
		k.expire(now)
		if s.put(k); k.index >= 0 {
			s.hand++
		}
	}
}

// Acquire grants permits, or books a place in a line, or refuses. Either all
// rules are spent on, or none is.
func (s *Store) Acquire(a limitscripts.AcquireArgs) limitscripts.AcquireReply {
	var r limitscripts.AcquireReply
	now, no := s.on(a.Rules, a.Policy, a.Job, func(c *call) {
		g := gateOf(a.Gate)
		if !g.covers(c.now) {
			r.Status = limitscripts.NotCovered
			return
		}
		switch held, known := c.rules[0].heldAt(a.Token); {
		case a.Mode == limitscripts.Anew && known && held >= 0: // 0: the limit was one of leases then
			r = c.grantAnew(a, g)
		case known:
			r = c.repeated(a.Token, held)
		case a.Mode == limitscripts.Anew:
			r.Status = limitscripts.Withdrawn
		default:
			r = c.acquire(a, g)
		}
	})
	if no.status != 0 {
		r.Status, r.Rule, r.Version = no.status, no.rule, no.version
	}
	r.Worth = append(r.Worth, make([]int64, len(a.Rules)-len(r.Worth))...)
	r.Left = append(r.Left, make([]int, len(a.Rules)-len(r.Left))...)
	r.Now = instantOf(now)
	return r
}

// Cancel gives a grant back, or leaves the lines, or both.
func (s *Store) Cancel(a limitscripts.CancelArgs) limitscripts.CancelReply {
	var r limitscripts.CancelReply
	now, no := s.on(a.Rules, a.Policy, a.Job, func(c *call) {
		if c.cancel(a) {
			r.Status = limitscripts.Granted
		}
		r.Promoted = c.tellMissed(c.promote(func(*ruleCall) bool { return true }))
	})
	if no.status != 0 {
		r.Status, r.Rule, r.Version = no.status, no.rule, no.version
	}
	r.Now = instantOf(now)
	return r
}

// Adjust corrects what a grant was charged, by rule: upwards, or downwards when the cost is
// below 0. The same correction is made once, by its token.
func (s *Store) Adjust(a limitscripts.AdjustArgs) limitscripts.CancelReply {
	var r limitscripts.CancelReply
	now, no := s.on(a.Rules, a.Policy, "", func(c *call) {
		for i := range c.rules { // each remembers it as long as what it corrects counts there
			if _, done := c.rules[i].heldAt(a.Charge); done && c.rules[i].cost != 0 {
				return
			}
		}
		r.Status = limitscripts.Granted
		first := int64(0)
		for i := range c.rules {
			rule := &c.rules[i]
			held := rule.granted(a.Token, first)
			if first == 0 {
				first = held
			}
			var spent int64
			spent, r.Promoted = rule.adjust(a.Token, a.Charge, held, r.Promoted)
			r.Spent = append(r.Spent, int(spent))
		}
	})
	if no.status != 0 {
		r.Status, r.Rule, r.Version = no.status, no.rule, no.version
	}
	r.Now = instantOf(now)
	return r
}

// Close lets nobody go on a key for a time, or opens it.
func (s *Store) Close(a limitscripts.CloseArgs) limitscripts.CloseReply {
	var r limitscripts.CloseReply
	now, no := s.on(a.Rules, a.Policy, a.Job, func(c *call) {
		r.Status = limitscripts.Granted
		shut := &c.rules[a.Rule-1]
		if a.For > 0 {
			r.Until = instantOf(c.close(shut, micros(a.For)))
			return
		}
		shut.line.promised.drop(closed)
		shut.line.promised.drop(closedSince)
		shut.open()
		r.Promoted = c.tellMissed(shut.promote(nil, true))
	})
	if no.status != 0 {
		r.Status, r.Rule, r.Version = no.status, no.rule, no.version
	}
	r.Now = instantOf(now)
	return r
}

// Release ends a lease before its time.
func (s *Store) Release(p limitscripts.RuleCall, token uint64) limitscripts.ReleaseReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().UnixMicro()
	r := limitscripts.ReleaseReply{Status: limitscripts.Granted, Now: instantOf(now)}
	k := s.keys.get(p.Ledger(), now)
	if end, known := k.tokens.score(token); known && end >= 0 { // whatever became of the limit
		k.tokens.drop(token)
		r.Released = end > now
	}
	p.Kind = limitscripts.Leases
	no := s.runLocked(now, []limitscripts.RuleCall{p}, "", "", func(c *call) { r.Promoted = c.tellMissed(c.rules[0].promote(nil, false)) })
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	return r
}

// Renew lets a lease end so much later as it was given for, counted from now.
func (s *Store) Renew(p limitscripts.RuleCall, token uint64) limitscripts.RenewReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().UnixMicro()
	k := s.keys.get(p.Ledger(), now)
	end, known := k.tokens.score(token)
	if !known || end <= now || k.promisedAway(end, now) {
		return limitscripts.RenewReply{Now: instantOf(now)}
	}
	w := micros(p.Window)
	k.tokens.add(token, max(end, now+w)) // a clock that went backwards takes nothing from its holder
	k.tokens.live(now, w+s.extra)
	if k.ledger.state != nil {
		k.ledger.expires = max(k.ledger.expires, expiry(now, w+s.extra))
	}
	return limitscripts.RenewReply{Held: true, Now: instantOf(now)}
}

// Refresh is the current instant of a booking, which becomes its last promise.
func (s *Store) Refresh(a limitscripts.RefreshArgs) limitscripts.RefreshReply {
	var r limitscripts.RefreshReply
	now, no := s.on(a.Rules, a.Policy, a.Job, func(c *call) {
		c.findAndMeasure()
		if at := c.standsAt(); at != nil {
			r = c.refresh(at)
		}
	})
	if no.status != 0 {
		r.Status, r.Rule, r.Version = no.status, no.rule, no.version
	}
	r.Now = instantOf(now)
	return r
}
