package luascripts

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// script is a file of the folder lua that Go calls.
type script struct {
	name     string               // as require has it: "limit/acquire"
	function func() any           // by which name the library has it
	alone    func() program       // its text with all that it needs, for servers without functions
	eval     func() *redis.Script // the same as EVALSHA takes it
}

func newScript(name string) *script {
	s := &script{name: name}
	s.function = sync.OnceValue(func() any {
		l := theLibrary()
		return l.function(name)
	})
	s.alone = sync.OnceValue(func() program {
		p := assemble("", withNeeds(name))
		p.text += "return require(\"" + name + "\")(KEYS, ARGV)\n"
		return p
	})
	s.eval = sync.OnceValue(func() *redis.Script { return redis.NewScript(s.alone().text) })
	return s
}

// file is the name of the script in errors.
func (s *script) file() string { return s.name + ".lua" }

var (
	acquireScript = newScript("limit/acquire")
	refreshScript = newScript("limit/refresh")
	lookupScript  = newScript("limit/lookup")
	listScript    = newScript("limit/list")
	cancelScript  = newScript("limit/cancel")
	peekScript    = newScript("limit/peek")
	resetScript   = newScript("limit/reset")
	closeScript   = newScript("limit/close")
	releaseScript = newScript("limit/release")
	adjustScript  = newScript("limit/adjust")
	renewScript   = newScript("limit/renew")

	setLimitScript  = newScript("limit/setlimit")
	closeRuleScript = newScript("limit/closerule")

	enqueueScript      = newScript("queue/enqueue")
	tickScript         = newScript("queue/tick")
	fetchScript        = newScript("queue/fetch")
	requeueScript      = newScript("queue/requeue")
	deferScript        = newScript("queue/defer")
	dueScript          = newScript("queue/due")
	wakeScript         = newScript("queue/wake")
	retimeScript       = newScript("queue/retime")
	forgetScript       = newScript("queue/forget")
	runNowScript       = newScript("queue/run_now")
	getTaskScript      = newScript("queue/get_task")
	rulesScript        = newScript("queue/rules")
	countScript        = newScript("queue/count")
	scanDeferredScript = newScript("queue/scan_deferred")
	claimScript        = newScript("queue/claim")
	replanDoneScript   = newScript("queue/replan_done")

	batchStartScript = newScript("batch/batchstart")
	batchClaimScript = newScript("batch/batchclaim")
	feedScript       = newScript("batch/feed")
	batchCountScript = newScript("batch/batchcount")
	batchSetScript   = newScript("batch/batchset")
	batchSweepScript = newScript("batch/batchsweep")
	batchPeekScript  = newScript("batch/batchpeek")
	batchListScript  = newScript("batch/batchlist")
	batchDropScript  = newScript("batch/batchdrop")

	recordScript = newScript("history/record")
)

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

// call is a call of a script: its keys, then its arguments.
func (s *script) call(keys []string, args ...any) command {
	all := append(make([]any, 0, firstKey+len(keys)+len(args)), "fcall", s.function(), len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	return command{script: s, args: append(all, args...), keys: len(keys)}
}

// Run calls the script and answers go-redis' command.
func (s *script) Run(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd {
	return sendOne(ctx, c, s.call(keys, args...))
}

// run calls a script and checks that it answered at least n values.
func run(ctx context.Context, c redis.Scripter, s *script, n int, keys []string, args ...any) *reply {
	v, err := s.Run(ctx, c, keys, args...).Result()
	return readReply(s, n, v, err)
}

func readReply(s *script, n int, v any, err error) *reply {
	r := replyOf(s, n, v, err)
	return &r
}

// replyOf is [readReply] for what is read where it is.
func replyOf(s *script, n int, v any, err error) reply {
	r := reply{script: s.file()}
	if err != nil {
		r.err = s.failed(err)
		return r
	}
	values, ok := v.([]any)
	if !ok || len(values) < n {
		r.err = &ReplyError{Script: r.script, What: fmt.Sprintf("%T of %d values, want %d", v, len(values), n)}
		return r
	}
	r.values = values
	return r
}

// failed says which script an error came from, and which line of it if Redis names one.
func (s *script) failed(err error) error {
	if where := s.whereOf(err); where != "" {
		return fmt.Errorf("%s at %s: %w", s.file(), where, err)
	}
	return fmt.Errorf("%s: %w", s.file(), err)
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

// promotions reads n jobs that may come earlier.
func (r *reply) promotions(n int64) []Promotion {
	var out []Promotion
	for range r.groups(n, 3) {
		p := Promotion{Rule: int(r.int()), At: r.time()}
		cost, job, _ := strings.Cut(r.text(), ":")
		p.Job = job
		p.Cost, _ = strconv.Atoi(cost) // our own text
		out = append(out, p)
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
