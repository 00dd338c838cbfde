package luascripts

import (
	"context"
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/rediserr"
)

//go:embed lua
var sources embed.FS

// script returns the text of a script after the parts that it needs. It is put together
// when it is asked for first: a program that imports this package and calls no script
// pays nothing for them at its start.
func script(name string, parts ...string) func() *redis.Script {
	return sync.OnceValue(func() *redis.Script { return redis.NewScript(text(append(slices.Clone(parts), name)...)) })
}

// text is that of some files, with the constants in their places.
func text(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		if name == tallied {
			b.WriteString("function " + tallied + "()\n" + text(tallyParts...) + "end\n")
			continue
		}
		text, ok := sourceTexts().replaced[name]
		if !ok {
			panic("luascripts: there is no " + name)
		}
		b.WriteString(text)
		b.WriteByte('\n')
	}
	return b.String()
}

// stage is a function that makes what is in a text when it is called: a function
// costs a script time even when nobody calls it, and memory that Lua has to clear
// away, and most calls need few of them.
func stage(name, text, returns string) string {
	return body(name+"()", text+"return "+returns+"\n")
}

// body is a function of which a text is the body.
func body(head, text string) string { return "local function " + head + "\n" + text + "end\n" }

// tallied stands for the algorithms of tallyParts, which ledger.lua makes when it meets one.
const tallied = "kinds.tallied"

var tallyParts = []string{"tally.lua", "fixed.lua", "calendar.lua", "step.lua", "instant.lua", "gcra.lua", "smooth.lua", "warmup.lua"}

var (
	// acquire.lua has its parts in stages: most calls that come alone need the first only.
	// Each has its own numbers: what a stage takes from another costs too.
	loneParts   = []string{"numbers.lua", "seven.lua", "lone.lua"}
	pairParts   = []string{"pairline.lua", "numbers.lua", "seven.lua", "pair.lua"}
	othersParts = []string{"numbers.lua", "seven.lua", "remember.lua", "form.lua"}
	ringParts   = []string{"one.lua", "ring.lua"}
	ledgerParts = []string{"ledger.lua", "sliding.lua", tallied}  // all algorithms: a ledger may be of another than the limit in force
	lineParts   = []string{"line.lua", "leases.lua", "parts.lua"} // behind tickets.lua

	clockParts = []string{"clock.lua", "numbers.lua"}
	lookParts  = slices.Concat(clockParts, []string{"seven.lua", "remember.lua"}, ledgerParts, []string{"tickets.lua"}, lineParts, []string{"places.lua", "arguments.lua"})
	whereParts = append(slices.Clone(lookParts), "whereabouts.lua")
	grantParts = append(slices.Clone(lookParts), "tokens.lua", "correct.lua")
	taskParts  = []string{"taskid.lua", "deferred.lua"}
	queueParts = slices.Concat(clockParts, taskParts)
	putParts   = append(slices.Clone(queueParts), "put.lua")
	batchParts = append(slices.Clone(clockParts), "batch.lua")
)

var (
	acquireScript = sync.OnceValue(func() *redis.Script { return redis.NewScript(acquireText()) })
	checkScript   = script("check.lua", whereParts...)
	locateScript  = script("locate.lua", whereParts...)
	listScript    = script("list.lua", lookParts...)
	cancelScript  = script("cancel.lua", append(slices.Clone(grantParts), "comeback.lua")...)
	peekScript    = script("peek.lua", lookParts...)
	resetScript   = script("reset.lua", lookParts...)
	closeScript   = script("close.lua", append(slices.Clone(lookParts), "comeback.lua")...)
	releaseScript = script("release.lua", lookParts...)
	settleScript  = script("settle.lua", grantParts...)
	renewScript   = script("renew.lua", clockParts...)
	enqueueScript = script("enqueue.lua", putParts...)
	tickScript    = script("tick.lua", clockParts...)
	deferScript   = script("defer.lua", queueParts...)
	dueScript     = script("due.lua", queueParts...)
	wakeScript    = script("wake.lua", taskParts...)
	retimeScript  = script("retime.lua", queueParts...)
	forgetScript  = script("forget.lua", taskParts...)
	findScript    = script("find.lua", queueParts...)
	rulesScript   = script("rules.lua", clockParts...)

	setLimitScript  = script("setlimit.lua", clockParts...)
	closeRuleScript = script("closerule.lua", clockParts...)
	walkScript      = script("walk.lua", append(slices.Clone(clockParts), "taskid.lua")...)
	claimScript     = script("claim.lua", clockParts...)
	plannedScript   = script("planned.lua", clockParts...)

	batchStartScript = script("batchstart.lua", batchParts...)
	batchClaimScript = script("batchclaim.lua", batchParts...)
	feedScript       = script("feed.lua", append(slices.Clone(putParts), "batch.lua")...)
	batchCountScript = script("batchcount.lua", batchParts...)
	batchSetScript   = script("batchset.lua", batchParts...)
	batchSweepScript = script("batchsweep.lua", batchParts...)
	batchPeekScript  = script("batchpeek.lua", batchParts...)
	batchListScript  = script("batchlist.lua")
	batchDropScript  = script("batchdrop.lua", slices.Concat(batchParts, taskParts)...)
)

