package memory

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/headwayq/headway/internal/limitscripts"
)

const (
	grace      = 100_000       // how long after its last promise the first job of a line keeps its place
	parkedFor  = 3_600_000_000 // how long a job stays parked
	lateMost   = 20            // how many are parked by one call
	parkOffset = 1 << 52       // is taken off the ticket of a job that is parked

	refusedWithin = 5_000_000 // how long the tickets of jobs that were granted are kept when nobody else is there
	grantedMost   = 64        // of so many jobs the tickets are kept when they are granted

	unparkedFrom = -parkOffset / 2 // the lowest ticket of a job that is not parked

	room        = 4096    // between two tickets: jobs that are put off stand there
	coarseStart = 1 << 50 // from this ticket on a room stands for coarseUnits units, see ticketBehind
	coarseUnits = 1024

	wholeJobs        = 32 // where costs differ, so many of the jobs ahead are looked at one by one
	permitsAheadMost = 1 << 52
)

// What stands among the promises and is nobody's. The last four and anyGranted have parkOffset added:
// nothing among the promises is cleared away that lies so far ahead.
const (
	mixed         = "mixed"   // costs differ, or did
	anyGranted    = "granted" // any ticket of a job that was granted is kept, or was
	closed        = "closed"  // until when the key is closed
	closedSince   = "closed since"
	lastPostponed = "postponed last" // as line.lua has it: the ticket of the job that was postponed last
	postponedIn   = "postponed in"   // since when the key was closed then
	squeezed      = "squeezed"       // units of the jobs that stand between whole rooms
)

// line is the jobs that wait, by tickets. A ticket is that of the job before, plus room for
// each permit of that job, or for each so many of a large limit, see ticketBehind. A job that comes too late is parked: it keeps its ticket and
// holds up nobody. A member is the text "cost:job". Tickets and promises are forgotten
// together.
type line struct {
	set
	promised set // the instants promised last, also to jobs that keep a turn
	kept     set // tickets of the jobs that keep a turn, by whatever policy
	granted  set // tickets of jobs that were granted here, and that a later hash slot may refuse
}

// live never shortens what the line has.
func (ln *line) live(now, us int64) {
	ln.liveUntil(max(ln.until(), expiry(now, us)))
}

func (ln *line) until() int64 { return max(ln.expires, ln.promised.expires, ln.granted.expires) }

func (ln *line) liveUntil(ms int64) {
	for _, s := range []*set{&ln.set, &ln.promised, &ln.kept, &ln.granted} {
		if s.len() > 0 {
			s.expires = ms
		}
	}
}

func (ln *line) expire(ms int64) {
	if ms > ln.until() {
		*ln = line{}
	}
}

// empty says that the key has no line.
func (ln *line) empty() bool {
	return ln.len()+ln.promised.len()+ln.kept.len()+ln.granted.len() == 0
}

func memberOf(m limitscripts.Member) string {
	if m.Job == "" {
		return ""
	}
	return strconv.Itoa(m.Cost) + ":" + m.Job
}

func costOf(member string) int64 {
	text, _, _ := strings.Cut(member, ":")
	cost, _ := strconv.ParseInt(text, 10, 64) // our own text
	return cost
}

func jobOf(member string) string {
	_, job, _ := strings.Cut(member, ":")
	return job
}

func isParked(ticket int64) bool { return ticket < unparkedFrom }

// unparked is a ticket as it was before its job was parked, or as it is.
func unparked(ticket int64) int64 {
	if isParked(ticket) {
		return ticket + parkOffset
	}
	return ticket
}

// isMixed says that tickets have to be counted, and not members.
func (ln *line) isMixed() bool {
	_, is := ln.promised.score(mixed)
	return is
}

// marked is the value of one of those with parkOffset added.
func (ln *line) marked(name string) (int64, bool) {
	v, ok := ln.promised.score(name)
	return v - parkOffset, ok
}

func (ln *line) mark(name string, v int64) { ln.promised.add(name, v+parkOffset) }

// squeezedIn are the units that tickets do not show.
func (ln *line) squeezedIn() int64 {
	if n, some := ln.marked(squeezed); some {
		return n
	}
	return 0
}

