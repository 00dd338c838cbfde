package luascripts

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Script is a file of the folder lua that Go calls.
type Script struct {
	name     string               // as require has it: "limit/acquire"
	function func() any           // by which name the library has it
	alone    func() program       // its text with all that it needs, for servers without functions
	eval     func() *redis.Script // the same as EVALSHA takes it
}

// NewScript is the script of a file: "limit/acquire" is lua/limit/acquire.lua. The file is read at the first call.
func NewScript(name string) *Script {
	s := &Script{name: name}
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
func (s *Script) file() string { return s.name + ".lua" }

// Begin begins a call of the script. [Command.Add] then adds its keys, so many as are said here, and after them its arguments.
// There is room for so many arguments; more may come.
func (s *Script) Begin(keys, room int) Command {
	return Command{script: s, args: append(make([]any, 0, firstKey+keys+room), "fcall", s.function(), keys), keys: keys}
}

// Call is a call of the script: its keys, then its arguments.
func (s *Script) Call(keys []string, args ...any) Command {
	c := s.Begin(len(keys), len(args))
	for _, key := range keys {
		c.Add(key)
	}
	c.Add(args...)
	return c
}

// Run calls the script and answers go-redis' command.
func (s *Script) Run(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd {
	return Send(ctx, c, s.Call(keys, args...))
}

// Ask calls the script and checks that it answered at least n values.
func (s *Script) Ask(ctx context.Context, c redis.Scripter, n int, keys []string, args ...any) *Reply {
	v, err := s.Run(ctx, c, keys, args...).Result()
	r := s.Read(n, v, err)
	return &r
}

// AskFunction is [Script.Ask] where only a function can answer, because it remembers from call to call.
// ran is false when the server runs none now: nothing was answered.
func (s *Script) AskFunction(ctx context.Context, c redis.Scripter, n int, keys []string, args ...any) (r *Reply, ran bool) {
	if serverOf(c).wayNow() != byFunction {
		return nil, false
	}
	call := s.Call(keys, args...)
	call.OnlyFunctions = true
	v, err := Send(ctx, c, call).Result()
	if runsNoFunction(err) {
		return nil, false
	}
	read := s.Read(n, v, err)
	return &read, true
}

// Read begins to read what the script answered, and checks that it is at least n values.
func (s *Script) Read(n int, v any, err error) Reply {
	r := Reply{script: s}
	if err != nil {
		r.err = s.Wrap(err)
		return r
	}
	values, ok := v.([]any)
	if !ok || len(values) < n {
		r.err = s.Unexpected(fmt.Sprintf("%T of %d values, want %d", v, len(values), n))
		return r
	}
	r.values = values
	return r
}

// Wrap says which script an error came from, and which line of it if Redis names one.
func (s *Script) Wrap(err error) error {
	if where := s.whereOf(err); where != "" {
		return fmt.Errorf("%s at %s: %w", s.file(), where, err)
	}
	return fmt.Errorf("%s: %w", s.file(), err)
}

// Unexpected is the error of an answer that the script never gives, a [ReplyError].
func (s *Script) Unexpected(what string) error { return &ReplyError{Script: s.file(), What: what} }

// ReplyError says that a script answered what it never should: another program
// writes our keys, or the server is not a kind of Redis that we know.
type ReplyError struct {
	Script string
	What   string
}

func (e *ReplyError) Error() string { return fmt.Sprintf("%s: unexpected reply: %s", e.Script, e.What) }

// Reply reads a script's answer value by value and remembers the first fault.
type Reply struct {
	script *Script
	values []any
	next   int
	err    error
}

// Err is the first fault: the call failed, or the answer is not one of this script.
func (r *Reply) Err() error { return r.err }

// Fail notes a fault, unless there was one before.
func (r *Reply) Fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// More says that values are left, and that there was no fault.
func (r *Reply) More() bool { return r.err == nil && r.next < len(r.values) }

// Int is the next value, which is an integer.
func (r *Reply) Int() int64 {
	if r.err != nil || r.next >= len(r.values) {
		r.Unexpected("too few values")
		return 0
	}
	n, ok := r.values[r.next].(int64)
	if !ok {
		r.Unexpected(fmt.Sprintf("value %d is a %T, want an integer", r.next, r.values[r.next]))
	}
	r.next++
	return n
}

// IntWithin is the next value, an integer from least to most.
func (r *Reply) IntWithin(least, most int64) int64 {
	n := r.Int()
	if r.err == nil && (n < least || n > most) {
		r.Unexpected(fmt.Sprintf("value %d is %d, want %d to %d", r.next-1, n, least, most))
	}
	if r.err != nil {
		return 0
	}
	return n
}

// IsInt says that an integer comes next.
func (r *Reply) IsInt() bool {
	if r.err != nil || r.next >= len(r.values) {
		return false
	}
	_, ok := r.values[r.next].(int64)
	return ok
}

// IntOrZero is an integer that may be left out.
func (r *Reply) IntOrZero() int64 {
	if r.next >= len(r.values) {
		return 0
	}
	return r.Int()
}

// Ints are n integers, and the first fault.
func (r *Reply) Ints(n int) ([]int64, error) {
	out := make([]int64, n)
	for i := range out {
		out[i] = r.Int()
	}
	return out, r.err
}

// Text is the next value, which is text.
func (r *Reply) Text() string {
	if r.err != nil || r.next >= len(r.values) {
		r.Unexpected("too few values")
		return ""
	}
	s, ok := r.values[r.next].(string)
	if !ok {
		r.Unexpected(fmt.Sprintf("value %d is a %T, want text", r.next, r.values[r.next]))
	}
	r.next++
	return s
}

// Time is the next value, microseconds since 1970; 0 is the zero time.
func (r *Reply) Time() time.Time {
	return TimeOf(r.Int())
}

// TimeOrZero is a time that may be left out.
func (r *Reply) TimeOrZero() time.Time {
	if r.next >= len(r.values) {
		return time.Time{}
	}
	return r.Time()
}

// List is the next value, a reply within the reply.
func (r *Reply) List() Reply {
	inner := Reply{script: r.script, err: r.err}
	if r.err != nil || r.next >= len(r.values) {
		inner.Unexpected("too few values")
		return inner
	}
	var ok bool
	if inner.values, ok = r.values[r.next].([]any); !ok {
		inner.Unexpected(fmt.Sprintf("value %d is a %T, want a list", r.next, r.values[r.next]))
	}
	r.next++
	return inner
}

// Count reads how many groups of `width` values follow.
func (r *Reply) Count(width int) int {
	return r.Groups(r.Int(), width)
}

// Groups is n, or 0 when so many groups of `width` values can't follow.
func (r *Reply) Groups(n int64, width int) int {
	if r.err == nil && (n < 0 || n > int64((len(r.values)-r.next)/width)) {
		r.Unexpected(fmt.Sprintf("%d groups of %d in %d values", n, width, len(r.values)))
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

// Unexpected notes that the script never gives such an answer, unless there was a fault before.
func (r *Reply) Unexpected(what string) {
	if r.err == nil {
		r.err = r.script.Unexpected(what)
	}
}

// TimeOf is the instant of microseconds since 1970; 0 is the zero time.
func TimeOf(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// Instant is an instant as scripts take it: microseconds since 1970, 0 for the zero time.
func Instant(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Micros is a duration as scripts take it: in whole microseconds, rounded up, so never early.
func Micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++
	}
	return us
}

// Flag is a bool as scripts take it: 1 or 0.
func Flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

// TokenText is a token as scripts take it: its 8 bytes; the zero token is none.
func TokenText(token uint64) string {
	if token == 0 {
		return ""
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], token)
	return string(b[:])
}

// Now is Redis' clock.
func Now(ctx context.Context, c redis.Cmdable) (time.Time, error) {
	t, err := c.Time(ctx).Result()
	if err != nil {
		return time.Time{}, fmt.Errorf("TIME: %w", err)
	}
	return t, nil
}
