package limitscripts

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// Status is the first value that a script on a limit's key answers.
type Status int64

// What a script on a limit's key decided.
const (
	Refused Status = iota
	Granted
	Booked
	TooLate
	Withdrawn
	NewerSchema
	NotCovered // the bounds of a calendar lie elsewhere than Redis' clock
	Outdated   // the caller knows an old limit: a ledger was written under a newer one, whose version the reply has, or another is stored
	Corrupt    // a ledger is of a kind that is known, and not what that kind writes
)

// Mode says what acquire.lua may do.
type Mode int

// The modes of acquire.lua.
const (
	Try          Mode = iota // now or not at all
	GrantOrBook              // grant, or book
	Book                     // book, never grant
	BookLastRule             // book in the line of the widest rates, at an instant at which all rules admit it, or not at all
	Anew                     // let the grant of the token count from now on; else it stays as it is. Such a call is sent alone
)

// NeverGrants says that a call of this mode is for a place in a line alone.
func (m Mode) NeverGrants() bool { return m == Book || m == BookLastRule }

// Kind is an algorithm: the first byte of a ledger, and with it the ledger's
// schema. A new form of an old kind takes a new byte.
type Kind byte

// The algorithms. See the .lua file of each.
const (
	Sliding  Kind = 's'
	Fixed    Kind = 'f'
	Calendar Kind = 'c'
	GCRA     Kind = 'g' // also a bucket that fills continuously
	Step     Kind = 'p' // a bucket that is filled once a window
	Smooth   Kind = 'm' // also leaky, which stores nothing
	WarmUp   Kind = 'w'
	Leases   Kind = 'k' // at most so many at once: no permits per window, but leases that end with it
)

// Numbers are those of a limit. What a kind does not need is zero.
type Numbers struct {
	Version int64 // of the limit; an older one than the ledger was written under is refused
	Kind    Kind
	Permits int
	Window  time.Duration // of a calendar: nominal

	Burst int // GCRA, Step: what there may be at once; Smooth: what is stored at most

	Warm      time.Duration // WarmUp: from cold to warm
	ColdMilli int           // WarmUp: thousandths of the factor by which a cold permit takes longer

	Short  time.Duration // Calendar: no window is shorter
	Bounds []time.Time   // Calendar: where windows begin, at least 2, in order; Redis' now must lie between
}

// more is what only some kinds have, as the scripts read it.
func (n Numbers) more() string {
	switch n.Kind {
	case GCRA, Step, Smooth:
		return strconv.Itoa(n.Burst)
	case WarmUp:
		return strconv.FormatInt(luascripts.Micros(n.Warm), 10) + " " + strconv.Itoa(n.ColdMilli)
	case Calendar:
		b := strconv.AppendInt(make([]byte, 0, 18*len(n.Bounds)+18), luascripts.Micros(n.Short), 10)
		for _, t := range n.Bounds {
			b = strconv.AppendInt(append(b, ' '), t.UnixMicro(), 10)
		}
		return string(b)
	}
	return ""
}

func (k Kind) text() string { return string(rune(k)) }

// Member is a job in a line: its id with its cost. The zero Member is nobody.
type Member struct {
	Job  string
	Cost int
}

// Promotion is a job that may come earlier than it was promised.
type Promotion struct {
	Rule int // in whose line it stands, counted from 1
	At   time.Time
	Job  string
	Cost int // of its place there
}

// RuleCall is one rule on one key, as a call asks about it.
type RuleCall struct {
	LimitKeys
	Numbers
	Cost   int
	OneKey int       // rules of a policy that had the same key in every call so far have one number
	Closed time.Time // until when the rule is closed; zero for not
	Worth  int64     // cancel.lua, adjust.lua: of a grant, as its answer had it
	At     time.Time // cancel.lua, adjust.lua: instant of the grant, by which it is found when its token is forgotten; zero when not known
	Until  time.Time // cancel.lua, adjust.lua: until when it may be: as long as it counts under the limit that granted it
}

// SharesKey says that two rules have the same key, as in every call of the policy before, and not by chance.
func (c *RuleCall) SharesKey(other *RuleCall) bool {
	return c.ID == other.ID && c.OneKey == other.OneKey
}

// Opening is a time in which work may run, from Open until before Close.
type Opening struct{ Open, Close time.Time }

// Gate is when work may run, as far as it is known: Redis' now must lie in
// [From, Until). The zero Gate is none.
type Gate struct {
	From, Until time.Time
	Open        []Opening // disjoint, in order
}

