package memory

import (
	"math"
	"slices"
	"strconv"

	"github.com/headwayq/headway/internal/luascripts"
)

// ruleCall is one rule on one key, as a call finds it.
type ruleCall struct {
	*numbers
	*key
	now, extra  int64
	index       int // in the call, from 1
	group       int // as rulecall.lua has it: rates side by side on one key share it; a lease has that of a rate on its key, or the last one + 1
	id          string
	oneKey      int // rules with one key for all jobs have one number
	cost        int64
	worth       int64 // of a grant to give back
	statedAt    int64 // when it was, as its holder says; 0 when that is not known
	statedUntil int64
	ruleClosed  int64
	nobody      bool   // the key has no line; whoever is among the turns has gone
	closed      int64  // until when the key or the rule is closed; 0 when open
	state       state  // as the numbers see it
	turns       *set   // of the call's policy
	none        set    // the turns where the call has one rule
	member      string // the job as a member of the line, "cost:job"; "" when the call is nobody's

	view        view
	deadTurns   []string // the first turns, as far as they hold up nobody, see findDeadTurns
	missed      []string // who were parked here while they waited for a lease
	place       place
	ticket      int64 // as if not parked
	lastPromise int64
	ahead       ahead

	behindFront bool  // the first job of the line goes before this one
	byLedger    int64 // when this rule admits the job, if all ahead go as early as they can
	byTurns     int64 // when it does if turns ahead go when they were promised
}

// sharesKey says that two rules have the same key, as in every call of the policy before, and not by chance.
func (p *ruleCall) sharesKey(other *ruleCall) bool {
	return p.id == other.id && p.oneKey == other.oneKey
}

// findAndMeasure finds the job and those ahead of it, and when the rule admits it.
func (p *ruleCall) findAndMeasure() {
	p.view = p.line.read(p.member, p.now)
	p.deadTurns = p.findDeadTurns()
	p.findTicket()
	p.ahead = ahead{
		line: &p.line.set, turns: p.turns, mixed: p.line.isMixed(), squeezed: p.line.squeezedIn(),
		first: p.view.first, last: p.view.last, firstTurn: len(p.deadTurns), lastTurn: p.turns.len(), numbers: p.numbers,
	}
	if p.nobody {
		p.ahead.lastTurn = 0
	}
	if p.place != nowhere {
		p.ahead.last, p.ahead.lastTurn = p.line.below(p.ticket), p.turns.below(p.ticket)
	}
	p.ahead.mixed = p.ahead.mixed || p.ahead.differ()
	p.measure()
}

// findTicket finds where the job stands, and its ticket.
func (p *ruleCall) findTicket() {
	if p.member == "" {
		return
	}
	if t, ok := p.line.score(p.member); ok {
		p.place, p.ticket = waits, unparked(t)
		if parked(t) {
			p.place = aside
		}
	} else if t, ok := p.line.kept.score(p.member); ok {
		p.place, p.ticket = turn, t
	}
	if p.place != nowhere {
		p.lastPromise, _ = p.line.promised.score(p.member)
	}
}

// grantable says that the job passes no job that waits.
func (p *ruleCall) grantable() bool {
	return !p.behindFront && (p.place != nowhere || p.view.first == p.view.last)
}

// chargeable is a state that earliest must be told whole jobs of: what one leaves over of a window
// may be too little for the next.
type chargeable interface{ scratch() state }

func (f *fixed) scratch() state    { c := *f; return &c }
func (c *calendar) scratch() state { d := *c; return &d }
func (s *step) scratch() state     { c := *s; return &c }
func (s *sliding) scratch() state  { return &sliding{slices.Clone(s.ring), s.newestIndex} }

