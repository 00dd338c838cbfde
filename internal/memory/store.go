package memory

import (
	"sync"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// Store keeps the state of limits' keys in this process. Its methods are those
// of luascripts, decide alike, never fail and never wait. It is made by [New],
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

// Keep makes keys live so much longer than they must. It is for tests, whose
// clock goes backwards over what a key's life allows.
func (s *Store) Keep(extra time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extra = micros(extra)
}

// Drop loses what was spent on a key, and nothing else of it. It is for tests.
func (s *Store) Drop(k luascripts.LimitKeys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key := s.keys.byName[k.Ledger()]; key != nil {
		key.ledger = ledger{}
		s.keys.put(key)
	}
}

// Len is how many keys hold anything, and some that expired a moment ago.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys.all)
}

// Peek is what a key looks like; it changes nothing. Who is late is not in the
// line.
func (s *Store) Peek(k luascripts.LimitKeys, a luascripts.PeekArgs) luascripts.PeekReply {
	r := luascripts.PeekReply{Status: luascripts.Granted}
	one := luascripts.RuleCall{LimitKeys: k, Numbers: a.Numbers, Cost: a.Cost, Closed: a.Closed}
	now, no := s.on([]luascripts.RuleCall{one}, "", "", func(c *call) {
		p := &c.parts[0]
		p.look()
		v, from := p.view, max(c.now, p.closed)
		r.Waiting, r.Free = v.last-v.first, p.free(v.first < v.last)
		r.Next, r.Closed = instantOf(p.due), instantOf(p.closed)
		if p.ledger.state != nil {
			r.Life = max(0, time.Duration(p.ledger.expires-c.now/1000)*time.Millisecond)
		}
		before := int64(0)
		for _, w := range p.line.order[v.first:min(v.last, v.first+a.Most)] {
			cost := costOf(w.member)
			at := p.slot(from, before, cost)
			r.Listed = append(r.Listed, luascripts.Waiting{At: instantOf(at), Job: jobOf(w.member), Cost: int(cost)})
			before += cost
		}
	})
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	r.Now = instantOf(now)
	return r
}

// Reset forgets what was spent on a key. Jobs that wait keep their places.
func (s *Store) Reset(k luascripts.LimitKeys, n luascripts.Numbers) luascripts.CancelReply {
	r := luascripts.CancelReply{Status: luascripts.Granted}
	now, no := s.on([]luascripts.RuleCall{{LimitKeys: k, Numbers: n}}, "", "", func(c *call) {
		p := &c.parts[0]
		p.ledger, p.tokens = ledger{}, tokens{}
		p.open()
		r.Promoted = c.missed(p.promotions(nil, false))
	})
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	r.Now = instantOf(now)
	return r
}

// swept is how many keys a call looks at for each of its own. Two are enough: a
// part adds one key at most, so the sweep is through before the keys doubled.
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
	return k.ledger.state == nil && k.tokens.len() == 0 && k.line.len() == 0 && k.line.promised.len() == 0 &&
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
func (s *keys) sweep(now int64, parts int) {
	for range min(swept*parts, len(s.all)) {
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