// squeezeOut takes the units of one who leaves off them, if its ticket is no whole
// room.
func (ln *line) squeezeOut(ticket, units int64) {
	switch left := ln.squeezedIn() - units; {
	case ticket%room == 0:
	case left > 0:
		ln.mark(squeezed, left)
	default:
		ln.promised.drop(squeezed)
	}
}

func (ln *line) mix() { ln.promised.add(mixed, math.MaxInt64) }

// closedUntil is 0 when the key is open.
func (ln *line) closedUntil(now int64) int64 {
	if until, _ := ln.promised.score(closed); until > now {
		return until
	}
	return 0
}

// overdue says whether one who could be the first of the line is not expected any more.
func (ln *line) overdue(m string, now int64) bool {
	promised, known := ln.promised.score(m)
	return !known || promised+grace < now
}

// anyPromise says whether any job has a place: in the line, or among the turns of some policy.
func (ln *line) anyPromise() bool {
	return slices.ContainsFunc(ln.promised.order, func(p scored[string]) bool { return jobOf(p.member) != "" })
}

// anybody says that somebody waits, late or not.
func (ln *line) anybody() bool { return ln.below(unparkedFrom) < ln.len() }

// view is the line at an instant: the parked, the late, and from first on those
// who wait.
type view struct {
	first, last, parked int
	late                []string
	front               string // "" when nobody waits
}

func (ln *line) read(job string, now int64) view {
	v := view{last: ln.len()}
	v.parked = ln.below(unparkedFrom)
	for v.first = v.parked; v.first < v.last; v.first++ {
		m := ln.order[v.first].member
		if m == job || len(v.late) == lateMost || !ln.overdue(m, now) {
			v.front = m
			return v
		}
		v.late = append(v.late, m)
	}
	return v
}

func (ln *line) park(v view) {
	for _, m := range v.late {
		if ticket, ok := ln.score(m); ok && !isParked(ticket) {
			ln.add(m, ticket-parkOffset)
		}
	}
}

// keep makes the line outlive a promise by the time that somebody stays parked.
func (ln *line) keep(at, now, extra int64) {
	ln.live(now, at-now+parkedFor+extra)
}

// ahead are those who go before a job: ranks in the line, and in the turns of
// its policy.
type ahead struct {
	line, turns         *set
	first, last         int
	firstTurn, lastTurn int
	mixed               bool
	squeezed            int64 // units that tickets do not show
	numbers             *numbers
}

// count is how many they are.
func (a ahead) count() int { return max(0, a.last-a.first) + max(0, a.lastTurn-a.firstTurn) }

// differ says that the first in the line and the first turn do not cost the same: who came to
// the line by another policy did not see these turns.
func (a ahead) differ() bool {
	return a.first < a.last && a.firstTurn < a.lastTurn && costOf(a.line.order[a.first].member) != costOf(a.turns.order[a.firstTurn].member)
}

// cost is that of the first of them, which all have where costs are not mixed.
func (a ahead) cost() int64 {
	if a.first < a.last {
		return costOf(a.line.order[a.first].member)
	}
	return costOf(a.turns.order[a.firstTurn].member)
}

// permits are all of theirs. Where costs are mixed those of the first jobs are counted, and
// tickets bound the others from above.
func (a ahead) permits() int64 {
	switch {
	case a.count() == 0:
		return 0
	case !a.mixed:
		return min(permitsAheadMost, a.permitsByCount(a.count()))
	}
	sum := int64(0)
	costs, _, next := a.firstCosts()
	for _, c := range costs {
		sum += c
	}
	if next != nil {
		sum += a.permitsByTickets(next.score)
	}
	return min(permitsAheadMost, sum)
}