// chargeAhead is the state as it will be when the first jobs ahead are granted, each as a whole and as early as it can
// be. It is a copy when something had to be charged. The other results are how many permits still go before the job then, and the instant at which
// the first job of the line goes, 0 when that does not matter.
func (p *ruleCall) chargeAhead(now int64) (s state, left, frontAt int64) {
	s, left = p.state, p.ahead.permits()
	if left == 0 {
		return s, 0, 0
	}
	var costs []int64
	frontIndex := -1
	if p.ahead.mixed {
		costs, frontIndex, _ = p.ahead.firstCosts()
	} else if c := p.ahead.cost(); c > 1 || p.cost > 1 {
		costs = slices.Repeat([]int64{c}, min(wholeJobs, p.ahead.count()))
	}
	of, whole := s.(chargeable)
	if !whole {
		before := int64(0)
		for i, cost := range costs {
			if i == frontIndex {
				frontAt = s.earliest(p.numbers, now, before, cost)
			}
			before += cost
		}
		return s, left, frontAt
	}
	if len(costs) > 0 {
		s = of.scratch()
	}
	for i, cost := range costs {
		at := s.earliest(p.numbers, now, 0, cost)
		if i == frontIndex {
			frontAt = at
		}
		s.charge(p.numbers, at, cost)
		left -= cost
	}
	return s, max(0, left), frontAt
}

// jobsOneByOne says when jobs go one after the other, from the first on.
func (p *ruleCall) jobsOneByOne(now int64) func(cost int64) int64 {
	s, left, more := p.state, int64(0), wholeJobs
	of, whole := s.(chargeable)
	if whole {
		s = of.scratch()
	}
	return func(cost int64) int64 {
		at := earliest(p.numbers, s, now, left, cost)
		if left == 0 && more > 0 && whole && (p.ahead.mixed || cost > 1) {
			s.charge(p.numbers, at, cost)
			more--
		} else {
			left += cost
		}
		return at
	}
}

func (p *ruleCall) earliest(now, before, cost int64) int64 {
	return earliest(p.numbers, p.state, now, before, cost)
}

// measure finds when the rule admits the job. Those ahead go as early as they can;
// turns go when they were promised, which may be later, and between these and the job
// there may be more. A job that is refused is told the instant that follows from this.
//
// Of the turns ahead it looks at the first and the last only. The first has the most permits behind it, and the last was
// mostly promised the latest instant. Where one in between puts the job off for longer, the job comes too early. Then it is
// granted only if there are permits for all turns, too; else it is told a later instant.
//
// Where costs differ nobody goes before the first who waits: a smaller job would take what
// that one waits for, again and again. So a job that the first goes before is held up, and
// comes when the first is expected at the latest.
func (p *ruleCall) measure() {
	b := max(p.now, p.closed)
	s, left, frontAt := p.chargeAhead(b)
	p.byLedger = earliest(p.numbers, s, b, left, p.cost)
	p.behindFront = p.ahead.mixed && p.place != nowhere && frontAt > 0 && frontAt < p.byLedger
	if p.behindFront {
		expected, _ := p.line.promised.score(p.view.front)
		if expected <= p.now {
			expected += grace
		}
		p.byLedger = max(p.byLedger, min(expected, farthest))
	}
	p.byTurns = p.byLedger
	first, last := p.ahead.firstTurn, p.ahead.lastTurn-1
	if first > last {
		return
	}
	for _, rank := range []int{first, last}[:min(2, last-first+1)] {
		t := p.turns.order[rank]
		if promised, _ := p.line.promised.score(t.member); promised > b {
			p.byTurns = max(p.byTurns, p.earliest(promised, p.ahead.permitsFrom(t.score), p.cost))
		}
	}
}

// onlyTurnsDelay says that only turns ahead of the job put it off until an instant: then
// it does not exist for jobs of other policies, as they do not.
func (p *ruleCall) onlyTurnsDelay(at int64) bool { return p.byTurns == at && p.byLedger < at }

// leftLine says that the job waited here, and does not any more.
func (p *ruleCall) leftLine() bool {
	ticket, in := p.line.score(p.member)
	return p.place == waits && (!in || parked(ticket))
}

