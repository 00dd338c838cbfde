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

// Reset forgets what was spent on a key; who waits keeps its place.
func (s *Store) Reset(k luascripts.LimitKeys, n luascripts.Numbers) luascripts.CancelReply {
	r := luascripts.CancelReply{Status: luascripts.Granted}
	now, no := s.on([]luascripts.RuleCall{{LimitKeys: k, Numbers: n}}, "", "", func(c *call) {
		p := &c.parts[0]
		p.ledger, p.tokens = ledger{}, tokens{}
		p.open()
		r.Promoted = c.missed(p.hints(nil, false))
	})
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	r.Now = instantOf(now)
	return r
}