// acquireText puts acquire.lua together. What a stage makes sees what stands around it, and
// nobody else does: so what few calls need lies deeper.
func acquireText() string {
	two := text("pairof.lua") + body("pair(P, k, token, job, now)", text(pairParts...))
	gate := body("gate(text)", text("gate.lua"))
	widest := body("in_widest(P, widest, now, reach)", text("widest.lua"))
	rules := text(lineParts...) + stage("places", text("places.lua"), "stand_for") + gate + widest + text("admit.lua")
	ledgers := text(ledgerParts...) + text("tickets.lua", "tokens.lua") + stage("runs", text("run.lua"), "run") + stage("rules", rules, "admit")
	others := text(othersParts...) + stage("rings", text(ringParts...), "one, ring") + stage("ledgers", ledgers, "runs, rules") + text("rest.lua")
	return text("clock.lua") + body("lone(form, token, now, told)", text(loneParts...)) + stage("by_two", two, "pair_of, pair") +
		stage("others", others, "rest") + text("acquire.lua")
}

// ReplyError says that a script answered what it never should: another program
// writes our keys, or the server is none that we know.
type ReplyError struct {
	Script string
	What   string
}

func (e *ReplyError) Error() string { return fmt.Sprintf("%s: unexpected reply: %s", e.Script, e.What) }

// reply reads a script's answer value by value and remembers the first fault.
type reply struct {
	script string
	values []any
	next   int
	err    error
}

// run calls a script and checks that it answered at least n values.
func run(ctx context.Context, c redis.Scripter, s *redis.Script, name string, n int, keys []string, args ...any) *reply {
	v, err := s.Run(ctx, c, keys, args...).Result()
	return readReply(name, n, v, err)
}

// pipelined sends n calls of a script at once; each is read with its own error. A
// pipeline can't fall back from NOSCRIPT by itself: those calls are sent again
// once the script is loaded, on Cluster on all masters.
func pipelined(ctx context.Context, c redis.UniversalClient, s *redis.Script, n int, send func(i int, pipe redis.Pipeliner) *redis.Cmd, read func(i int, v any, err error)) {
	if n == 0 {
		return
	}
	indices := make([]int, n)
	for i := range indices {
		indices[i] = i
	}
	for again := 0; ; again++ {
		pipe := c.Pipeline()
		cmds := make([]*redis.Cmd, len(indices))
		for j, i := range indices {
			cmds[j] = send(i, pipe)
		}
		_, _ = pipe.Exec(ctx) // each command carries its own error
		var missing []int
		for j, i := range indices {
			if rediserr.Of(cmds[j].Err()) == rediserr.NoScript {
				missing = append(missing, i)
			}
			v, err := cmds[j].Result()
			read(i, v, err)
		}
		if len(missing) == 0 || again > 0 || s.Load(ctx, c).Err() != nil {
			return
		}
		indices = missing
	}
}

func readReply(name string, n int, v any, err error) *reply {
	r := replyOf(name, n, v, err)
	return &r
}

// replyOf is [readReply] for what is read where it is.
func replyOf(name string, n int, v any, err error) reply {
	r := reply{script: name}
	if err != nil {
		r.err = fmt.Errorf("%s: %w", name, err)
		return r
	}
	values, ok := v.([]any)
	if !ok || len(values) < n {
		r.err = &ReplyError{Script: name, What: fmt.Sprintf("%T of %d values, want %d", v, len(values), n)}
		return r
	}
	r.values = values
	return r
}

func (r *reply) int() int64 {
	if r.err != nil || r.next >= len(r.values) {
		r.fail("too few values")
		return 0
	}
	n, ok := r.values[r.next].(int64)
	if !ok {
		r.fail(fmt.Sprintf("value %d is a %T, want an integer", r.next, r.values[r.next]))
	}
	r.next++
	return n
}

// isInt says that an integer comes next.
func (r *reply) isInt() bool {
	if r.err != nil || r.next >= len(r.values) {
		return false
	}
	_, ok := r.values[r.next].(int64)
	return ok
}

