package limitscripts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/rediserr"
)

// CallsMax is how many calls acquire.lua takes. Callers that send several rules in one count each rule.
const CallsMax = 64

// ErrRetrySingly says that a call among others failed: what it comes back with when
// it is sent alone is its answer.
var ErrRetrySingly = errors.New("limitscripts: the call failed among others")

// AcquireArgs are the arguments of one call of acquire.lua. Token is not zero.
// MaxWait below zero means any wait.
type AcquireArgs struct {
	Rules             []RuleCall // narrowest first, 1 to RulesMax; those of kind Leases last
	Policy            string     // whose turns count; "" for a policy of one rule
	Later             bool       // a later hash slot may refuse what is granted here; with a Policy
	Gate              Gate
	Token             uint64
	Job               string
	Mode              Mode
	Inline            time.Duration
	MaxWait           time.Duration
	WantLeft          bool                  // the permits that are left, too
	Durable           luascripts.Durability // of a grant; the server's own where it is zero
	HoldAfterFailover bool                  // nothing is granted while permits may count that the server has not heard of
	Known             []KnownLimit          // by rule, when Redis is to look whether the limits still hold; such a call is sent alone
	Templates         *CallTemplates        // of calls before, with which it may share its template; nil for none
}

// KnownLimit is what a caller knows of the stored limit of a rule, and of its closing: the versions of
// the last changes, 0 for none. When others are stored, nothing is decided: the answer is
// Outdated, and its version 0.
type KnownLimit struct {
	Prefix, Rule     string
	Version, Closing int64
}

// AcquireReply is the answer to one call of acquire.lua.
type AcquireReply struct {
	Status   Status
	Rule     int         // which refuses, counted from 1; 0 for the gate
	At       time.Time   // of the grant or the booking; when refused, the first instant possible
	From     time.Time   // since when the ledgers admit it, which may be past
	Now      time.Time   // Redis' clock
	Promised time.Time   // what the job was promised before; zero when it was not in the line
	Fence    int64       // of a grant with a lease: grows from lease to lease
	Each     []time.Time // of a grant, by rule: its instant, where they differ; else none, and all are At
	Worth    []int64     // of a grant, by rule: what cancel.lua needs to give all of it back; 0 is not known
	Left     []int       // by rule, when WantLeft
	Promoted []Promotion
	Version  int64 // of the rule's ledger, when Outdated

	Local LocalTimes // set by a store of several servers, which have a clock each
}

// LocalTimes are the instants of an answer by the monotonic clock of this process.
type LocalTimes struct {
	Start time.Time // At, never before it
	Until time.Time // until when a grant may be acted on: later it would come too close to the next one

	Repeated bool // one of the servers repeats a grant of an earlier call
}

// Call is one call of acquire.lua and what it came back with.
type Call struct {
	AcquireArgs
	AcquireReply
	Err error // ErrRetrySingly: it is to be sent alone
}

var acquireScript = luascripts.NewScript("limit/acquire")

// Acquire runs acquire.lua for one call.
func Acquire(ctx context.Context, c redis.Scripter, a AcquireArgs) (AcquireReply, error) {
	call := Call{AcquireArgs: a}
	r, said := sendAcquire(ctx, c, []*Call{&call})
	call.read(&r, nowOf(&r))
	call.failUnreplicated(said)
	return call.AcquireReply, call.Err
}

// AcquireMany runs acquire.lua for 1 to [CallsMax] calls, in order: each as if it
// were sent alone. On Cluster their keys share a hash slot. After an error none has an
// answer.
func AcquireMany(ctx context.Context, c redis.Scripter, calls []*Call) error {
	r, said := sendAcquire(ctx, c, calls)
	return readMany(calls, &r, said)
}

// readMany reads the answers to calls that were sent together.
func readMany(calls []*Call, r *luascripts.Reply, said *luascripts.Confirmation) error {
	now := nowOf(r)
	if r.Err() != nil && rediserr.Of(r.Err()).Answered() && len(calls) > 1 && slices.ContainsFunc(calls, func(c *Call) bool { return c.HoldAfterFailover }) {
		for _, call := range calls { // those that do not hold after a failover may run as a script
			call.Err = ErrRetrySingly
		}
		return nil
	}
	if r.Err() != nil {
		return r.Err()
	}
	for _, call := range calls {
		call.read(r, now)
		if call.Err == nil && call.Status == askAlone {
			call.Err = ErrRetrySingly
		}
		call.failUnreplicated(said)
	}
	return nil
}

// failUnreplicated fails a grant that too few replicas have, if the call asked for some.
func (c *Call) failUnreplicated(said *luascripts.Confirmation) {
	if c.Durable.Replicas > 0 && c.Err == nil && c.Status == Granted {
		c.Err = said.Err(c.Durable.Replicas)
	}
}

