package memory

import (
	"slices"

	"github.com/headwayq/headway/internal/limitscripts"
)

// call is one call on the keys of its rules.
type call struct {
	now, extra int64
	rules      []ruleCall
}

// refusal is why there is nothing to decide with; its status is 0 when there is.
type refusal struct {
	status  limitscripts.Status
	rule    int
	version int64 // of the ledger's limit, when Outdated
}

// on runs one call on the keys of its rules, unless a calendar's bounds do not
// cover now, or a ledger was written under a newer limit.
func (s *Store) on(rules []limitscripts.RuleCall, policy, job string, run func(*call)) (now int64, no refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.now().UnixMicro()
	return now, s.runLocked(now, rules, policy, job, run)
}

func (s *Store) runLocked(now int64, rules []limitscripts.RuleCall, policy, job string, run func(*call)) refusal {
	c := &call{now: now, extra: s.extra, rules: make([]ruleCall, len(rules))}
	for i := range rules {
		if no := c.read(i, &rules[i], &s.keys); no.status != 0 {
			return no
		}
	}
	c.group()
	for i := range c.rules {
		rule := &c.rules[i]
		rule.member = memberOf(limitscripts.Member{Job: job, Cost: rules[i].Cost})
		if t := rules[i].Closed; !t.IsZero() && t.UnixMicro() > c.now {
			rule.ruleClosed = t.UnixMicro()
		}
		rule.open()
		if rule.turns = &rule.none; policy != "" {
			rule.turns = rule.key.turns(policy)
		}
	}
	run(c)
	for i := range c.rules {
		s.keys.put(c.rules[i].key)
	}
	s.keys.sweep(c.now, len(c.rules))
	return refusal{}
}

// read finds the key of a rule.
func (c *call) read(i int, a *limitscripts.RuleCall, from *keys) refusal {
	rule := &c.rules[i]
	*rule = ruleCall{
		numbers: numbersOf(a.Numbers), now: c.now, extra: c.extra, index: i + 1,
		id: a.ID, oneKey: a.OneKey, cost: int64(a.Cost), worth: a.Worth, statedAt: microsOf(a.At), statedUntil: microsOf(a.Until),
	}
	if !rule.covers(c.now) {
		return refusal{status: limitscripts.NotCovered, rule: rule.index}
	}
	rule.key = c.key(i, a.Ledger(), from)
	if rule.ledger.state != nil && rule.ledger.version > rule.version {
		return refusal{limitscripts.Outdated, rule.index, rule.ledger.version}
	}
	return refusal{}
}

// key is that of a rule before this one, or another.
func (c *call) key(i int, name string, from *keys) *key {
	for _, rule := range c.rules[:i] {
		if rule.name == name {
			return rule.key
		}
	}
	return from.get(name, c.now)
}

// group numbers the rules by their keys, as groups of package limitscripts: rates side by side on one key have one
// number. A lease has the number of a rate on its key, or else the last one + 1.
func (c *call) group() {
	last := 0
	for i := range c.rules {
		rule := &c.rules[i]
		if rule.kind == limitscripts.Leases {
			rule.group = last + 1
			if same := slices.IndexFunc(c.rules[:i], func(other ruleCall) bool { return other.kind != limitscripts.Leases && other.sharesKey(rule) }); same >= 0 {
				rule.group = c.rules[same].group
			}
			continue
		}
		if last == 0 || !rule.sharesKey(&c.rules[i-1]) {
			last++
		}
		rule.group = last
	}
}

// sets are the rules that are decided together, as ranges: groups of rates, and
// then each of the leases.
func (c *call) sets(visit func(set []ruleCall) bool) {
	for from := 0; from < len(c.rules); {
		to := from + 1
		for to < len(c.rules) && c.rules[to].kind != limitscripts.Leases && c.rules[to].group == c.rules[from].group {
			to++
		}
		if !visit(c.rules[from:to]) {
			return
		}
		from = to
	}
}

func (c *call) findAndMeasure() {
	for i := range c.rules {
		c.rules[i].findAndMeasure()
	}
}

// widest is the last of the rates; nil when there is none.
func (c *call) widest() *ruleCall {
	for i := len(c.rules) - 1; i >= 0; i-- {
		if c.rules[i].kind != limitscripts.Leases {
			return &c.rules[i]
		}
	}
	return nil
}

// joint is the first instant, not before `at`, at which all rules admit the job, and the rule
// that delays it until then, nil for none. Turns count only for rules whose ledger admits it after reach.
func joint(set []ruleCall, at, reach int64) (_ int64, delayedBy *ruleCall) {
	for i := range set {
		if due := set[i].byLedger; due > at {
			at, delayedBy = due, &set[i]
		}
	}
	for i := range set {
		if rule := &set[i]; rule.byLedger > reach && rule.byTurns > at {
			at, delayedBy = rule.byTurns, rule
		}
	}
	return at, delayedBy
}

