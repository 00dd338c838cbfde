package throttle_test

import (
	"maps"
	"slices"
	"time"

	"github.com/headwayq/headway/throttle"
)

// model is `sliding n/W` with its line in plain Go, written from the package
// comment and not from the scripts. Times are microseconds.
//
// Two answers are left open by the package comment: how far a refund frees more
// than its own permits, and what a line of mixed costs promises behind its
// head. There the model knows bounds, and goes on with what was answered;
// without refunds and with equal costs the bounds are one.
type model struct {
	n             int
	mixed         bool // the costs of jobs differ
	window        int64
	inline, grace int64
	spent         []spent // ever, in order of time
	withdrawn     map[throttle.Token]int64
	line          []place
	parked        map[string]place // too late, and out of the line until they come
	told          map[string]int64 // the last promise, also of those who came too late
}

type spent struct {
	at       int64
	cost     int
	token    throttle.Token
	job      string
	refunded bool
	gone     bool // the state that knew it was reset or lost
}

type place struct {
	job    string
	cost   int
	ticket int
}

// bounds are the earliest and the latest right answer.
type bounds struct{ lo, hi int64 }

func (b bounds) hold(at int64) bool { return b.lo <= at && at <= b.hi }

func newModel(n int, window time.Duration) *model {
	return &model{
		n: n, window: window.Microseconds(), inline: 50_000, grace: 100_000,
		withdrawn: map[throttle.Token]int64{}, told: map[string]int64{}, parked: map[string]place{},
	}
}

// permits are the instants of the permits that count, in order. A refunded one
// does not count at all, or from the other side: it counts as if it had been
// spent a window earlier, so that it frees nothing before its own instant.
func (m *model) permits(withRefunded bool) []int64 {
	var out []int64
	for _, g := range m.spent {
		at := g.at
		switch {
		case g.gone || g.refunded && !withRefunded:
			continue
		case g.refunded:
			at -= m.window
		}
		for range g.cost {
			out = append(out, at)
		}
	}
	slices.Sort(out)
	return out
}

// slot is the instant of the k-th permit from now.
func (m *model) slot(counted []int64, now int64, k int) int64 {
	at := now
	if len(counted) > 0 {
		at = max(at, counted[len(counted)-1])
	}
	if back := m.n - (k-1)%m.n; back <= len(counted) {
		at = max(at, counted[len(counted)-back]+m.window)
	}
	return at + m.window*int64((k-1)/m.n)
}

// instant is the slot behind at least lo and at most hi permits.
func (m *model) instant(now int64, lo, hi, cost int) bounds {
	return bounds{m.slot(m.permits(false), now, lo+cost), m.slot(m.permits(true), now, hi+cost)}
}

// lateHeads are those at the head of the line who came too late for their
// promise: they hold up nobody.
func (m *model) lateHeads(now int64, me string) []place {
	late := 0
	for late < len(m.line) && late < 20 && m.line[late].job != me && m.told[m.line[late].job]+m.grace < now {
		late++
	}
	return slices.Clone(m.line[:late])
}

func (m *model) rank(job string) int {
	return slices.IndexFunc(m.line, func(p place) bool { return p.job == job })
}

// ahead counted the permits of places from..to: exactly, and as tickets do.
func (m *model) ahead(from, to int) (exact, tickets int) {
	if to <= from {
		return 0, 0
	}
	for _, p := range m.line[from:to] {
		exact += p.cost
	}
	if !m.mixed {
		return exact, exact
	}
	return exact, max(exact, m.line[to-1].ticket+m.line[to-1].cost-m.line[from].ticket)
}

func (m *model) leave(job string) {
	delete(m.told, job)
	delete(m.parked, job)
	if i := m.rank(job); i >= 0 {
		m.line = slices.Delete(m.line, i, i+1)
	}
}

// drop takes places out of the line; what was told to them is kept, and with
// it their turn.
func (m *model) drop(late []place) {
	for _, p := range late {
		m.parked[p.job] = p
	}
	m.line = slices.DeleteFunc(m.line, func(p place) bool {
		return slices.ContainsFunc(late, func(l place) bool { return l.job == p.job })
	})
}

func (m *model) join(job string, cost int, at int64) {
	p := place{job: job, cost: cost}
	if len(m.line) > 0 {
		last := m.line[len(m.line)-1]
		p.ticket = max(p.ticket, last.ticket+last.cost)
	}
	if parked := m.inTickets(); len(parked) > 0 {
		last := parked[len(parked)-1]
		p.ticket = max(p.ticket, last.ticket+last.cost)
	}
	m.line = append(m.line, p)
	m.told[job] = at
}

// inTickets are those who are parked, in order.
func (m *model) inTickets() []place {
	return slices.SortedFunc(maps.Values(m.parked), func(a, b place) int { return a.ticket - b.ticket })
}

// place is where a job stands in the line, or would when it comes late.
func (m *model) place(job string) int {
	if i := m.rank(job); i >= 0 {
		return i
	}
	return len(slices.DeleteFunc(slices.Clone(m.line), func(p place) bool { return p.ticket >= m.parked[job].ticket }))
}

func (m *model) rejoin(job string, at int64) {
	m.line = slices.Insert(m.line, m.place(job), m.parked[job])
	delete(m.parked, job)
	m.told[job] = at
}

func (m *model) joinHead(job string, cost int, at int64) {
	p := place{job: job, cost: cost}
	if all := append(m.inTickets(), m.line...); len(all) > 0 {
		p.ticket = slices.MinFunc(all, func(a, b place) int { return a.ticket - b.ticket }).ticket - cost
	}
	if i := m.rank(job); i >= 0 {
		m.line = slices.Delete(m.line, i, i+1)
	}
	delete(m.parked, job)
	m.line = slices.Insert(m.line, 0, p)
	m.told[job] = at
}

func (m *model) spend(g spent) {
	m.spent = append(m.spent, g)
	slices.SortStableFunc(m.spent, func(a, b spent) int { return int(a.at - b.at) })
}

func (m *model) find(token throttle.Token) *spent {
	for i := range m.spent {
		if m.spent[i].token == token && !m.spent[i].refunded && !m.spent[i].gone {
			return &m.spent[i]
		}
	}
	return nil
}

// forget is what a reset does, or the loss of the ledger.
func (m *model) forget() {
	for i := range m.spent {
		m.spent[i].gone = true
	}
}

// over answers the first window that holds more than n permits.
func (m *model) over() (from int64, used int, over bool) {
	live := m.permits(false)
	for i := range live {
		if i+m.n < len(live) && live[i+m.n] < live[i]+m.window {
			return live[i], m.n + 1, true
		}
	}
	return 0, 0, false
}

// free is how many permits a newcomer could have now if nobody waits.
func (m *model) free(withRefunded bool, now int64) int {
	used := 0
	for _, at := range m.permits(withRefunded) {
		if at > now {
			return 0
		}
		if at+m.window > now {
			used++
		}
	}
	if len(m.line) > len(m.lateHeads(now, "")) {
		return 0
	}
	return max(0, m.n-used)
}

// counting says whether the ledger holds anything.
func (m *model) counting() bool { return len(m.permits(true)) > 0 }