// firstCosts are what the first of them cost, in their order; which of these costs is that of the first in the
// line, -1 for none; and the job after these, nil for none.
func (a ahead) firstCosts() (costs []int64, frontIndex int, next *scored[string]) {
	frontIndex = -1
	for i, j := a.first, a.firstTurn; ; {
		next = nil
		inLine := i < a.last && (j >= a.lastTurn || a.line.order[i].score <= a.turns.order[j].score)
		switch {
		case inLine:
			next = &a.line.order[i]
			i++
		case j < a.lastTurn:
			next = &a.turns.order[j]
			j++
		}
		if next == nil || len(costs) == wholeJobs {
			return costs, frontIndex, next
		}
		if inLine && frontIndex < 0 {
			frontIndex = len(costs)
		}
		costs = append(costs, costOf(next.member))
	}
}

// permitsFrom are those of a turn, which has this ticket, and of the jobs between it and the job.
func (a ahead) permitsFrom(ticket int64) int64 {
	if a.mixed {
		return a.permitsByTickets(ticket)
	}
	waiting := max(0, a.last-max(a.first, a.line.below(ticket)))
	turns := max(0, a.lastTurn-max(a.firstTurn, a.turns.below(ticket)))
	return a.permitsByCount(waiting + turns)
}

// permitsByCount are those of so many jobs, where all costs are equal.
func (a ahead) permitsByCount(jobs int) int64 { return times(int64(jobs), a.cost()) }

// permitsByTickets are, at most, those of the jobs that have this ticket or a later one, where costs are mixed.
func (a ahead) permitsByTickets(fromTicket int64) int64 {
	return (unitsBetween(fromTicket, a.end()) + a.squeezed) * a.numbers.unit()
}

// unitsBetween is how many units of permits lie between two tickets.
func unitsBetween(fromTicket, endTicket int64) int64 {
	return rooms(endTicket-fromTicket+room-1) + rooms(max(endTicket, coarseStart)-max(fromTicket, coarseStart)+room-1)*(coarseUnits-1)
}

// end is the ticket behind the last of them.
func (a ahead) end() int64 {
	var line, turns int64
	if a.first < a.last {
		p := a.line.order[a.last-1]
		line = a.numbers.ticketBehind(costOf(p.member), p.score)
	}
	if a.firstTurn < a.lastTurn {
		p := a.turns.order[a.lastTurn-1]
		turns = a.numbers.ticketBehind(costOf(p.member), p.score)
	}
	switch {
	case a.first >= a.last:
		return turns
	case a.firstTurn >= a.lastTurn:
		return line
	}
	return max(line, turns)
}

// resentWithin: when the reply to a call is lost, the call comes again within this time, in microseconds, or never.
const resentWithin = 60_000_000

// adjustmentOffset is how far below minus its instant the score of a correction is.
const adjustmentOffset = 1 << 52

// tokens are three things, told apart by their scores. Attempts that hold a grant have its
// instant. Attempts that were withdrawn have the negative time of that, or of `resentWithin` before
// their grant does not count any more. Corrections of charges lie below -adjustmentOffset.
type tokens struct {
	sorted[uint64]
	expires int64
}

// remember keeps a token as long as a copy of its call may still arrive.
func (t *tokens) remember(token uint64, at, now, extra int64) {
	if _, known := t.score(token); known || token == 0 || at+resentWithin <= now {
		return
	}
	t.add(token, at)
	t.trim(0, now-resentWithin+1)
	t.live(now, at+resentWithin-now+extra)
}

// withdraw makes a token refuse from now on, at least until an instant. One that
// refused already, of which held is the score, does not for less long.
func (t *tokens) withdraw(token uint64, held, until, now, extra int64) {
	since := max(now, until-resentWithin, -held)
	t.add(token, -since)
	t.trim(resentWithin-now+1, 0)
	t.live(now, since+resentWithin-now+extra)
}

// keepAdjustment remembers a correction as long as what it charged at an instant counts.
func (t *tokens) keepAdjustment(token uint64, at, counts, now, extra int64) {
	keep := max(counts, resentWithin)
	t.add(token, -adjustmentOffset-at)
	t.trim(keep-now-adjustmentOffset, -adjustmentOffset)
	t.live(now, at+keep-now+extra)
}

func (t *tokens) drop(token uint64) {
	t.remove(token)
	if t.len() == 0 {
		t.expires = 0
	}
}

// live never shortens what the set has.
func (t *tokens) live(now, us int64) { t.expires = max(t.expires, expiry(now, us)) }
