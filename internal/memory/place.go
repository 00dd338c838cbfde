package memory

// place is where a job stands in a part.
type place int

const (
	nowhere place = iota
	waits         // in the line: this part holds it up
	aside         // parked in the line: it holds up nobody, and finds its turn again
	turn          // among the turns: this part admitted it, and a wider one holds it up
)

// enter gives the job a place and a promise. Who has a ticket keeps it, a
// newcomer comes behind all.
func (p *part) enter(to place, at int64) {
	p.line.promised.add(p.me, at)
	switch p.place {
	case to:
	case nowhere:
		p.put(to, p.behind())
		p.clear()
	default:
		p.put(to, p.ticket)
	}
	p.keep(at)
}

// put moves me to a place, and notes when costs differ there.
func (p *part) put(to place, ticket int64) {
	if to == turn {
		p.line.drop(p.me)
		p.mix()
		p.turns.add(p.me, ticket)
		return
	}
	p.turns.drop(p.me)
	if to == aside {
		p.line.add(p.me, ticket-park)
		return
	}
	p.mix()
	p.line.add(p.me, ticket)
}

// setAside leaves the job its ticket where another part goes before this one.
func (p *part) setAside(at int64) {
	if p.place == waits || p.place == turn {
		p.put(aside, p.ticket)
		p.keep(at)
	}
}

// leave gives up the job's place.
func (p *part) leave() {
	p.line.squeezeOut(p.ticketOf(p.me), p.cost)
	p.line.drop(p.me)
	p.turns.drop(p.me)
	p.line.promised.drop(p.me)
	if p.line.len() == 0 && p.turns.len() == 0 {
		for _, name := range []string{mixed, squeezed, lastPutOff, putOffIn} {
			p.line.promised.drop(name)
		}
	}
}

// ticketOf is that of a member in the line or among the turns, 0 for none.
func (p *part) ticketOf(m string) int64 {
	if ticket, in := p.line.score(m); in {
		return ticket
	}
	ticket, _ := p.turns.score(m)
	return ticket
}

func (p *part) keep(at int64) {
	p.line.keep(at, p.now, p.extra)
	p.turns.live(p.now, at-p.now+late+p.extra)
}

// mix notes that costs differ, when mine is not that of the first who waits, or
// where nobody does, of the first turn.
func (p *part) mix() {
	first := ""
	if at := p.line.below(live); at < p.line.len() {
		first = p.line.order[at].member
	} else if p.turns.len() > 0 {
		first = p.turns.order[0].member
	}
	if first != "" && costOf(first) != costOf(p.me) {
		p.line.mix()
	}
}

// behind is the ticket behind all, a whole number of rooms, as front.
func (p *part) behind() int64 {
	ticket := int64(0)
	after := func(s *set, rank int) {
		if 0 <= rank && rank < s.len() {
			last := s.order[rank]
			ticket = max(ticket, (rooms(turnOf(last.score)+room-1)+costOf(last.member))*room)
		}
	}
	after(&p.line.set, p.line.below(live)-1)
	after(&p.line.set, p.line.len()-1)
	after(p.turns, p.turns.len()-1)
	return ticket
}

// front is the ticket before all.
func (p *part) front() int64 {
	ticket, some := int64(0), false
	before := func(s *set, rank int) {
		if rank < s.len() {
			if t := (rooms(turnOf(s.order[rank].score)) - costOf(p.me)) * room; !some || t < ticket {
				ticket, some = t, true
			}
		}
	}
	before(&p.line.set, 0)
	before(&p.line.set, p.line.below(live))
	before(p.turns, 0)
	return ticket
}

// rooms are the whole ones below a ticket.
func rooms(ticket int64) int64 {
	n := ticket / room
	if ticket%room < 0 {
		n--
	}
	return n
}

// clear drops some who were late for too long.
func (p *part) clear() {
	promised := &p.line.promised
	gone := promised.order[:min(lateMost, promised.below(p.now-late+1))]
	for _, g := range append([]scored[string](nil), gone...) {
		if _, has := p.turns.score(g.member); has {
			continue
		}
		if ticket, ok := p.line.score(g.member); !ok || parked(ticket) {
			p.line.squeezeOut(ticket, costOf(g.member))
			p.line.drop(g.member)
			promised.drop(g.member)
		}
	}
}