// tellMissed adds the jobs that were parked while they waited for a lease. A process that died
// may have kept from them that they should come.
func (c *call) tellMissed(promoted []limitscripts.Promotion) []limitscripts.Promotion {
	for i := range c.rules {
		for _, m := range c.rules[i].missed {
			promoted = c.rules[i].tell(promoted, c.now, m)
		}
	}
	return promoted
}

// promote is [ruleCall.promote] for all rules, with the first turn where turnToo says so.
func (c *call) promote(turnToo func(*ruleCall) bool) []limitscripts.Promotion {
	var promoted []limitscripts.Promotion
	for i := range c.rules {
		promoted = c.rules[i].promote(promoted, turnToo(&c.rules[i]))
	}
	return promoted
}

// verdict is when a job may run, and what holds it up until then.
type verdict struct {
	at    int64
	binds bool      // a rule or the gate holds the job up
	rule  *ruleCall // the binding rule, nil for the gate; or else the rule that makes the instant so late, nil for none

	noPlace bool // nor does the job get a place: [limitscripts.BookLastRule]
}

// atMost says that the instant is told by a lease that ends then, and may be given back before, when its key is open.
func (v verdict) atMost(latest int64) bool {
	return v.binds && v.rule != nil && v.rule.kind == limitscripts.Leases && v.rule.closed <= latest
}

// freeBeforeClosing says that the job waits for a lease that may be given back while the gate is open. The end of
// that lease, which the job is told, may come after the closing. Who asks shortly before the opening, within reach, is
// like one who asks then. Who tries does not wait.
func (v verdict) freeBeforeClosing(g gate, now, reach int64, mode limitscripts.Mode) bool {
	if !v.binds || v.rule == nil || v.rule.kind != limitscripts.Leases || mode == limitscripts.Try {
		return false
	}
	soonest := max(now, v.rule.closed)
	opens := g.opened(soonest)
	return opens == soonest || opens <= reach
}

// instant asks group by group, narrowest first: the first that does not admit the
// job until `reach` binds, and wider ones are not asked. Of leases each is asked
// alone. Who only books is held up by the widest rate.
func (c *call) instant(g gate, reach int64, mode limitscripts.Mode) verdict {
	if opens := g.opened(c.now); opens > reach {
		return verdict{at: opens, binds: true, noPlace: mode == limitscripts.BookLastRule}
	}
	if wide := c.onlyWidest(); mode == limitscripts.BookLastRule && wide != nil {
		v := c.inWidest(wide, reach)
		if opens := g.opened(v.at); opens > v.at {
			return verdict{at: opens, binds: true, noPlace: true}
		}
		return v
	}
	v := verdict{at: c.now}
	c.sets(func(set []ruleCall) bool {
		at, binding := joint(set, v.at, reach)
		if binding != nil {
			v.at, v.rule = at, binding
		}
		if at <= reach {
			if binding = refuses(set); binding == nil {
				return true
			}
		}
		v.rule, v.binds = binding, true
		return false
	})
	switch opens := g.opened(v.at); {
	case opens <= v.at, v.freeBeforeClosing(g, c.now, reach, mode):
	case v.binds || opens > reach:
		return verdict{at: opens, binds: true, noPlace: mode == limitscripts.BookLastRule}
	default:
		v.at, v.rule = opens, nil
	}
	if mode.NeverGrants() && !v.binds {
		v.binds, v.rule = true, &c.rules[len(c.rules)-1]
		if rule := c.widest(); rule != nil {
			v.rule = rule
		}
	}
	return v
}

// onlyWidest are the widest rates, which share a key, when the job may wait nowhere
// else; nil when it does, or where there are no rates.
func (c *call) onlyWidest() (wide []ruleCall) {
	c.sets(func(set []ruleCall) bool {
		if set[0].kind != limitscripts.Leases {
			wide = set
		}
		return true
	})
	if placed(wide) || !placed(c.rules) {
		return wide
	}
	return nil
}

// inWidest is when the widest rates admit the job. When another rule does not then,
// one that has no place there is refused; of a lease it counts only until when it is
// closed.
func (c *call) inWidest(wide []ruleCall, reach int64) verdict {
	at, delayedBy := joint(wide, c.now, reach)
	v := verdict{at: at, binds: true}
	for i := range c.rules {
		rule := &c.rules[i]
		admitsAt, outside := rule.closed, true
		if rule.kind != limitscripts.Leases {
			admitsAt, outside = rule.byTurns, rule.group != wide[0].group
		}
		if outside && admitsAt > v.at && !placed(wide) {
			v.at, v.rule, v.noPlace = admitsAt, rule, true
		}
	}
	switch {
	case v.noPlace:
	case at > reach:
		v.rule = delayedBy
	default:
		if v.rule = refuses(wide); v.rule == nil {
			v.rule = &wide[len(wide)-1]
		}
	}
	return v
}

// placed says that the job has a place in any of them.
func placed(set []ruleCall) bool {
	return slices.ContainsFunc(set, func(rule ruleCall) bool { return rule.place != nowhere })
}

// refuses is the first of them in whose line others wait, before the job.
func refuses(set []ruleCall) *ruleCall {
	for i := range set {
		if !set[i].grantable() {
			return &set[i]
		}
	}
	return nil
}