// sendAcquire sends calls, and begins to read the answer.
func sendAcquire(ctx context.Context, c redis.Scripter, calls []*Call) (luascripts.Reply, *luascripts.Confirmation) {
	command := acquireCommand(calls)
	v, err := luascripts.Send(ctx, c, command).Result()
	return acquireReply(calls, v, err), command.Confirm
}

func acquireReply(calls []*Call, v any, err error) luascripts.Reply {
	return acquireScript.Read(1+len(calls), v, err)
}

// askAlone is the status of a call that failed among others. acquire.lua sends shortFailed for it,
// refresh.lua this number.
const askAlone Status = -1

// template is what a call has in common with others: all but its keys, token and job.
func (a *AcquireArgs) template() string {
	longest := int64(-1)
	if a.MaxWait >= 0 {
		longest = int64(a.MaxWait / time.Microsecond)
	}
	b := make([]byte, 0, 192)
	for _, n := range [...]int64{int64(a.Mode), luascripts.Micros(a.Inline), longest} {
		b = append(strconv.AppendInt(b, n, 10), '|')
	}
	b = append(append(b, a.Gate.text()...), '|')
	for _, yes := range [...]bool{a.WantLeft, a.Policy != "", a.Policy != "" && a.Later, a.HoldAfterFailover, a.Durable.Replicas > 0} {
		b = append(b, '0'+byte(luascripts.Flag(yes)), '|')
	}
	return string(appendRules(b, a.Rules))
}

// acquireCommand is the call of acquire.lua. Nothing in it is written to again: a hook may still
// have the command when the calls are used for others.
func acquireCommand(calls []*Call) luascripts.Command {
	var confirm *luascripts.Confirmation
	onlyFunctions := false
	keys := make([]string, 0, 3*len(calls))
	for _, c := range calls {
		if c.Durable.Replicas > 0 {
			confirm = confirm.Strictest(c.Durable)
		}
		onlyFunctions = onlyFunctions || c.HoldAfterFailover
		keys = c.appendKeys(keys)
	}
	command := acquireScript.Begin(len(keys), len(calls)+2)
	command.Confirm, command.OnlyFunctions, command.Resumes = confirm, onlyFunctions, true // what its token was granted is found
	for _, key := range keys {
		command.Add(key)
	}
	command.Add(len(calls))
	templates := make([]*callTemplate, 0, 4)
	for _, c := range calls {
		of := c.Templates.of(&c.AcquireArgs)
		n := slices.IndexFunc(templates, func(t *callTemplate) bool { return t == of || t.text == of.text })
		if n < 0 {
			n = len(templates)
			templates = append(templates, of)
		}
		command.Add(c.text(n + 1))
	}
	for _, t := range templates {
		command.Add(t.text)
	}
	for _, c := range calls {
		for _, k := range c.Known {
			command.Add(k.Version, k.Closing)
		}
	}
	return command
}

func appendKeysOfRules(keys []string, rules []RuleCall, policy string) []string {
	for i := range rules {
		rule := &rules[i]
		keys = append(keys, rule.ledger, rule.tokens, rule.line)
	}
	if policy != "" {
		for i := range rules {
			keys = append(keys, rules[i].turns(policy))
		}
	}
	return keys
}

func (a *AcquireArgs) appendKeys(keys []string) []string {
	keys = appendKeysOfRules(keys, a.Rules, a.Policy)
	if !a.Gate.isZero() {
		keys = append(keys, widest(a.Rules).opening())
	}
	for _, k := range a.Known {
		keys = append(keys, StoredLimitKey(k.Prefix, k.Rule), closingKey(k.Prefix, k.Rule))
	}
	return keys
}

// text is what one call differs in from others of its template: the number of the template, the token, the job.
func (a *AcquireArgs) text(template int) []byte {
	b := make([]byte, 0, 1+8+len(a.Job))
	b = binary.BigEndian.AppendUint64(append(b, byte(template)), a.Token)
	return append(b, a.Job...)
}

// What an integer means in place of a call's answer; another one is since when the
// ledger admits what is granted now, in microseconds ago.
const (
	shortSinceEver = -1 // granted, and the ledger held nothing
	shortFailed    = -2 // it failed among others
)

// zeros are what is not known of a grant; shared, so that to read most answers takes
// no memory.
var (
	zeroWorth [luascripts.RulesMax]int64
	zeroLeft  [luascripts.RulesMax]int
)

// nowOf reads Redis' clock.
func nowOf(r *luascripts.Reply) time.Time { return luascripts.TimeOf(r.IntWithin(1, math.MaxInt64)) }

