package memory

import (
	"slices"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// state is what an algorithm keeps of a key. Only charge and back change it.
// Nothing is granted before the newest grant: wherever now counts, it is the
// later of the two, so that a clock that goes backwards credits nothing.
type state interface {
	// newest is the instant of the newest grant, 0 when there is none.
	newest() int64

	// earliest is the instant of a job if all ahead of it, with `before` permits,
	// go as early as they can. now = 0 asks since when.
	earliest(l *numbers, now, before, cost int64) int64

	// charge spends at an instant that earliest gave.
	charge(l *numbers, at, cost int64)

	// back gives a grant back at a; worth is what worth said after its charge,
	// 0 when nobody knows.
	back(l *numbers, at, cost, worth, a int64)
	worth(l *numbers) int64

	// free is how many permits are to be had.
	free(l *numbers, now int64) int64

	// life is until when the state matters.
	life(l *numbers) int64

	// grants are the late ones, for a state of another kind; l is the new limit.
	grants(l *numbers) []grant

	// carriedOver is the state as if the limit had been changed right after the newest
	// grant. What it is told must not depend on now: until the next grant nothing
	// is written, and an instant that moves on with the clock never comes.
	carriedOver(old, l *numbers) state
}

// grant is that so many permits went at an instant.
type grant struct{ at, many int64 }

// ledger is what was spent on a key.
type ledger struct {
	figures           // those of the last write
	state      state  // nil when nothing was spent
	version    int64  // of the limit that it was written under
	token      uint64 // of the newest grant; 0 is nobody
	remembered bool   // that token is remembered besides: by `tokens`, or by the first rule of its call
	expires    int64  // in milliseconds
}

func fresh(l *numbers) state {
	switch l.kind {
	case limitscripts.Sliding:
		return &sliding{}
	case limitscripts.Fixed:
		return &fixed{}
	case limitscripts.Calendar:
		return &calendar{}
	case limitscripts.GCRA:
		return &gcra{}
	case limitscripts.Step:
		return &step{have: l.burst}
	case limitscripts.Smooth:
		return &smooth{}
	case limitscripts.WarmUp:
		return &warmUp{}
	case limitscripts.Leases:
		return &leases{}
	}
	panic("memory: a limit of an unknown kind")
}

// under is the state as the numbers of a call see it. It is the ledger's own
// when these did not change, and a copy otherwise.
func (led *ledger) under(l *numbers) state {
	switch {
	case led.state == nil:
		return fresh(l)
	case led.figures == l.figures:
		return led.state
	}
	var s state
	switch {
	case led.kind == l.kind:
		s = led.state.carriedOver(&numbers{figures: led.figures}, l)
	case l.kind == limitscripts.Leases: // who was granted permits holds none of them
		return fresh(l)
	default:
		s = replay(l, led.state.grants(l))
	}
	if c, ok := s.(counted); ok {
		// also when all of it was given back: nothing goes before it
		c.count().at = max(s.newest(), led.state.newest())
		c.count().changed = c.count().at
	}
	return s
}

// farthest is the year 2184: what is further away is told so, as the scripts do.
const farthest = 1<<53 - 1<<51 - 1

// earliest is the instant at which cost permits go behind `before` others.
func earliest(l *numbers, s state, now, before, cost int64) int64 {
	return min(s.earliest(l, now, before, cost), farthest)
}

// counted is a state with a counter.
type counted interface{ count() *counter }

// refund gives a grant back at a, or a part of it. What went before the limit was changed stays
// spent, and nothing changes: how much of it the new state counts is not known.
// The same goes for what was nothing under this limit, as a lease is, which is known
// by its end.
// Nor does anything change where a log was written over since.
func refund(l *numbers, s state, at, cost, worth, a int64) (changed bool) {
	if at > s.newest() {
		return false
	}
	if c, ok := s.(counted); ok && (c.count().taken == 0 || at <= c.count().changed) {
		return false
	}
	if log, ok := s.(*sliding); ok && log.after(at) == log.after(at-1) {
		return false
	}
	s.back(l, at, cost, worth, a)
	return true
}

// carriedMore is how many permits a log takes over beyond twice what its limit holds: CHUNK of sliding.lua.
const carriedMore = 2000

// replay is the state of a key on which these were granted. A log keeps more of
// them than the new limit looks at, for a refund would make holes otherwise. It does not keep all: a limit
// in bytes may have granted 2^40.
func replay(l *numbers, grants []grant) state {
	s := fresh(l)
	if log, ok := s.(*sliding); ok {
		left := 2*l.n + carriedMore
		for i, g := range slices.Backward(grants) {
			grants[i].many = min(g.many, left)
			left -= grants[i].many
		}
		for _, g := range grants {
			log.spend(len(log.ring)+int(g.many), g.at, int(g.many))
		}
		return log
	}
	for _, g := range grants {
		s.charge(l, g.at, g.many)
	}
	return s
}

// stricter says whether permits come more slowly than they did.
func (l *numbers) stricter(old *numbers) bool {
	return float64(l.w)*float64(old.n) > float64(old.w)*float64(l.n)
}

// keep stores a state under the numbers of a call.
func (led *ledger) keep(l *numbers, s state, now, extra int64) {
	led.figures, led.state, led.version = l.figures, s, l.version
	led.expires = max(led.expires, expiry(now, s.life(l)-now+extra))
}

// expiry is when a key is forgotten that must live so many microseconds: whole
// milliseconds, with as many to spare as the scripts give.
func expiry(now, us int64) int64 { return now/1000 - floorDiv(-us, 1000) + 50 }

// numbers are those of a limit, in microseconds and permits.
type numbers struct {
	figures
	version int64   // of the limit
	bounds  []int64 // of a calendar, from the call; a ledger does not keep them
}

// figures are what a ledger remembers of the limit that it was written under.
type figures struct {
	kind  limitscripts.Kind
	n, w  int64
	burst int64
	warm  int64
	cold  int64 // thousandths
	short int64
}

func numbersOf(a limitscripts.Numbers) *numbers {
	l := &numbers{version: a.Version, figures: figures{
		kind: a.Kind, n: int64(a.Permits), w: micros(a.Window),
		burst: int64(a.Burst), warm: micros(a.Warm), cold: int64(a.ColdMilli), short: micros(a.Short),
	}}
	for _, b := range a.Bounds {
		l.bounds = append(l.bounds, b.UnixMicro())
	}
	return l
}

// counts is for how long, at most, a permit counts.
func (l *numbers) counts() int64 { return l.w * ceilDiv(max(l.n, l.burst), l.n) }

// noDebt says that the limit holds no more than it admits. What is charged above that is not known afterwards, so
// a charge above it spends what is free: all of it given back would free what others spent.
func (l *numbers) noDebt() bool {
	return l.kind == limitscripts.Sliding || l.kind == limitscripts.GCRA || l.kind == limitscripts.Step
}

// unitsMost is how many units the largest cost of a limit has, about.
const unitsMost = 1 << 20

// unit is how many permits one unit of a ticket is.
func (l *numbers) unit() int64 {
	unit := int64(1)
	for max(l.n, l.burst) > unitsMost*unit {
		unit *= 2
	}
	return unit
}

// unitsOf is how many units a job of this cost takes. Each has a room, as far as coarseStart.
func (l *numbers) unitsOf(cost int64) int64 { return min(ceilDiv(cost, l.unit()), unitsMost) }

// ticketBehind is the ticket behind a job of this cost, which has a ticket. Tickets count up as long as a line is never
// empty, and have a bound. So from coarseStart on a room stands for many units.
func (l *numbers) ticketBehind(cost, ticket int64) int64 {
	end := ticket + l.unitsOf(cost)*room
	if from := max(ticket, coarseStart); end > from {
		return from + ceilDiv(end-from, room*coarseUnits)*room
	}
	return end
}

// ticketBefore is the last ticket, of whole rooms, from which a job of this cost ends at a ticket, or before it.
func (l *numbers) ticketBefore(cost, ticket int64) int64 {
	units := l.unitsOf(cost)
	large := min(max(0, ticket-coarseStart)/room, ceilDiv(units, coarseUnits))
	return ticket - (large+max(0, units-large*coarseUnits))*room
}

// covers says whether a calendar knows the window of now.
func (l *numbers) covers(now int64) bool {
	if l.kind != limitscripts.Calendar {
		return true
	}
	last := len(l.bounds) - 1
	return last > 0 && l.bounds[0] <= now && now < l.bounds[last]
}

// micros are whole microseconds, rounded up: never early.
func micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++
	}
	return us
}

// instantOf is the time of an instant; 0 is the zero time.
func instantOf(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// microsOf is an instant in microseconds; 0 is the zero time.
func microsOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