func (g Gate) text() string {
	if g.isZero() {
		return ""
	}
	b := strconv.AppendInt(nil, g.From.UnixMicro(), 10)
	for _, t := range g.instants() {
		b = strconv.AppendInt(append(b, ' '), t.UnixMicro(), 10)
	}
	return string(b)
}

func (g Gate) isZero() bool { return g.Until.IsZero() }

func (g Gate) instants() []time.Time {
	out := []time.Time{g.Until}
	for _, o := range g.Open {
		out = append(out, o.Open, o.Close)
	}
	return out
}

// outdated takes the version out of where an instant stands otherwise.
func outdated(at *time.Time, version *int64) {
	if !at.IsZero() {
		*version, *at = at.UnixMicro(), time.Time{}
	}
}

// keysOfRules are the first keys of each rule, and the turns of a policy of several
// rules.
func keysOfRules(rules []RuleCall, policy string) []string {
	return appendKeysOfRules(make([]string, 0, 5*len(rules)+1), rules, policy)
}

// rulesText is the rules of a call as a script reads them, see rulecall.lua.
func rulesText(rules []RuleCall) string { return string(appendRules(make([]byte, 0, 192), rules)) }

func appendRules(b []byte, rules []RuleCall) []byte {
	for i, group := range groups(rules) {
		rule := &rules[i]
		b = append(b, byte(rule.Kind), '|')
		b = append(strconv.AppendInt(b, int64(rule.Permits), 10), '|')
		b = append(strconv.AppendInt(b, luascripts.Micros(rule.Window), 10), '|')
		b = append(append(b, rule.more()...), '|')
		for _, n := range [...]int64{rule.Version, int64(rule.Cost), int64(group), luascripts.Instant(rule.Closed), rule.Worth} {
			b = append(strconv.AppendInt(b, n, 10), '|')
		}
	}
	return b
}

// grantArgs puts the rules behind the other arguments, and when each was granted.
func grantArgs(args []any, rules []RuleCall) []any {
	args = append(args, rulesText(rules))
	for i := range rules {
		args = append(args, luascripts.Instant(rules[i].At), luascripts.Instant(rules[i].Until))
	}
	return args
}

var firstGroup = []int{1}

// groups numbers the rules by their keys, see [RuleCall.SharesKey]. Neighbouring rates on one key have one
// number. A lease has the number of a rate on its key, or else the last one + 1.
func groups(rules []RuleCall) []int {
	if len(rules) == 1 {
		return firstGroup
	}
	out, last := make([]int, len(rules)), 0
	for i, rule := range rules {
		if i > 0 && rule.Kind != Leases && rule.SharesKey(&rules[i-1]) {
			out[i] = last
			continue
		}
		if rule.Kind == Leases {
			same := slices.IndexFunc(rules[:i], func(other RuleCall) bool { return other.Kind != Leases && other.SharesKey(&rule) })
			if same >= 0 {
				out[i] = out[same]
				continue
			}
			out[i] = last + 1
			continue
		}
		last++
		out[i] = last
	}
	return out
}

// widest is the last rule that is no lease, or the last.
func widest(rules []RuleCall) LimitKeys {
	for _, rule := range slices.Backward(rules) {
		if rule.Kind != Leases {
			return rule.LimitKeys
		}
	}
	return rules[len(rules)-1].LimitKeys
}

// statusOf reads a status.
func statusOf(r *luascripts.Reply) Status {
	return Status(r.IntWithin(int64(askAlone), int64(Corrupt)))
}

// ruleOf reads which of so many rules it is, counted from 1; 0 for none.
func ruleOf(r *luascripts.Reply, rules int) int {
	return int(r.IntWithin(0, int64(rules)))
}

// promotionsOf reads n jobs that may come earlier, in the lines of so many rules.
func promotionsOf(r *luascripts.Reply, n int64, rules int) []Promotion {
	var out []Promotion
	for range r.Groups(n, 3) {
		p := Promotion{Rule: int(r.IntWithin(1, int64(rules))), At: r.Time()}
		cost, job, found := strings.Cut(r.Text(), ":")
		var err error
		if p.Cost, err = strconv.Atoi(cost); err != nil || !found {
			r.Unexpected(`a member is not "cost:job"`)
		}
		p.Job = job
		out = append(out, p)
	}
	return out
}
