package memory

import (
	"github.com/headwayq/headway/internal/luascripts"
)

// leases is `concurrent n lease W`: at most n at once. A permit is a lease,
// which comes back when it is released or when it ends. The tokens are the
// leases, by their end.
//
// 2 lease 30s, granted at 8:00:00 and 8:00:10: the third waits until 8:00:30,
// unless the first is renewed.
type leases struct {
	last  int64 // the newest grant
	fence int64 // grows from grant to grant

	// of the call that looks
	tokens *tokens
	now    int64
}

func (s *leases) newest() int64 { return s.last }

// live are the ends to come, in order.
func (s *leases) live() []scored[uint64] { return s.tokens.order[s.tokens.below(s.now+1):] }

// slot tells n places: those that are free, and the others in the order in which
// their leases end. Whoever is ahead takes them one by one, for a lease each.
func (s *leases) slot(l *numbers, now, before, _ int64) int64 {
	ends := s.live()
	if i := int64(len(ends)) - l.n + before%l.n; i >= 0 {
		now = max(now, ends[i].score)
	}
	return now + times(before/l.n, l.w)
}

func (s *leases) charge(_ *numbers, at, _ int64) {
	s.last, s.fence = at, max(s.fence+1, s.now)
}

// anew is a fence for a holder whose first answer was lost: nobody remembers those
// before the newest.
func (s *leases) anew() int64 {
	fence := max(s.fence+1, s.now)
	if s.last > 0 {
		s.fence = fence
	}
	return fence
}

func (s *leases) back(*numbers, int64, int64, int64, int64) {} // the lease is gone with its token

func (s *leases) worth(*numbers) int64 { return 0 }

func (s *leases) free(l *numbers, now int64) int64 {
	return l.n - int64(s.tokens.len()-s.tokens.below(now+1))
}

func (s *leases) life(l *numbers) int64 { return s.last + l.w }

// grants are none: a lease is no permit of a window.
func (s *leases) grants(*numbers) []grant { return nil }

func (s *leases) carried(*numbers, *numbers) state { return s }

// lend gives a lease, and forgets some that ended.
func (t *tokens) lend(token uint64, end, now, extra int64) {
	t.add(token, end)
	t.trim(0, now+1)
	t.live(now, end-now+extra)
}

const (
	offered   = 900_000 // how long a lease that came back is kept for the next in line, before it is late
	offerMost = 16
	aheadMost = 32     // how many behind them, of n at most, come by themselves when the leases end
	soonMost  = 40_000 // a lease that ends so soon is as good as free: whoever is told now comes for its end
)

// offer tells the next in line that there is a lease for them, and those behind
// when one ends. In the last tenth of its lease a holder has given it up.
func (p *ruleCall) offer(turns []luascripts.Promotion) []luascripts.Promotion {
	v := p.line.look("", p.now)
	waiting := p.line.order[v.first:v.last]
	free := 0
	if p.closed == 0 {
		free = int(max(0, p.state.free(p.numbers, p.now+min(soonMost, p.w/10))))
	}
	for _, w := range waiting[:min(free, offerMost, len(waiting))] {
		if told, _ := p.line.promised.score(w.member); told > p.now+offered {
			p.line.promised.add(w.member, p.now+offered)
		}
		turns = p.tell(turns, p.now, w.member) // also who was told before: it may not have heard
	}
	return p.tellNext(p.tellAhead(turns, waiting, free), waiting, free)
}

// tellNext tells the first behind the free leases when one ends that was not renewed
// in time. Its holder has died, so the end stays where it is; and those whom tellAhead
// told it may have gone before, for leases that were given back.
func (p *ruleCall) tellNext(turns []luascripts.Promotion, waiting []scored[string], free int) []luascripts.Promotion {
	if free >= len(waiting) {
		return turns
	}
	at, m := p.slot(max(p.now, p.closed), int64(free), 1), waiting[free].member
	if told, _ := p.line.promised.score(m); 2*(at-p.now) > p.w || told <= at+1000 {
		return turns
	}
	p.line.promised.add(m, at)
	return p.tell(turns, at, m)
}

// tellAhead tells the jobs behind the free leases when the leases end that are held. A notice
// can be lost with the process that received it, so these jobs come by themselves. Twice as
// many jobs as leases have to know their instants. When they do not, three times as many are
// told, so that it is due again after that many more leases, and not after each.
func (p *ruleCall) tellAhead(turns []luascripts.Promotion, waiting []scored[string], free int) []luascripts.Promotion {
	many := int(min(p.n, aheadMost))
	last := min(free+2*many, len(waiting)) - 1
	if last < free {
		return turns
	}
	from := max(p.now, p.closed)
	sooner := func(rank int) (at int64, is bool) {
		at = p.slot(from, int64(min(rank, free+many-1)), 1)
		told, _ := p.line.promised.score(waiting[rank].member)
		return at, told > at+1000
	}
	if _, is := sooner(last); !is {
		return turns
	}
	for rank := free; rank < min(free+3*many, len(waiting)); rank++ {
		if at, is := sooner(rank); is {
			p.line.promised.add(waiting[rank].member, at)
			turns = p.tell(turns, at, waiting[rank].member)
		}
	}
	return turns
}

// Release ends a lease before its time.
func (s *Store) Release(p luascripts.RuleCall, token uint64) luascripts.ReleaseReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().UnixMicro()
	r := luascripts.ReleaseReply{Status: luascripts.Granted, Now: instantOf(now)}
	k := s.keys.get(p.Ledger(), now)
	if end, known := k.tokens.score(token); known && end >= 0 { // whatever became of the limit
		k.tokens.drop(token)
		r.Released = end > now
	}
	p.Kind = luascripts.Leases
	no := s.runLocked(now, []luascripts.RuleCall{p}, "", "", func(c *call) { r.Promoted = c.missed(c.parts[0].promotions(nil, false)) })
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	return r
}

// Renew lets a lease end so much later as it was given for, counted from now.
func (s *Store) Renew(p luascripts.RuleCall, token uint64) luascripts.RenewReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().UnixMicro()
	k := s.keys.get(p.Ledger(), now)
	end, known := k.tokens.score(token)
	if !known || end <= now || k.promisedAway(end, now) {
		return luascripts.RenewReply{Now: instantOf(now)}
	}
	w := micros(p.Window)
	k.tokens.add(token, max(end, now+w)) // a clock that went backwards takes nothing from its holder
	k.tokens.live(now, w+s.extra)
	if k.ledger.state != nil {
		k.ledger.expires = max(k.ledger.expires, expiry(now, w+s.extra))
	}
	return luascripts.RenewReply{Held: true, Now: instantOf(now)}
}

// promisedAway says that somebody may have been granted ahead of now what comes
// back when this lease ends.
func (k *key) promisedAway(end, now int64) bool {
	l, ok := k.ledger.state.(*leases)
	return ok && l.last > now && end <= l.last
}
