package memory

import (
	"math"
	"slices"
	"strconv"

	"github.com/headwayq/headway/internal/limitscripts"
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
	none        set    // the turns where the policy has one rule
	member      string // the job as a member of the line, "cost:job"; "" when the call is nobody's

	view        view
	deadTurns   []string // the first turns, as far as they hold up nobody, see findDeadTurns
	missed      []string // who were parked here while they waited for a lease
	place       place
	leftTurn    bool  // it was among the turns, and does not hold up anybody there any more
	ticket      int64 // as if not parked
	lastPromise int64
	ahead       ahead

	behindFront bool  // the first job of the line goes before this one
	byLedger    int64 // when this rule admits the job, if all ahead go as early as they can
	byTurns     int64 // when it does if turns ahead go when they were promised
}

// sharesKey says that two rules have the same key, as in every call of the policy before, and not by chance.
func (r *ruleCall) sharesKey(other *ruleCall) bool {
	return r.id == other.id && r.oneKey == other.oneKey
}

// findAndMeasure finds the job and those ahead of it, and when the rule admits it.
func (r *ruleCall) findAndMeasure() {
	r.view = r.line.read(r.member, r.now)
	r.deadTurns = r.findDeadTurns()
	r.findTicket()
	r.ahead = ahead{
		line: &r.line.set, turns: r.turns, mixed: r.line.isMixed(), squeezed: r.line.squeezedIn(),
		first: r.view.first, last: r.view.last, firstTurn: len(r.deadTurns), lastTurn: r.turns.len(), numbers: r.numbers,
	}
	if r.nobody {
		r.ahead.lastTurn = 0
	}
	if r.place != nowhere {
		r.ahead.last, r.ahead.lastTurn = r.line.below(r.ticket), r.turns.below(r.ticket)
	}
	r.ahead.mixed = r.ahead.mixed || r.ahead.differ()
	r.measure()
}

// findTicket finds where the job stands, and its ticket.
func (r *ruleCall) findTicket() {
	if r.member == "" {
		return
	}
	if t, ok := r.line.score(r.member); ok {
		r.place, r.ticket = waits, unparked(t)
		if isParked(t) {
			r.place = parked
		}
	} else if t, ok := r.line.kept.score(r.member); ok {
		r.place, r.ticket = turn, t
	}
	if r.place != nowhere {
		r.lastPromise, _ = r.line.promised.score(r.member)
	}
}

// grantable says that the job passes no job that waits.
func (r *ruleCall) grantable() bool {
	return !r.behindFront && (r.place != nowhere || r.view.first == r.view.last)
}

// chargeable is a state that earliest must be told whole jobs of: what one leaves over of a window
// may be too little for the next.
type chargeable interface{ scratch() state }

func (f *fixed) scratch() state    { c := *f; return &c }
func (c *calendar) scratch() state { d := *c; return &d }
func (s *step) scratch() state     { c := *s; return &c }
func (s *sliding) scratch() state  { return &sliding{slices.Clone(s.ring), s.newestIndex} }

// copied is a copy of a rate's state.
func copied(s state) state {
	switch s := s.(type) {
	case chargeable:
		return s.scratch()
	case *gcra:
		c := *s
		return &c
	case *smooth:
		c := *s
		return &c
	case *warmUp:
		c := *s
		return &c
	}
	panic("memory: a copy of a state of an unknown kind")
}

// chargeAhead is the state as it will be when the first jobs ahead are granted, each as a whole and as early as it can
// be. It is a copy when something had to be charged. The other results are how many permits still go before the job then, and the instant at which
// the first job of the line goes, 0 when that does not matter.
func (r *ruleCall) chargeAhead(now int64) (s state, left, frontAt int64) {
	s, left = r.state, r.ahead.permits()
	if left == 0 {
		return s, 0, 0
	}
	var costs []int64
	frontIndex := -1
	if r.ahead.mixed {
		costs, frontIndex, _ = r.ahead.firstCosts()
	} else if c := r.ahead.cost(); c > 1 || r.cost > 1 {
		costs = slices.Repeat([]int64{c}, min(wholeJobs, r.ahead.count()))
	}
	of, whole := s.(chargeable)
	if !whole {
		before := int64(0)
		for i, cost := range costs {
			if i == frontIndex {
				frontAt = s.earliest(r.numbers, now, before, cost)
			}
			before += cost
		}
		return s, left, frontAt
	}
	if len(costs) > 0 {
		s = of.scratch()
	}
	for i, cost := range costs {
		at := s.earliest(r.numbers, now, 0, cost)
		if i == frontIndex {
			frontAt = at
		}
		s.charge(r.numbers, at, cost)
		left -= cost
	}
	return s, max(0, left), frontAt
}

