package memory

import "github.com/headwayq/headway/internal/luascripts"

// call is one call on the keys of its parts.
type call struct {
	now, extra int64
	parts      []part
}

// refusal is why there is nothing to decide with; its status is 0 when there is.
type refusal struct {
	status  luascripts.Status
	part    int
	version int64 // of the ledger's limit, when Outdated
}

// on runs one call on the keys of its parts, unless a calendar's bounds do not
// cover now, or a ledger was written under a newer limit.
func (s *Store) on(parts []luascripts.RuleCall, policy, job string, run func(*call)) (now int64, no refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.now().UnixMicro()
	return now, s.runLocked(now, parts, policy, job, run)
}

func (s *Store) runLocked(now int64, parts []luascripts.RuleCall, policy, job string, run func(*call)) refusal {
	c := &call{now: now, extra: s.extra, parts: make([]part, len(parts))}
	for i := range parts {
		if no := c.read(i, &parts[i], &s.keys); no.status != 0 {
			return no
		}
	}
	c.group()
	for i := range c.parts {
		p := &c.parts[i]
		p.me = member(luascripts.Member{Job: job, Cost: parts[i].Cost})
		if t := parts[i].Closed; !t.IsZero() && t.UnixMicro() > c.now {
			p.ruleClosed = t.UnixMicro()
		}
		p.open()
		if p.turns = &p.none; len(parts) > 1 {
			p.turns = p.key.turns(policy)
		}
	}
	run(c)
	for i := range c.parts {
		s.keys.put(c.parts[i].key)
	}
	s.keys.sweep(c.now, len(c.parts))
	return refusal{}
}

// read finds the key of a part.
func (c *call) read(i int, a *luascripts.RuleCall, from *keys) refusal {
	p := &c.parts[i]
	*p = part{
		numbers: numbersOf(a.Numbers), now: c.now, extra: c.extra, number: i + 1,
		id: a.ID, cost: int64(a.Cost), worth: a.Worth, toldAt: microsOf(a.At), toldUntil: microsOf(a.Until),
	}
	if !p.covers(c.now) {
		return refusal{status: luascripts.NotCovered, part: p.number}
	}
	p.key = c.key(i, a.Ledger(), from)
	if p.ledger.state != nil && p.ledger.version > p.version {
		return refusal{luascripts.Outdated, p.number, p.ledger.version}
	}
	return refusal{}
}

// key is that of a part before this one, or another.
func (c *call) key(i int, name string, from *keys) *key {
	for _, p := range c.parts[:i] {
		if p.name == name {
			return p.key
		}
	}
	return from.get(name, c.now)
}

// group numbers the rates: those side by side on one user key go together.
func (c *call) group() {
	group := 0
	for i := range c.parts {
		p := &c.parts[i]
		if p.kind == luascripts.Leases {
			continue
		}
		if group == 0 || p.id != c.parts[i-1].id {
			group++
		}
		p.group = group
	}
}

// open makes the state what the numbers of the call see.
func (p *part) open() {
	p.closed = max(p.ruleClosed, p.line.closedUntil(p.now))
	p.state = p.ledger.under(p.numbers)
	if l, ok := p.state.(*leases); ok {
		l.tokens, l.now = &p.tokens, p.now
	}
}

// sets are the parts that are decided together, as ranges: groups of rates, and
// then each of the leases.
func (c *call) sets(visit func(set []part) bool) {
	for from := 0; from < len(c.parts); {
		to := from + 1
		for to < len(c.parts) && c.parts[to].group > 0 && c.parts[to].group == c.parts[from].group {
			to++
		}
		if !visit(c.parts[from:to]) {
			return
		}
		from = to
	}
}

func (c *call) look() {
	for i := range c.parts {
		c.parts[i].look()
	}
}

// widest is the last of the rates; nil when there is none.
func (c *call) widest() *part {
	for i := len(c.parts) - 1; i >= 0; i-- {
		if c.parts[i].group > 0 {
			return &c.parts[i]
		}
	}
	return nil
}

// joint is the first instant, not before a, at which all of them admit the job,
// and which of them put it off last. What they do not admit until reach is put off by
// turns, too.
func joint(set []part, a, reach int64) (at int64, by *part) {
	for i := range set {
		if due := set[i].byLedger; due > a {
			a, by = due, &set[i]
		}
	}
	for i := range set {
		if p := &set[i]; p.byLedger > reach && p.due > a {
			a, by = p.due, p
		}
	}
	return a, by
}

// hints adds who may come earlier than promised: of a rate the first who waits
// and, when asked for, the first turn; of leases, see offer.
func (p *part) hints(turns []luascripts.Promotion, turnToo bool) []luascripts.Promotion {
	me := p.me
	p.me = ""
	defer func() { p.me = me }()
	var first []string
	if p.kind == luascripts.Leases {
		p.view, p.late = p.line.look("", p.now), p.lateTurns()
		p.park() // or the next call would tell them again
		turns = p.offer(turns)
	} else if v := p.line.look("", p.now); v.head != "" {
		first = append(first, v.head)
	}
	if turnToo {
		if rank := len(p.lateTurns()); rank < p.turns.len() {
			first = append(first, p.turns.order[rank].member)
		}
	}
	for _, m := range first {
		at := p.slot(max(p.now, p.closed), 0, costOf(m))
		if told, _ := p.line.promised.score(m); told-at > 1000 {
			turns = p.tell(turns, at, m)
		}
	}
	return turns
}

// tell adds that a member may come at an instant.
func (p *part) tell(turns []luascripts.Promotion, at int64, member string) []luascripts.Promotion {
	return append(turns, luascripts.Promotion{Part: p.number, At: instantOf(at), Job: jobOf(member)})
}

// missed adds those who were parked while they waited for a lease: a process that
// died may have kept from them that they should come.
func (c *call) missed(turns []luascripts.Promotion) []luascripts.Promotion {
	for i := range c.parts {
		for _, m := range c.parts[i].missed {
			turns = c.parts[i].tell(turns, c.now, m)
		}
	}
	return turns
}

// hints are those of all parts; of the turns where turnToo says so.
func (c *call) hints(turnToo func(*part) bool) []luascripts.Promotion {
	var turns []luascripts.Promotion
	for i := range c.parts {
		turns = c.parts[i].hints(turns, turnToo(&c.parts[i]))
	}
	return turns
}