// admitsSince is from when on the ledger admits the job, which may be past.
func (p *ruleCall) admitsSince() int64 {
	if p.state.newest() == 0 && p.closed == 0 {
		return 0
	}
	return p.earliest(p.closed, p.ahead.permits(), p.cost)
}

// park lets those who are late hold up nobody.
func (p *ruleCall) park() {
	if p.kind == luascripts.Leases {
		p.missed = append(append(p.missed, p.view.late...), p.lateTurns()...)
	}
	p.line.park(p.view)
	turns := p.lateTurns()
	for _, m := range turns {
		ticket, _ := p.turns.score(m)
		p.line.add(m, ticket-parkOffset)
		p.line.kept.drop(m)
	}
	for _, m := range p.deadTurns {
		if m != p.member { // the job may have got that turn now
			p.turns.drop(m)
		}
	}
	if len(p.view.late)+len(turns) > 0 {
		p.line.keep(p.now, p.now, p.extra)
	}
}

// outlive keeps a ledger that was written under another limit for as long as the
// one in force counts with it. It may have been of a shorter window.
func (p *ruleCall) outlive() {
	if g := &p.ledger; g.state != nil && (g.figures != p.figures || g.version != p.version) {
		g.expires = max(g.expires, expiry(p.now, p.state.life(p.numbers)-p.now+p.extra))
	}
}

// store writes the state; what was never spent on is not written.
func (p *ruleCall) store() {
	if p.state.newest() > 0 {
		p.ledger.keep(p.numbers, p.state, p.now, p.extra)
	}
}

// heldAt is the instant of a token's grant, negative when it was withdrawn. Of a lease it is
// the instant of the last renewal, or of the grant when it was not renewed yet.
func (p *ruleCall) heldAt(token uint64) (at int64, known bool) {
	if p.kind == luascripts.Leases {
		switch end, known := p.tokens.score(token); {
		case known && end > p.now: // the length of a lease may be a shorter one by now
			return min(end-p.w, max(p.now, p.state.newest())), true
		case known && end < 0:
			return end, true
		}
		return 0, false
	}
	if token != 0 && p.ledger.token == token {
		return p.state.newest(), true
	}
	at, known = p.tokens.score(token)
	switch {
	case at < -adjustmentOffset:
		return -at - adjustmentOffset, true
	case at > 0 && at+resentWithin <= p.now: // no copy of its call is expected any more
		p.tokens.drop(token)
		return 0, false
	}
	return at, known
}

// granted is the instant of the grant that a token's holder corrects. The first rule of a
// call remembers its token; the others know it when it is that of their newest grant, or of an adjustment, and
// else go by what the first one found. Of a grant whose
// token is forgotten it is what the holder tells, if there may have been one then. 0 or less is
// none.
func (p *ruleCall) granted(token uint64, first int64) int64 {
	held, known := p.heldAt(token)
	if !known && p.index > 1 && p.kind != luascripts.Leases {
		held, known = first, first != 0
	}
	if known || p.kind == luascripts.Leases || p.ledger.state == nil || p.statedAt == 0 {
		return held
	}
	if p.statedAt <= p.state.newest() && p.statedAt+resentWithin <= p.now && p.now < p.statedUntil {
		return p.statedAt
	}
	return 0
}

// free is how many permits are to be had right now.
func (p *ruleCall) free(someWait bool) int {
	ahead := p.state.newest() > p.now && p.kind != luascripts.Leases // a grant ahead holds back all others
	if someWait || p.closed > 0 || ahead {
		return 0
	}
	return int(max(0, p.state.free(p.numbers, p.now)))
}

// place is where a job stands on the key of a rule.
type place int

const (
	nowhere place = iota
	waits         // in the line: this rule holds it up
	aside         // parked in the line: it holds up nobody, and finds its turn again
	turn          // among the turns: this rule admitted it, and a wider one holds it up
)