// list is the reply within a reply.
func (r *reply) list() reply {
	inner := reply{script: r.script, err: r.err}
	if r.err != nil || r.next >= len(r.values) {
		inner.fail("too few values")
		return inner
	}
	var ok bool
	if inner.values, ok = r.values[r.next].([]any); !ok {
		inner.fail(fmt.Sprintf("value %d is a %T, want a list", r.next, r.values[r.next]))
	}
	r.next++
	return inner
}

// orZero is an integer that may be left out.
func (r *reply) orZero() int64 {
	if r.next >= len(r.values) {
		return 0
	}
	return r.int()
}

func (r *reply) timeOrZero() time.Time {
	if r.next >= len(r.values) {
		return time.Time{}
	}
	return r.time()
}

func (r *reply) text() string {
	if r.err != nil || r.next >= len(r.values) {
		r.fail("too few values")
		return ""
	}
	s, ok := r.values[r.next].(string)
	if !ok {
		r.fail(fmt.Sprintf("value %d is a %T, want text", r.next, r.values[r.next]))
	}
	r.next++
	return s
}

// groups is n, or 0 when so many groups of `width` values can't follow.
func (r *reply) groups(n int64, width int) int {
	if r.err == nil && (n < 0 || n > int64((len(r.values)-r.next)/width)) {
		r.fail(fmt.Sprintf("%d groups of %d in %d values", n, width, len(r.values)))
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

// turns reads n jobs that may come earlier.
func (r *reply) promotions(n int64) []Promotion {
	var out []Promotion
	for range r.groups(n, 3) {
		out = append(out, Promotion{Part: int(r.int()), At: r.time(), Job: r.text()})
	}
	return out
}

// count reads how many groups of `width` values follow.
func (r *reply) count(width int) int {
	return r.groups(r.int(), width)
}

// time reads microseconds since 1970; 0 is the zero time.
func (r *reply) time() time.Time {
	return instantOf(r.int())
}

// instantOf is microseconds since 1970; 0 is the zero time.
func instantOf(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

func (r *reply) fail(what string) {
	if r.err == nil {
		r.err = &ReplyError{Script: r.script, What: what}
	}
}

// micros writes a duration in whole microseconds, rounded up: never early.
func micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++
	}
	return us
}

// arg is a text among the arguments of a command. go-redis takes each as an interface,
// for which a string needs memory of its own and a pointer none: those of all texts of
// a command point into one slice. Hooks that print a command print the text.
type arg string

func (a *arg) String() string { return string(*a) }

// MarshalBinary is what go-redis writes: it copies the bytes at once.
func (a *arg) MarshalBinary() ([]byte, error) {
	return unsafe.Slice(unsafe.StringData(string(*a)), len(*a)), nil // #nosec G103: nobody writes to them
}

// command is a call of a script as Redis gets it: EVALSHA, the digest, how many
// keys, the keys, the arguments.
type command struct {
	script *redis.Script
	args   []any
	keys   int
}

// run sends the command as it is by a client of go-redis itself. Whatever a program
// has put in front of one is asked as [redis.Script.Run] does.
func (c *command) run(ctx context.Context, rdb redis.Scripter) (any, error) {
	var process func(context.Context, redis.Cmder) error
	switch client := rdb.(type) {
	case *redis.Client:
		process = client.Process
	case *redis.ClusterClient:
		process = client.Process
	default:
		keys, args := c.split()
		return c.script.Run(ctx, rdb, keys, args...).Result()
	}
	cmd := c.cmd(ctx)
	if err := process(ctx, cmd); rediserr.Of(err) == rediserr.NoScript {
		return c.withText(ctx, rdb).Result()
	}
	return cmd.Result()
}

// cmd is the command as go-redis has it.
func (c *command) cmd(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx, c.args...)
	cmd.SetFirstKeyPos(firstKey)
	return cmd
}

// withText sends it to a server that does not know the script.
func (c *command) withText(ctx context.Context, rdb redis.Scripter) *redis.Cmd {
	keys, args := c.split()
	return c.script.Eval(ctx, rdb, keys, args...)
}

// firstKey is where the keys of a command begin.
const firstKey = 3

// first is the first key.
func (c *command) first() string { return c.args[firstKey].(string) }

// split are the keys and the arguments as [redis.Scripter] takes them.
func (c *command) split() (keys []string, args []any) {
	keys, args = make([]string, 0, c.keys), make([]any, 0, len(c.args)-firstKey-c.keys)
	for i, v := range c.args[firstKey:] {
		if a, ok := v.(*arg); ok {
			v = string(*a)
		}
		if key, ok := v.(string); ok && i < c.keys {
			keys = append(keys, key)
			continue
		}
		args = append(args, v)
	}
	return keys, args
}
