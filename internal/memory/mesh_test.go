package memory

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
)

// mesh is a random trace on several rules that policies share.
type mesh struct {
	*rapid.T
	*scene
	rates []*history // by rule, narrowest first
	keys  []limitscripts.LimitKeys
	slots limitscripts.Numbers
	lease limitscripts.LimitKeys
	lent  []lent
	gate  limitscripts.Gate
	spent []mark
}

// lent is a lease from its grant to its end.
type lent struct {
	token     uint64
	from, end int64
	ended     bool // also when the clock goes backward after that
}

// mark is a grant on some rules.
type mark struct {
	token uint64
	job   string
	rules []limitscripts.RuleCall
	of    []int // index in rates; -1 is the lease
	given bool  // back
}

// policies are the rules of each by index, 3 is the lease. The first two are on
// one user key.
var policies = [][]int{{0, 1, 2, 3}, {0, 2}, {1, 2, 3}, {0}, {2}, {2, 3}, {3}}

func newMesh(t *rapid.T) *mesh {
	m := &mesh{T: t, scene: newScene()}
	m.Keep(100 * time.Hour)
	for i, id := range []string{"phone", "phone", "provider"} {
		kind := rapid.SampledFrom(kinds).Draw(t, "kind")
		m.rates = append(m.rates, &history{T: t, scene: m.scene, limit: anyLimit(t, kind)})
		m.keys = append(m.keys, limitscripts.NewLimitKeys("hw", fmt.Sprint("rule", i), id))
	}
	m.slots = limitscripts.Numbers{
		Kind: limitscripts.Leases, Permits: rapid.IntRange(1, 3).Draw(t, "slots"),
		Window: rapid.SampledFrom([]time.Duration{20 * ms, time.Second, time.Minute}).Draw(t, "lease"),
	}
	m.lease = limitscripts.NewLimitKeys("hw", "slots", rapid.SampledFrom([]string{"phone", "provider", "pool"}).Draw(t, "slots of"))
	return m
}

func (m *mesh) rules(policy int, equal bool) (rules []limitscripts.RuleCall, of []int) {
	for _, rule := range policies[policy] {
		if rule == 3 {
			rules = append(rules, limitscripts.RuleCall{LimitKeys: m.lease, Numbers: m.slots, Cost: 1})
			of = append(of, -1)
			continue
		}
		h := m.rates[rule]
		cost := 1
		if !equal {
			cost = rapid.IntRange(1, costMost(h.limit)).Draw(m.T, "cost")
		}
		rules = append(rules, limitscripts.RuleCall{LimitKeys: m.keys[rule], Numbers: h.civil(h.limit), Cost: cost})
		of = append(of, rule)
	}
	return rules, of
}

// ledgers is all that was spent, as text.
func (m *mesh) ledgers() string {
	var b strings.Builder
	for _, k := range m.Store.keys.all {
		fmt.Fprintf(&b, "%s %d %v ", k.name, k.ledger.token, k.tokens.order)
		if l, ok := k.ledger.state.(*leases); ok {
			fmt.Fprintln(&b, l.last, l.fence)
		} else {
			fmt.Fprintf(&b, "%+v\n", k.ledger.state)
		}
	}
	return b.String()
}

func (m *mesh) ask(a limitscripts.AcquireArgs, of []int) limitscripts.AcquireReply {
	m.token++
	a.Token = m.token
	before := m.ledgers()
	r := m.Acquire(a)
	if r.Status != limitscripts.Granted {
		for line := range strings.SplitSeq(before, "\n") {
			if !strings.Contains(m.ledgers(), line) {
				m.Fatalf("%+v, and spent: before\n%safter\n%s", r, before, m.ledgers())
			}
		}
		return r
	}
	m.spent = append(m.spent, mark{a.Token, a.Job, a.Rules, of, false})
	for i, rule := range of {
		if rule < 0 {
			at := r.At.UnixMicro()
			m.lent = append(m.lent, lent{a.Token, at, at + m.slots.Window.Microseconds(), false})
			m.holdLeases()
			continue
		}
		h := m.rates[rule]
		h.grants = append(h.grants, given{at: r.At.UnixMicro(), cost: int64(a.Rules[i].Cost), token: a.Token, worth: r.Worth[i]})
	}
	return r
}

