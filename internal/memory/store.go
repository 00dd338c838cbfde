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
func (s *Store) Drop(k luascripts.Limit) {
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

// call is one call on a key: what each of them reads first.
type call struct {
	*numbers
	*key
	now   int64
	state state // as the numbers see it
	extra int64
}

// refusal is why there is nothing to decide with; its status is 0 when there is.
type refusal struct {
	status  luascripts.Status
	version int64 // of the ledger's limit, when Outdated
}

// on runs one call on a key, unless a calendar's bounds do not cover now, or the
// ledger was written under a newer limit.
func (s *Store) on(k luascripts.Limit, n luascripts.Numbers, run func(*call)) (now int64, no refusal) {
	l := numbersOf(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.now().UnixMicro()
	if !l.covers(now) {
		return now, refusal{status: luascripts.NotCovered}
	}
	key := s.keys.get(k.Ledger(), now)
	if key.ledger.state != nil && key.ledger.version > l.version {
		return now, refusal{luascripts.Outdated, key.ledger.version}
	}
	run(&call{numbers: l, key: key, now: now, state: key.ledger.under(l), extra: s.extra})
	s.keys.put(key)
	s.keys.sweep(now)
	return now, refusal{}
}

func (c *call) slot(now, before int64, cost int64) int64 {
	return slot(c.numbers, c.state, now, before, cost)
}

// holds is the instant of a token's grant, negative when it was withdrawn.
func (c *call) holds(token uint64) (at int64, known bool) {
	if token != 0 && c.ledger.token == token {
		return c.state.newest(), true
	}
	return c.tokens.score(token)
}

func (c *call) next() luascripts.Turn { return c.line.next(c.numbers, c.state, c.now) }

// Cancel gives a grant back, or leaves the line, or both.
func (s *Store) Cancel(k luascripts.Limit, a luascripts.CancelArgs) luascripts.CancelReply {
	var r luascripts.CancelReply
	now, no := s.on(k, a.Numbers, func(c *call) {
		if c.cancel(a) {
			r.Status = luascripts.Granted
		}
		r.Next = c.next()
	})
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	r.Now = instantOf(now)
	return r
}

// cancel says whether it gave a grant back.
func (c *call) cancel(a luascripts.CancelArgs) bool {
	me := member(luascripts.Member{Job: a.Job, Cost: a.Cost})
	var held int64
	if a.Token != 0 {
		held, _ = c.holds(a.Token)
		c.tokens.drop(a.Token)
	}
	given := held > 0
	if me != "" && !a.Back {
		c.line.leave(me)
	}
	if given {
		changed := refund(c.numbers, c.state, held, int64(a.Cost), a.Worth, max(c.now, c.state.newest()))
		if c.ledger.token == a.Token {
			c.ledger.token, changed = 0, true
		}
		if changed {
			c.store()
		}
	}
	if a.Token != 0 {
		c.tokens.withdraw(a.Token, c.now, c.extra)
	}
	if given && a.Back && me != "" { // a copy of this call finds nothing given
		at := max(held, c.now)
		c.line.joinHead(me, at)
		c.line.keep(at, c.now, c.extra)
	}
	return given
}

// store writes the state; what was never spent on is not written.
// outlive keeps a ledger that was written under another limit for as long as the
// one in force counts with it. It may have been of a shorter window.
func (c *call) outlive() {
	if g := &c.ledger; g.state != nil && (g.figures != c.figures || g.version != c.version) {
		g.expires = max(g.expires, expiry(c.now, c.state.life(c.numbers)-c.now+c.extra))
	}
}

func (c *call) store() {
	if c.state.newest() > 0 {
		c.ledger.keep(c.numbers, c.state, c.now, c.extra)
	}
}

// Check is the current instant of a booking, which becomes its last promise.
func (s *Store) Check(b luascripts.CheckArgs) luascripts.CheckReply {
	var r luascripts.CheckReply
	now, no := s.on(b.Limit, b.Numbers, func(c *call) {
		me := member(b.Member)
		ticket, known := c.line.score(me)
		if !known {
			return
		}
		v := c.line.look(me, c.now)
		before := c.line.before(v.first, c.line.place(ticket))
		at := c.slot(c.now, before, int64(b.Cost))
		// an instant that is past is no new promise: how late it gets must show
		if at > c.now && !parked(ticket) {
			c.line.promised.add(me, at)
			c.line.keep(at, c.now, c.extra)
		}
		c.line.park(v)
		c.outlive()
		r.Status, r.At, r.Before = luascripts.Booked, instantOf(at), int(before)
	})
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	r.Now = instantOf(now)
	return r
}

// Peek is what a key looks like; it changes nothing. Who is late is not in the
// line.
func (s *Store) Peek(k luascripts.Limit, a luascripts.PeekArgs) luascripts.PeekReply {
	r := luascripts.PeekReply{Status: luascripts.Granted}
	now, no := s.on(k, a.Numbers, func(c *call) {
		v := c.line.look("", c.now)
		r.Waiting = v.last - v.first
		if r.Waiting == 0 && c.state.newest() <= c.now { // a grant ahead holds back all others
			r.Free = int(c.state.free(c.numbers, c.now))
		}
		r.Next = instantOf(c.slot(c.now, c.line.before(v.first, v.last), int64(a.Cost)))
		if c.ledger.state != nil {
			r.Life = max(0, time.Duration(c.ledger.expires-c.now/1000)*time.Millisecond)
		}
		before := int64(0)
		for _, p := range c.line.order[v.first:min(v.last, v.first+a.Most)] {
			cost := costOf(p.member)
			at := c.slot(c.now, before, cost)
			r.Listed = append(r.Listed, luascripts.Waiting{At: instantOf(at), Job: jobOf(p.member), Cost: int(cost)})
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
func (s *Store) Reset(k luascripts.Limit, n luascripts.Numbers) luascripts.CancelReply {
	r := luascripts.CancelReply{Status: luascripts.Granted}
	now, no := s.on(k, n, func(c *call) {
		c.ledger, c.tokens = ledger{}, tokens{}
		c.state = fresh(c.numbers)
		r.Next = c.next()
	})
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	r.Now = instantOf(now)
	return r
}