// takePlace gives the job a place and a promise. A job that has a ticket keeps it, and a
// newcomer comes behind all.
func (p *ruleCall) takePlace(to place, at int64) {
	p.line.promised.add(p.member, at)
	switch p.place {
	case to:
		if to == turn { // it may be one by another policy
			p.mix()
			p.turns.add(p.member, p.ticket)
		}
	case nowhere:
		p.put(to, p.lastTicket())
		p.clear()
	default:
		p.put(to, p.ticket)
	}
	p.keep(at)
}

// put moves the job to a place, and notes when costs differ there.
func (p *ruleCall) put(to place, ticket int64) {
	defer func() { p.nobody = false }()
	if to == turn {
		p.line.drop(p.member)
		p.mix()
		if p.nobody {
			*p.turns = set{}
		}
		p.turns.add(p.member, ticket)
		p.line.kept.add(p.member, ticket)
		return
	}
	if !p.nobody {
		p.turns.drop(p.member)
	}
	p.line.kept.drop(p.member)
	if to == aside {
		p.line.add(p.member, ticket-parkOffset)
		return
	}
	p.mix()
	p.line.add(p.member, ticket)
}

// keepsTurn says whether a job has a turn at a rule while the binding rule holds it up: in the narrower groups, which
// admitted it, and in that of the binding rule. A job that waits for a lease keeps none at the rates of its key, nor at wider ones.
func (p *ruleCall) keepsTurn(binding *ruleCall, turns turnsKept) bool {
	switch {
	case p.kind == luascripts.Leases || turns == noTurns:
		return false
	case turns == heldTurns && p.place != waits && p.place != turn:
		return false
	}
	return p.group < binding.group || p.group == binding.group && binding.kind != luascripts.Leases
}

// stepAside leaves the job its ticket where another rule goes before this one.
func (p *ruleCall) stepAside(at int64) {
	if p.place == waits || p.place == turn {
		p.put(aside, p.ticket)
		p.keep(at)
	}
}

// leave gives up the job's place.
func (p *ruleCall) leave() {
	p.line.squeezeOut(p.ticketOf(p.member), p.unitsOf(p.cost))
	p.line.drop(p.member)
	p.turns.drop(p.member)
	p.line.kept.drop(p.member)
	p.line.promised.drop(p.member)
	if p.line.len() > 0 || p.line.anyPromise() {
		return
	}
	over := []string{mixed, squeezed, lastPostponed, postponedIn}
	if p.closed == 0 {
		over = append(over, closed, closedSince) // the closing is over
	}
	for _, name := range over {
		p.line.promised.drop(name)
	}
}

// ticketOf is that of a member in the line or among the turns, 0 for none.
func (p *ruleCall) ticketOf(m string) int64 {
	if ticket, in := p.line.score(m); in {
		return ticket
	}
	ticket, _ := p.line.kept.score(m)
	return ticket
}

func (p *ruleCall) keep(at int64) {
	p.line.keep(at, p.now, p.extra)
	p.turns.live(p.now, at-p.now+parkedFor+p.extra)
}

// mix notes that costs differ: this job's is not that of the first job in line, or of the
// first turn.
func (p *ruleCall) mix() {
	if p.nobody {
		return
	}
	own := costOf(p.member)
	at := p.line.below(unparkedFrom)
	if at < p.line.len() && costOf(p.line.order[at].member) != own || p.turns.len() > 0 && costOf(p.turns.order[0].member) != own {
		p.line.mix()
	}
}

// lastTicket is the ticket behind all, a whole number of rooms, as firstTicket.
func (p *ruleCall) lastTicket() int64 {
	ticket := int64(0)
	after := func(s *set, rank int) {
		if 0 <= rank && rank < s.len() {
			last := s.order[rank]
			ticket = max(ticket, p.ticketBehind(costOf(last.member), rooms(unparked(last.score)+room-1)*room))
		}
	}
	after(&p.line.set, p.line.below(unparkedFrom)-1)
	after(&p.line.set, p.line.len()-1)
	after(&p.line.kept, p.line.kept.len()-1)
	return ticket
}