func (m *mesh) end(token uint64) {
	m.lent = slices.DeleteFunc(m.lent, func(l lent) bool { return l.token == token })
}

func (m *mesh) giveBack(back bool) {
	if len(m.spent) == 0 {
		return
	}
	g := &m.spent[rapid.IntRange(max(0, len(m.spent)-6), len(m.spent)-1).Draw(m.T, "which")]
	rules := append([]limitscripts.RuleCall(nil), g.rules...)
	for i, rule := range g.of {
		if rule < 0 {
			m.end(g.token)
			continue
		}
		h := m.rates[rule]
		rules[i].Numbers = h.civil(h.limit)
		for j := range h.grants {
			if h.grants[j].token == g.token {
				rules[i].Worth, h.grants[j].refunded = h.grants[j].worth, true
			}
		}
	}
	r := m.Cancel(limitscripts.CancelArgs{Rules: rules, Policy: "p", Token: g.token, Job: g.job, Back: back})
	if r.Status == limitscripts.Granted && g.given {
		m.Fatalf("given back twice: %+v", r)
	}
	g.given = true
}

func (m *mesh) useLease() {
	if len(m.lent) == 0 {
		return
	}
	l := &m.lent[rapid.IntRange(max(0, len(m.lent)-6), len(m.lent)-1).Draw(m.T, "lease")]
	rule := limitscripts.RuleCall{LimitKeys: m.lease, Numbers: m.slots, Cost: 1}
	if rapid.Bool().Draw(m.T, "release") {
		token := l.token
		m.Release(rule, token)
		m.end(token)
		return
	}
	now := m.now.UnixMicro()
	if r := m.Renew(rule, l.token); r.Held {
		if now >= l.end {
			m.Fatalf("a lease that ended at %d was renewed at %d", l.end, now)
		}
		l.end, l.ended = max(l.end, now+m.slots.Window.Microseconds()), false
		m.holdLeases()
	}
}

func (m *mesh) closeOrOpen(rules []limitscripts.RuleCall) {
	a := limitscripts.CloseArgs{Rules: rules, Rule: len(rules), Policy: "p", For: rapid.SampledFrom([]time.Duration{0, 30 * ms, time.Second}).Draw(m.T, "for")}
	if rapid.Bool().Draw(m.T, "with a job") {
		a.Job = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(m.T, "job")
	}
	m.Close(a)
}

func (m *mesh) step(back bool) {
	m.rates[rapid.IntRange(0, 2).Draw(m.T, "pace of")].move(back)
	for i := range m.lent {
		l := &m.lent[i]
		l.ended = l.ended || l.end <= m.now.UnixMicro()
	}
	policy := rapid.IntRange(0, len(policies)-1).Draw(m.T, "policy")
	rules, of := m.rules(policy, rapid.Bool().Draw(m.T, "equal costs"))
	job := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(m.T, "job")
	switch op := rapid.IntRange(0, 15).Draw(m.T, "op"); op {
	case 0, 1:
		m.giveBack(op == 0)
	case 2:
		m.Cancel(limitscripts.CancelArgs{Rules: rules, Policy: fmt.Sprint(policy), Job: job})
	case 3:
		m.Refresh(limitscripts.RefreshArgs{Rules: rules, Policy: fmt.Sprint(policy), Job: job})
	case 4:
		m.useLease()
	case 5:
		m.closeOrOpen(rules)
	default:
		a := limitscripts.AcquireArgs{
			Rules: rules, Policy: fmt.Sprint(policy), Job: job, MaxWait: -1, Gate: m.gate,
			Mode:   limitscripts.Mode(rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3}).Draw(m.T, "mode")),
			Inline: rapid.SampledFrom([]time.Duration{0, 50 * ms}).Draw(m.T, "inline"),
		}
		_, placed := m.placeOf(a)
		r := m.ask(a, of)
		m.answered(a, r)
		if a.Mode == limitscripts.BookLastRule {
			m.onlyWidest(a, r, placed)
		}
	}
	m.invariants()
}

