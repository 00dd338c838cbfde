package memory

import "github.com/headwayq/headway/internal/luascripts"

// part is one rule on one key, as a call finds it.
type part struct {
	*numbers
	*key
	now, extra int64
	number     int // from 1
	group      int // of rates on the same user key, from 1; 0 for leases
	id         string
	cost       int64
	worth      int64 // of a grant to give back
	toldAt     int64 // when it was, as its holder tells; 0 when that is not known
	toldUntil  int64
	ruleClosed int64
	closed     int64 // until when the key or the rule is closed; 0 when open
	state      state // as the numbers see it
	turns      *set  // of the call's policy
	none       set   // the turns where there is one part
	me         string

	view   view
	late   []string // turns
	missed []string // who were parked here while they waited for a lease
	place  place
	ticket int64 // as if not parked
	told   int64
	ahead  ahead

	byLedger int64 // when this part admits the job, if all ahead go as early as they can
	due      int64 // when it does if turns ahead go when they were promised
}

// look finds the job and those ahead of it.
func (p *part) look() {
	p.view = p.line.look(p.me, p.now)
	p.late = p.lateTurns()
	p.find()
	p.ahead = ahead{
		line: &p.line.set, turns: p.turns, mixed: p.line.isMixed(), squeezed: p.line.squeezedIn(),
		first: p.view.first, last: p.view.last, firstTurn: len(p.late), lastTurn: p.turns.len(),
	}
	if p.place != nowhere {
		p.ahead.last, p.ahead.lastTurn = p.line.below(p.ticket), p.turns.below(p.ticket)
	}
	p.measure()
}

func (p *part) find() {
	if p.me == "" {
		return
	}
	if t, ok := p.line.score(p.me); ok {
		p.place, p.ticket = waits, turnOf(t)
		if parked(t) {
			p.place = aside
		}
	} else if t, ok := p.turns.score(p.me); ok {
		p.place, p.ticket = turn, t
	}
	if p.place != nowhere {
		p.told, _ = p.line.promised.score(p.me)
	}
}

// grantable says that the job passes nobody who waits.
func (p *part) grantable() bool { return p.place != nowhere || p.view.first == p.view.last }

func (p *part) slot(now, before, cost int64) int64 {
	return slot(p.numbers, p.state, now, before, cost)
}

// measure finds when the part admits the job. Those ahead go as early as they can;
// turns go when they were promised, which may be later, and between these and me
// there may be more: when it refuses me, that is what I am told.
func (p *part) measure() {
	b := max(p.now, p.closed)
	p.byLedger = p.slot(b, p.ahead.permits(), p.cost)
	p.due = p.byLedger
	first, last := p.ahead.firstTurn, p.ahead.lastTurn-1
	if first > last {
		return
	}
	for _, rank := range []int{first, last}[:min(2, last-first+1)] {
		t := p.turns.order[rank]
		if told, _ := p.line.promised.score(t.member); told > b {
			p.due = max(p.due, p.slot(told, p.ahead.permitsFrom(t.score), p.cost))
		}
	}
}

// follows says that only turns ahead of the job put it off until an instant: then
// it does not exist for jobs of other policies, as they do not.
func (p *part) follows(at int64) bool { return p.due == at && p.byLedger < at }

// leftLine says that the job waited here, and does not any more.
func (p *part) leftLine() bool {
	ticket, in := p.line.score(p.me)
	return p.place == waits && (!in || parked(ticket))
}

// since is from when on the ledger admits the job, which may be past.
func (p *part) since() int64 {
	if p.state.newest() == 0 && p.closed == 0 {
		return 0
	}
	return p.slot(p.closed, p.ahead.permits(), p.cost)
}

// park lets those who are late hold up nobody.
func (p *part) park() {
	if p.kind == luascripts.Leases {
		p.missed = append(append(p.missed, p.view.late...), p.late...)
	}
	p.line.park(p.view)
	for _, m := range p.late {
		if ticket, ok := p.turns.score(m); ok {
			p.turns.drop(m)
			p.line.add(m, ticket-park)
		}
	}
	if len(p.late) > 0 {
		p.line.keep(p.now, p.now, p.extra)
	}
}

// outlive keeps a ledger that was written under another limit for as long as the
// one in force counts with it. It may have been of a shorter window.
func (p *part) outlive() {
	if g := &p.ledger; g.state != nil && (g.figures != p.figures || g.version != p.version) {
		g.expires = max(g.expires, expiry(p.now, p.state.life(p.numbers)-p.now+p.extra))
	}
}

// store writes the state; what was never spent on is not written.
func (p *part) store() {
	if p.state.newest() > 0 {
		p.ledger.keep(p.numbers, p.state, p.now, p.extra)
	}
}

// holds is the instant of a token's grant, negative when it was withdrawn. Who
// has a lease has it granted now.
func (p *part) holds(token uint64) (at int64, known bool) {
	if p.kind == luascripts.Leases {
		switch end, known := p.tokens.score(token); {
		case known && end > p.now:
			return p.now, true
		case known && end < 0:
			return end, true
		}
		return 0, false
	}
	if token != 0 && p.ledger.token == token {
		return p.state.newest(), true
	}
	if at, known = p.tokens.score(token); at < -bills {
		return -at - bills, true
	}
	return at, known
}

// granted is the instant of the grant that a token's holder corrects: of one whose
// token is forgotten what it tells, if there may have been one then. 0 or less is
// none.
func (p *part) granted(token uint64) int64 {
	held, known := p.holds(token)
	if known || p.kind == luascripts.Leases || p.ledger.state == nil || p.toldAt == 0 {
		return held
	}
	if p.toldAt <= p.state.newest() && p.toldAt+copied <= p.now && p.now < p.toldUntil {
		return p.toldAt
	}
	return 0
}

// free is how many permits are to be had right now.
func (p *part) free(someWait bool) int {
	ahead := p.state.newest() > p.now && p.kind != luascripts.Leases // a grant ahead holds back all others
	if someWait || p.closed > 0 || ahead {
		return 0
	}
	return int(max(0, p.state.free(p.numbers, p.now)))
}