// read reads the answer to the call, the next value of r.
func (c *Call) read(r *luascripts.Reply, now time.Time) {
	n := len(c.Rules)
	c.AcquireReply = AcquireReply{Now: now, Worth: zeroWorth[:n:n], Left: zeroLeft[:n:n]}
	if c.WantLeft {
		c.Left = make([]int, n)
	}
	if r.IsInt() {
		c.Err = c.readShort(r.Int())
		return
	}
	in := r.List()
	c.Status = statusOf(&in)
	if in.More() {
		c.Rule = ruleOf(&in, n)
	}
	c.At, c.From = in.TimeOrZero(), in.TimeOrZero()
	c.Promised, c.Fence = in.TimeOrZero(), in.IntOrZero()
	promoted := in.IntOrZero()
	if c.Status == Outdated {
		outdated(&c.At, &c.Version)
	}
	known := false
	for i := range n {
		worth, free := in.IntOrZero(), int(in.IntOrZero())
		if worth != 0 && !known {
			c.Worth, known = make([]int64, n), true
		}
		if known {
			c.Worth[i] = worth
		}
		if c.WantLeft {
			c.Left[i] = free
		}
	}
	c.Promoted = promotionsOf(&in, promoted, n)
	if in.More() {
		in.Unexpected("too many values")
	}
	if c.Status == Granted && (c.Rule != 0 || c.At.IsZero()) {
		in.Unexpected("a grant that a rule refuses, or without an instant")
	}
	c.Err = in.Err()
}

// readShort reads an answer that is one integer.
func (c *Call) readShort(ago int64) error {
	switch {
	case ago == shortFailed:
		c.Status = askAlone
	case ago < shortFailed || ago > c.Now.UnixMicro():
		return acquireScript.Unexpected(fmt.Sprintf("a grant since %d us ago", ago))
	default:
		c.Status, c.At = Granted, c.Now
		if ago != shortSinceEver {
			c.From = luascripts.TimeOf(c.Now.UnixMicro() - ago)
		}
	}
	return nil
}

// CallTemplates remembers by mode what the newest call has in common with others, see acquire.lua: most
// calls have it in common with the one before. The zero value is ready and safe for concurrent
// use; nil remembers nothing.
type CallTemplates struct {
	last [Anew + 1]atomic.Pointer[callTemplate] // by mode
}

// callTemplate is the text that alike calls share, and one of these calls.
type callTemplate struct {
	text string
	call AcquireArgs
}

// of is the template of a call.
func (t *CallTemplates) of(a *AcquireArgs) *callTemplate {
	if t == nil || a.MaxWait > 0 || !a.Gate.isZero() { // those are seldom the same twice
		return &callTemplate{text: a.template()}
	}
	last := &t.last[a.Mode]
	old := last.Load()
	if old != nil && alike(&old.call, a) {
		return old
	}
	fresh := &callTemplate{text: a.template()}
	fresh.call = *a
	fresh.call.Job, fresh.call.Token, fresh.call.Known, fresh.call.Rules = "", 0, nil, slices.Clone(a.Rules)
	last.Store(fresh)
	return fresh
}

// alike says that calls without a gate differ in nothing but keys, token and job:
// they have one template.
func alike(a, b *AcquireArgs) bool {
	if a.Mode != b.Mode || a.Inline != b.Inline || a.MaxWait != b.MaxWait || a.WantLeft != b.WantLeft || a.HoldAfterFailover != b.HoldAfterFailover ||
		(a.Durable.Replicas > 0) != (b.Durable.Replicas > 0) || (a.Policy == "") != (b.Policy == "") || a.Later != b.Later {
		return false
	}
	return alikeRules(a.Rules, b.Rules)
}

// alikeRules says that the rules of calls differ in nothing but keys.
func alikeRules(a, b []RuleCall) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !alikeRule(&a[i], &b[i]) {
			return false
		}
		for j := range i { // which of them count together
			if (a[i].ID == a[j].ID) != (b[i].ID == b[j].ID) {
				return false
			}
		}
	}
	return true
}

func alikeRule(a, b *RuleCall) bool {
	x, y := &a.Numbers, &b.Numbers
	return x.Version == y.Version && x.Kind == y.Kind && x.Permits == y.Permits && x.Window == y.Window && x.Burst == y.Burst &&
		x.Warm == y.Warm && x.ColdMilli == y.ColdMilli && x.Short == y.Short && slices.Equal(x.Bounds, y.Bounds) &&
		a.Cost == b.Cost && a.OneKey == b.OneKey && a.Closed.Equal(b.Closed) && a.Worth == b.Worth
}