// answered looks at what is true of any answer.
func (m *mesh) answered(a limitscripts.AcquireArgs, r limitscripts.AcquireReply) {
	m.Helper()
	now := m.now
	if r.At.Before(now) || r.Status == limitscripts.Granted && (r.At.After(now.Add(a.Inline)) || r.Rule != 0) {
		m.Fatalf("%+v answers %+v", a, r)
	}
	if a.Mode == limitscripts.Book && r.Status != limitscripts.Booked || a.Mode == limitscripts.Try && r.Status == limitscripts.Booked {
		m.Fatalf("mode %d answers %+v", a.Mode, r)
	}
	if r.Status != limitscripts.Booked {
		return
	}
	waits := 0
	for i := range a.Rules {
		k := m.Store.keys.byName[a.Rules[i].Ledger()]
		me := memberOf(limitscripts.Member{Job: a.Job, Cost: a.Rules[i].Cost})
		if k == nil {
			continue
		}
		ticket, inLine := k.line.score(me)
		waiting := inLine && !isParked(ticket)
		if waiting && i+1 != r.Rule {
			m.Fatalf("it waits at rule %d: %+v", i+1, r)
		}
		follows := false
		if ticket, kept := k.line.kept.score(me); kept {
			turns := k.policies[a.Policy]
			if turns == nil || turns.scores[me] != ticket {
				m.Fatalf("at rule %d it keeps a turn that is not among those of its policy: %+v", i+1, r)
			}
			follows = true
		}
		if i+1 != r.Rule || !waiting && !follows {
			continue
		}
		waits++
		if told, _ := k.line.promised.score(me); told != r.At.UnixMicro() {
			m.Fatalf("promised %d, told %+v", told, r)
		}
	}
	if (waits == 1) != (r.Rule > 0) {
		m.Fatalf("it waits at %d rules: %+v", waits, r)
	}
}

// placeOf is the first rule at which the job has a place.
func (m *mesh) placeOf(a limitscripts.AcquireArgs) (rule int, some bool) {
	for i, p := range a.Rules {
		k := m.Store.keys.byName[p.Ledger()]
		if k == nil {
			continue
		}
		me := memberOf(limitscripts.Member{Job: a.Job, Cost: p.Cost})
		_, waits := k.line.score(me)
		if _, kept := k.line.kept.score(me); waits || kept {
			return i + 1, true
		}
	}
	return 0, false
}

// onlyWidest looks at what is true of a job that is to wait for the widest rates.
func (m *mesh) onlyWidest(a limitscripts.AcquireArgs, r limitscripts.AcquireReply, placed bool) {
	m.Helper()
	widest := -1
	for i, p := range a.Rules {
		if p.Kind != limitscripts.Leases {
			widest = i
		}
	}
	switch r.Status {
	case limitscripts.Refused:
		if at, some := m.placeOf(a); some {
			m.Fatalf("it was refused and has a place at rule %d: %+v", at, r)
		}
	case limitscripts.Booked:
		if r.Rule == 0 || !placed && widest >= 0 && a.Rules[r.Rule-1].ID != a.Rules[widest].ID {
			m.Fatalf("it waits at rule %d, want the widest, %d: %+v", r.Rule, widest+1, r)
		}
	default:
		m.Fatalf("mode %d answers %+v", a.Mode, r)
	}
}

// invariants hold in any state.
func (m *mesh) invariants() {
	m.Helper()
	for _, k := range m.Store.keys.all {
		for policy, turns := range k.policies {
			if turns.len() == 0 || turns.expires == 0 {
				m.Fatalf("turns of %s: %+v", policy, turns)
			}
		}
		for _, s := range []*set{&k.line.set, &k.line.promised, &k.opening} {
			if s.len() > 0 && s.expires == 0 {
				m.Fatalf("%+v has no life", s)
			}
		}
	}
}

func (m *mesh) holdAll() {
	m.Helper()
	for _, h := range m.rates {
		h.hold()
	}
}

// holdLeases fails when there are, or will be, more leases at once than slots.
func (m *mesh) holdLeases() {
	m.Helper()
	now := m.now.UnixMicro()
	for _, a := range m.lent {
		at, n := max(now, a.from), 0
		for _, b := range m.lent {
			if !b.ended && b.from <= at && at < b.end {
				n++
			}
		}
		if n > m.slots.Permits {
			m.Fatalf("%d leases at %d, want at most %d: %v", n, at, m.slots.Permits, m.lent)
		}
	}
}