// firstTicket is the ticket before all, also before the turns of all policies.
func (p *ruleCall) firstTicket() int64 {
	ticket, some := int64(0), false
	before := func(s *set, rank int) {
		if rank < s.len() {
			if t := p.ticketBefore(costOf(p.member), rooms(unparked(s.order[rank].score))*room); !some || t < ticket {
				ticket, some = t, true
			}
		}
	}
	before(&p.line.set, 0)
	before(&p.line.set, p.line.below(unparkedFrom))
	before(&p.line.kept, 0)
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

// clear drops some jobs that have been late for an hour. It leaves the jobs that this call is about to park.
func (p *ruleCall) clear() {
	promised, turns := &p.line.promised, p.lateTurns()
	outdated := promised.order[:min(lateMost, promised.below(p.now-parkedFor+1))]
	for _, g := range append([]scored[string](nil), outdated...) {
		if ticket, ok := p.line.score(g.member); (!ok || parked(ticket)) && !slices.Contains(turns, g.member) {
			p.line.squeezeOut(p.ticketOf(g.member), p.unitsOf(costOf(g.member)))
			p.line.drop(g.member)
			p.line.kept.drop(g.member)
			promised.drop(g.member)
		}
	}
}

// open makes the state what the numbers of the call see.
func (p *ruleCall) open() {
	p.nobody = p.line.len()+p.line.promised.len()+p.line.kept.len() == 0
	p.closed = max(p.ruleClosed, p.line.closedUntil(p.now))
	p.state = p.ledger.under(p.numbers)
	if l, ok := p.state.(*leases); ok {
		l.tokens, l.now = &p.tokens, p.now
	}
}

// await counts a job that waits for an opening, and returns when it is to come; one that would come after
// `latest` does not count. If all jobs came at once, the rule that they share would refuse them.
func (p *ruleCall) await(g gate, opens, latest int64) int64 {
	m := strconv.FormatInt(opens, 10)
	before, known := p.opening.score(m)
	at := g.spread(opens, whole(math.Floor(float64(before)*float64(p.w)/float64(p.n))))
	if at > latest {
		return at
	}
	if !known {
		p.forgetOpenings()
	}
	p.opening.add(m, before+p.cost)
	p.opening.live(p.now, at-p.now+openingKnownFor+p.extra)
	return at
}

// forgetOpenings drops some that are long past, or a busy key would keep all.
func (p *ruleCall) forgetOpenings() {
	for _, o := range slices.Clone(p.opening.order[:min(lateMost, p.opening.len())]) {
		if opened, _ := strconv.ParseInt(o.member, 10, 64); opened+openingKnownFor < p.now { // our own text
			p.opening.drop(o.member)
		}
	}
}

// findDeadTurns finds the first turns, as far as they hold up nobody: their jobs are late, or do not keep them any
// more, because another policy has asked for these jobs. At most lateMost.
func (p *ruleCall) findDeadTurns() []string {
	if p.nobody {
		return nil
	}
	var out []string
	for _, t := range p.turns.order[:min(lateMost, p.turns.len())] {
		if p.keeps(t) && (t.member == p.member || !p.line.overdue(t.member, p.now)) {
			break
		}
		out = append(out, t.member)
	}
	return out
}

// keeps says that a job keeps a turn.
func (p *ruleCall) keeps(t scored[string]) bool {
	ticket, kept := p.line.kept.score(t.member)
	return kept && ticket == t.score
}

// lateTurns are those of deadTurns whose jobs are late, and are to be parked. The jobs of the others do not keep them any more.
func (p *ruleCall) lateTurns() []string {
	return slices.DeleteFunc(slices.Clone(p.deadTurns), func(m string) bool {
		ticket, _ := p.turns.score(m)
		return m == p.member || !p.keeps(scored[string]{ticket, m})
	})
}