// jobsOneByOne says when jobs go one after the other, from the first on.
func (r *ruleCall) jobsOneByOne(now int64) func(cost int64) int64 {
	s, left, more := r.state, int64(0), wholeJobs
	of, whole := s.(chargeable)
	if whole {
		s = of.scratch()
	}
	return func(cost int64) int64 {
		at := earliest(r.numbers, s, now, left, cost)
		if left == 0 && more > 0 && whole && (r.ahead.mixed || cost > 1) {
			s.charge(r.numbers, at, cost)
			more--
		} else {
			left += cost
		}
		return at
	}
}

func (r *ruleCall) earliest(now, before, cost int64) int64 {
	return earliest(r.numbers, r.state, now, before, cost)
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
func (r *ruleCall) measure() {
	b := max(r.now, r.closed)
	s, left, frontAt := r.chargeAhead(b)
	r.byLedger = earliest(r.numbers, s, b, left, r.cost)
	r.behindFront = r.ahead.mixed && r.place != nowhere && frontAt > 0 && frontAt < r.byLedger
	if r.behindFront {
		expected, _ := r.line.promised.score(r.view.front)
		if expected <= r.now {
			expected += grace
		}
		r.byLedger = max(r.byLedger, min(expected, farthest))
	}
	r.byTurns = r.byLedger
	first, last := r.ahead.firstTurn, r.ahead.lastTurn-1
	if first > last {
		return
	}
	for _, rank := range []int{first, last}[:min(2, last-first+1)] {
		t := r.turns.order[rank]
		if promised, _ := r.line.promised.score(t.member); promised > b {
			r.byTurns = max(r.byTurns, r.earliest(promised, r.ahead.permitsFrom(t.score), r.cost))
		}
	}
}

// onlyTurnsDelay says that only turns ahead of the job put it off until an instant: then
// it does not exist for jobs of other policies, as they do not.
func (r *ruleCall) onlyTurnsDelay(at int64) bool { return r.byTurns == at && r.byLedger < at }

// leftLine says that the job waited here, and does not any more.
func (r *ruleCall) leftLine() bool {
	ticket, in := r.line.score(r.member)
	return r.place == waits && (!in || isParked(ticket))
}

// admitsSince is from when on the ledger admits the job, which may be past.
func (r *ruleCall) admitsSince() int64 {
	if r.state.newest() == 0 && r.closed == 0 {
		return 0
	}
	return r.earliest(r.closed, r.ahead.permits(), r.cost)
}

// park lets those who are late hold up nobody.
func (r *ruleCall) park() {
	if r.kind == limitscripts.Leases {
		r.missed = append(append(r.missed, r.view.late...), r.lateTurns()...)
	}
	r.line.park(r.view)
	turns := r.lateTurns()
	for _, m := range turns {
		ticket, _ := r.turns.score(m)
		r.line.add(m, ticket-parkOffset)
		r.line.kept.drop(m)
	}
	for _, m := range r.deadTurns {
		if m != r.member { // the job may have got that turn now
			r.turns.drop(m)
		}
	}
	if len(r.view.late)+len(turns) > 0 {
		r.line.keep(r.now, r.now, r.extra)
	}
}

// outlive keeps a ledger that was written under another limit for as long as the
// one in force counts with it. It may have been of a shorter window.
func (r *ruleCall) outlive() {
	if g := &r.ledger; g.state != nil && (g.figures != r.figures || g.version != r.version) {
		g.expires = max(g.expires, expiry(r.now, r.state.life(r.numbers)-r.now+r.extra))
	}
}

// store writes the state; what was never spent on is not written.
func (r *ruleCall) store() {
	if r.state.newest() > 0 {
		r.ledger.keep(r.numbers, r.state, r.now, r.extra)
	}
}

// heldAt is the instant of a token's grant, negative when it was withdrawn. Of a lease it is
// the instant of the last renewal, or of the grant when it was not renewed yet.
func (r *ruleCall) heldAt(token uint64) (at int64, known bool) {
	if r.kind == limitscripts.Leases {
		switch end, known := r.tokens.score(token); {
		case known && end > r.now: // the length of a lease may be a shorter one by now
			return min(end-r.w, max(r.now, r.state.newest())), true
		case known && end < 0:
			return end, true
		}
		return 0, false
	}
	if token != 0 && r.ledger.token == token {
		return r.state.newest(), true
	}
	at, known = r.tokens.score(token)
	switch {
	case at < -adjustmentOffset:
		return -at - adjustmentOffset, true
	case at > 0 && at+resentWithin <= r.now: // no copy of its call is expected any more
		r.tokens.drop(token)
		return 0, false
	}
	return at, known
}

// granted is the instant of the grant that a token's holder corrects. The first rule of a
// call remembers its token; the others know it when it is that of their newest grant, or of an adjustment, and
// else go by what the first one found. Of a grant whose
// token is forgotten it is what the holder tells, if there may have been one then. 0 or less is
// none.
func (r *ruleCall) granted(token uint64, first int64) int64 {
	held, known := r.heldAt(token)
	if !known && r.index > 1 && r.kind != limitscripts.Leases {
		held, known = first, first != 0
	}
	if known || r.kind == limitscripts.Leases || r.ledger.state == nil || r.statedAt == 0 {
		return held
	}
	if r.statedAt <= r.state.newest() && r.statedAt+resentWithin <= r.now && r.now < r.statedUntil {
		return r.statedAt
	}
	return 0
}

// free is how many permits are to be had right now.
func (r *ruleCall) free(someWait bool) int {
	ahead := r.state.newest() > r.now && r.kind != limitscripts.Leases // a grant ahead holds back all others
	if someWait || r.closed > 0 || ahead {
		return 0
	}
	return int(max(0, r.state.free(r.numbers, r.now)))
}

// place is where a job stands on the key of a rule.
type place int

const (
	nowhere place = iota
	waits         // in the line: this rule holds it up
	parked        // parked in the line: it holds up nobody, and finds its turn again
	turn          // among the turns: this rule admitted it, and a wider one holds it up
)

// takePlace gives the job a place and a promise. A job that has a ticket keeps it, and a
// newcomer comes behind all.
func (r *ruleCall) takePlace(to place, at int64) {
	r.line.promised.add(r.member, at)
	switch r.place {
	case to:
		if to == turn { // it may be one by another policy
			r.mix()
			r.turns.add(r.member, r.ticket)
		}
	case nowhere:
		r.put(to, r.lastTicket())
		r.clear()
	default:
		r.put(to, r.ticket)
	}
	r.keep(at)
}

// put moves the job to a place, and notes when costs differ there.
func (r *ruleCall) put(to place, ticket int64) {
	defer func() { r.nobody = false }()
	if to == turn {
		r.line.drop(r.member)
		r.mix()
		if r.nobody {
			*r.turns = set{}
		}
		r.turns.add(r.member, ticket)
		r.line.kept.add(r.member, ticket)
		return
	}
	if !r.nobody {
		r.turns.drop(r.member)
	}
	r.line.kept.drop(r.member)
	if to == parked {
		r.line.add(r.member, ticket-parkOffset)
		return
	}
	r.mix()
	r.line.add(r.member, ticket)
}

// keepsTurn says whether a job has a turn at a rule while the binding rule holds it up: in the narrower groups, which
// admitted it, and in that of the binding rule. A job that waits for a lease keeps none at the rates of its key, nor at wider ones.
func (r *ruleCall) keepsTurn(binding *ruleCall, turns turnsKept) bool {
	switch {
	case r.kind == limitscripts.Leases || turns == noTurns:
		return false
	case turns == heldTurns && r.place != waits && r.place != turn:
		return false
	}
	return r.group < binding.group || r.group == binding.group && binding.kind != limitscripts.Leases
}

// stepAside leaves the job its ticket where another rule goes before this one.
func (r *ruleCall) stepAside(at int64) {
	if r.place == waits || r.place == turn {
		r.leftTurn = r.place == turn
		r.put(parked, r.ticket)
		r.keep(at)
	}
}

// leave gives up the job's place.
func (r *ruleCall) leave() {
	r.line.squeezeOut(r.ticketOf(r.member), r.unitsOf(r.cost))
	r.line.drop(r.member)
	r.turns.drop(r.member)
	r.line.kept.drop(r.member)
	r.line.promised.drop(r.member)
	if r.line.len() > 0 || r.line.anyPromise() {
		return
	}
	over := []string{mixed, squeezed, lastPostponed, postponedIn}
	if r.closed == 0 {
		over = append(over, closed, closedSince) // the closing is over
	}
	for _, name := range over {
		r.line.promised.drop(name)
	}
	if r.closed == 0 {
		r.line.liveUntil(expiry(r.now, refusedWithin+r.extra)) // what is left are tickets of jobs that were granted
	}
}

// leaveGranted takes a job out that is granted, and keeps its ticket, because a later hash slot may refuse. A job that has none gets
// the last one, when anybody else has a place here, or may come back. Of very many jobs it keeps the last tickets.
func (r *ruleCall) leaveGranted() {
	granted := &r.line.granted
	if r.member == "" || r.nobody {
		return
	}
	until := r.line.until()
	for granted.len() >= grantedMost {
		granted.drop(granted.order[0].member)
	}
	ticket := r.ticket
	if r.place == nowhere {
		ticket = r.lastTicket()
	}
	granted.add(r.member, ticket)
	r.line.mark(anyGranted, 0)
	r.line.liveUntil(until)
	r.leave()
}

// ticketOf is that of a member in the line or among the turns, 0 for none.
func (r *ruleCall) ticketOf(m string) int64 {
	if ticket, in := r.line.score(m); in {
		return ticket
	}
	ticket, _ := r.line.kept.score(m)
	return ticket
}

func (r *ruleCall) keep(at int64) {
	r.line.keep(at, r.now, r.extra)
	r.turns.live(r.now, at-r.now+parkedFor+r.extra)
}

// mix notes that costs differ: this job's is not that of the first job in line, or of the
// first turn.
func (r *ruleCall) mix() {
	if r.nobody {
		return
	}
	own := costOf(r.member)
	at := r.line.below(unparkedFrom)
	if at < r.line.len() && costOf(r.line.order[at].member) != own || r.turns.len() > 0 && costOf(r.turns.order[0].member) != own {
		r.line.mix()
	}
}

// lastTicket is the ticket behind all, a whole number of rooms, as firstTicket.
func (r *ruleCall) lastTicket() int64 {
	ticket := int64(0)
	after := func(s *set, rank int) {
		if 0 <= rank && rank < s.len() {
			last := s.order[rank]
			ticket = max(ticket, r.ticketBehind(costOf(last.member), rooms(unparked(last.score)+room-1)*room))
		}
	}
	after(&r.line.set, r.line.below(unparkedFrom)-1)
	after(&r.line.set, r.line.len()-1)
	after(&r.line.kept, r.line.kept.len()-1)
	after(&r.line.granted, r.line.granted.len()-1)
	return ticket
}

// firstTicket is the ticket before all, also before the turns of all policies.
func (r *ruleCall) firstTicket() int64 {
	ticket, some := int64(0), false
	before := func(s *set, rank int) {
		if rank < s.len() {
			if t := r.ticketBefore(costOf(r.member), rooms(unparked(s.order[rank].score))*room); !some || t < ticket {
				ticket, some = t, true
			}
		}
	}
	before(&r.line.set, 0)
	before(&r.line.set, r.line.below(unparkedFrom))
	before(&r.line.kept, 0)
	before(&r.line.granted, 0)
	return ticket
}

// ticketAgain is the ticket that was kept of a job. Its grant comes back, because a later hash slot refuses. There are two cases in which no
// ticket was kept. When too many jobs were granted after it, the job goes before all. When nobody had a place here at the grant, all who
// wait came later. Then the job goes before the line, and behind all turns when the line is empty.
func (r *ruleCall) ticketAgain() int64 {
	ticket, some := r.line.granted.score(r.member)
	switch {
	case some:
		r.line.granted.drop(r.member)
		if ticket%room != 0 {
			r.line.mark(squeezed, r.line.squeezedIn()+r.unitsOf(r.cost))
		}
		return ticket
	case r.line.read(r.member, r.now).front != "" || r.line.granted.len() >= grantedMost:
		return r.firstTicket()
	}
	return r.lastTicket()
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
func (r *ruleCall) clear() {
	promised, turns := &r.line.promised, r.lateTurns()
	outdated := promised.order[:min(lateMost, promised.below(r.now-parkedFor+1))]
	for _, g := range append([]scored[string](nil), outdated...) {
		if ticket, ok := r.line.score(g.member); (!ok || isParked(ticket)) && !slices.Contains(turns, g.member) {
			r.line.squeezeOut(r.ticketOf(g.member), r.unitsOf(costOf(g.member)))
			r.line.drop(g.member)
			r.line.kept.drop(g.member)
			promised.drop(g.member)
		}
	}
}

// open makes the state what the numbers of the call see.
func (r *ruleCall) open() {
	r.nobody = r.line.empty()
	r.closed = max(r.ruleClosed, r.line.closedUntil(r.now))
	r.state = r.ledger.under(r.numbers)
	if l, ok := r.state.(*leases); ok {
		l.tokens, l.now = &r.tokens, r.now
	}
}

// await counts a job that waits for an opening, and returns when it is to come; one that would come after
// `latest` does not count. If all jobs came at once, the rule that they share would refuse them.
func (r *ruleCall) await(g gate, opens, latest int64) int64 {
	m := strconv.FormatInt(opens, 10)
	before, known := r.opening.score(m)
	at := g.spread(opens, whole(math.Floor(float64(before)*float64(r.w)/float64(r.n))))
	if at > latest {
		return at
	}
	if !known {
		r.forgetOpenings()
	}
	r.opening.add(m, before+r.cost)
	r.opening.live(r.now, at-r.now+openingKnownFor+r.extra)
	return at
}

// forgetOpenings drops some that are long past, or a busy key would keep all.
func (r *ruleCall) forgetOpenings() {
	for _, o := range slices.Clone(r.opening.order[:min(lateMost, r.opening.len())]) {
		if opened, _ := strconv.ParseInt(o.member, 10, 64); opened+openingKnownFor < r.now { // our own text
			r.opening.drop(o.member)
		}
	}
}

// findDeadTurns finds the first turns, as far as they hold up nobody: their jobs are late, or do not keep them any
// more, because another policy has asked for these jobs. At most lateMost.
func (r *ruleCall) findDeadTurns() []string {
	if r.nobody {
		return nil
	}
	var out []string
	for _, t := range r.turns.order[:min(lateMost, r.turns.len())] {
		if r.keeps(t) && (t.member == r.member || !r.line.overdue(t.member, r.now)) {
			break
		}
		out = append(out, t.member)
	}
	return out
}

// keeps says that a job keeps a turn.
func (r *ruleCall) keeps(t scored[string]) bool {
	ticket, kept := r.line.kept.score(t.member)
	return kept && ticket == t.score
}

// lateTurns are those of deadTurns whose jobs are late, and are to be parked. The jobs of the others do not keep them any more.
func (r *ruleCall) lateTurns() []string {
	return slices.DeleteFunc(slices.Clone(r.deadTurns), func(m string) bool {
		ticket, _ := r.turns.score(m)
		return m == r.member || !r.keeps(scored[string]{ticket, m})
	})
}
