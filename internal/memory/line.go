package memory

import (
	"strconv"
	"strings"

	"github.com/headwayq/headway/internal/luascripts"
)

const (
	grace    = 100_000       // how long after its last promise a head keeps its place
	late     = 3_600_000_000 // how long it stays parked
	lateMost = 20            // how many are parked by one call
	park     = 1 << 52       // how much lower the ticket of one who is parked is
	live     = -park / 2     // the lowest ticket of one who is not
)

// line is who waits, by tickets: that of the one before plus its cost. Who
// comes too late is parked, keeps its ticket and holds up nobody. A member is
// the text "cost:job".
type line struct {
	sorted[string]
	promised sorted[string] // the instants told last
	mixed    bool           // costs differ, or did
	expires  int64
}

func member(m luascripts.Member) string {
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

func parked(ticket int64) bool { return ticket < live }

// turnOf is a ticket as it is, or was before its owner was parked.
func turnOf(ticket int64) int64 {
	if parked(ticket) {
		return ticket + park
	}
	return ticket
}

// view is the line at an instant: the parked, the late, and from first on those
// who wait.
type view struct {
	first, last, parked int
	late                []string
	head                string // "" when nobody waits
}

func (q *line) look(me string, now int64) view {
	v := view{last: q.len()}
	v.parked = q.below(live)
	for v.first = v.parked; v.first < v.last; v.first++ {
		m := q.order[v.first].member
		told, known := q.promised.score(m)
		if m == me || len(v.late) == lateMost || known && told+grace >= now {
			v.head = m
			return v
		}
		v.late = append(v.late, m)
	}
	return v
}

func (q *line) park(v view) {
	for _, m := range v.late {
		if ticket, ok := q.score(m); ok && !parked(ticket) {
			q.add(m, ticket-park)
		}
	}
}

// before counts the permits of those from rank first up to rank. Equal costs
// are counted exactly; with mixed costs tickets bound it from above.
func (q *line) before(first, rank int) int64 {
	if rank <= first {
		return 0
	}
	head := q.order[first]
	if !q.mixed {
		return int64(rank-first) * costOf(head.member)
	}
	last := q.order[rank-1]
	return last.score + costOf(last.member) - head.score
}

// place is the rank of a ticket among those who are not parked, or what it
// would be.
func (q *line) place(ticket int64) int { return q.below(turnOf(ticket)) }

// mix notes that costs differ, when mine is not that of the first who waits.
func (q *line) mix(parked int, cost int64) {
	if parked < q.len() && costOf(q.order[parked].member) != cost {
		q.mixed = true
	}
}

// join puts me at the end, and clears away who was late for too long.
func (q *line) join(v view, me string, at, now int64) {
	ticket := int64(0)
	for _, rank := range []int{v.parked - 1, q.len() - 1} {
		if rank >= 0 {
			p := q.order[rank]
			ticket = max(ticket, turnOf(p.score)+costOf(p.member))
		}
	}
	q.add(me, ticket)
	q.promised.add(me, at)
	q.mix(v.parked, costOf(me))
	gone := q.promised.order[:min(lateMost, q.promised.below(now-late+1))]
	for _, p := range append([]scored[string](nil), gone...) {
		if ticket, ok := q.score(p.member); !ok || parked(ticket) {
			q.remove(p.member)
			q.promised.remove(p.member)
		}
	}
}

// rejoin takes me, who was parked, back to my turn.
func (q *line) rejoin(v view, me string, at int64) {
	q.promised.add(me, at)
	q.mix(v.parked, costOf(me))
	ticket, _ := q.score(me)
	q.add(me, ticket+park)
}

// joinHead gives me the first place: a grant came back.
func (q *line) joinHead(me string, at int64) {
	ticket := int64(0)
	first := q.below(live)
	for i, rank := range []int{0, first} {
		if rank < q.len() {
			turn := turnOf(q.order[rank].score) - costOf(me)
			if i == 0 || turn < ticket {
				ticket = turn
			}
		}
	}
	q.promised.add(me, at)
	q.mix(first, costOf(me))
	q.add(me, ticket)
}

func (q *line) leave(me string) {
	q.remove(me)
	q.promised.remove(me)
	if q.len() == 0 {
		*q = line{}
	}
}

// keep makes the line outlive a promise by the time that somebody stays parked.
func (q *line) keep(at, now, extra int64) {
	q.expires = max(q.expires, expiry(now, at-now+late+extra))
}

// next is the first who waits and its instant, when that is earlier than
// promised.
func (q *line) next(l *numbers, s state, now int64) luascripts.Turn {
	v := q.look("", now)
	if v.head == "" {
		return luascripts.Turn{}
	}
	at := slot(l, s, now, 0, costOf(v.head))
	told, _ := q.promised.score(v.head)
	if told-at <= 1000 {
		return luascripts.Turn{}
	}
	return luascripts.Turn{At: instantOf(at), Job: jobOf(v.head)}
}
