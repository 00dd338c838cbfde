package luascripts

import (
	"context"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
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
)

// Mode says what acquire.lua may do.
type Mode int

// The modes of acquire.lua.
const (
	Try   Mode = iota // now or not at all
	Grant             // grant, or book
	Book              // book, never grant
)

// Numbers are those of `sliding n/W`.
type Numbers struct {
	Permits int
	Window  time.Duration
}

// Member is a job in a line: its id with its cost. The zero Member is nobody.
type Member struct {
	Job  string
	Cost int
}

func (m Member) text() string {
	if m.Job == "" {
		return ""
	}
	return strconv.Itoa(m.Cost) + ":" + m.Job
}

// tokenText is the 8 bytes of a token; the zero token is none.
func tokenText(token uint64) string {
	if token == 0 {
		return ""
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], token)
	return string(b[:])
}

// Turn is a job that may come earlier than it was promised. No Job means none.
type Turn struct {
	At  time.Time
	Job string
}

// AcquireArgs are the arguments of acquire.lua beside its keys. Token is not
// zero. MaxWait below zero means any wait.
type AcquireArgs struct {
	Numbers
	Cost    int
	Token   uint64
	Job     string
	Mode    Mode
	Inline  time.Duration
	MaxWait time.Duration
}

// AcquireReply is the answer of acquire.lua.
type AcquireReply struct {
	Status   Status
	At       time.Time // of the grant or the booking; when refused, the first instant possible
	From     time.Time // since when the ledger admits it, which may be past
	Now      time.Time // Redis' clock
	Promised time.Time // what the job was told before; zero when it was not in the line
	Next     Turn
}

// Acquire runs acquire.lua.
func Acquire(ctx context.Context, c redis.Scripter, k Limit, a AcquireArgs) (AcquireReply, error) {
	longest := int64(-1)
	if a.MaxWait >= 0 {
		longest = int64(a.MaxWait / time.Microsecond)
	}
	r := run(ctx, c, acquireScript, "acquire.lua", 7, k.all(),
		a.Permits, micros(a.Window), a.Cost, tokenText(a.Token), Member{a.Job, a.Cost}.text(), int(a.Mode),
		micros(a.Inline), longest)
	reply := AcquireReply{Status: Status(r.int()), At: r.time(), From: r.time(), Now: r.time(), Promised: r.time()}
	reply.Next = Turn{At: r.time(), Job: r.text()}
	return reply, r.err
}

// CheckArgs are the arguments of check.lua beside its keys.
type CheckArgs struct {
	Limit Limit
	Numbers
	Member
}

// CheckReply is the answer of check.lua.
type CheckReply struct {
	Status Status // Booked, or Refused when it is not known
	At     time.Time
	Now    time.Time
	Before int // permits ahead of it in the line
	Err    error
}

// Check runs check.lua for many bookings in one pipeline, in order. Each
// booking fails alone.
func Check(ctx context.Context, c redis.UniversalClient, bookings []CheckArgs) []CheckReply {
	out := make([]CheckReply, len(bookings))
	again := make([]int, 0, len(bookings))
	for i := range bookings {
		again = append(again, i)
	}
	if again = checkOnce(ctx, c, bookings, out, again); len(again) > 0 {
		// A pipeline can't fall back from NOSCRIPT by itself. On Cluster this
		// loads the script on all masters.
		if err := checkScript.Load(ctx, c).Err(); err == nil {
			checkOnce(ctx, c, bookings, out, again)
		}
	}
	return out
}

// checkOnce sends the bookings of the given indices, and answers which of them
// found no script.
func checkOnce(ctx context.Context, c redis.UniversalClient, bookings []CheckArgs, out []CheckReply, indices []int) []int {
	if len(indices) == 0 {
		return nil
	}
	pipe := c.Pipeline()
	cmds := make([]*redis.Cmd, len(indices))
	for i, n := range indices {
		b := bookings[n]
		keys := []string{b.Limit.ledger, b.Limit.line, b.Limit.promised}
		cmds[i] = checkScript.EvalSha(ctx, pipe, keys, b.Permits, micros(b.Window), b.text())
	}
	_, _ = pipe.Exec(ctx) // each command carries its own error
	var missing []int
	for i, n := range indices {
		if redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") {
			missing = append(missing, n)
		}
		v, err := cmds[i].Result()
		r := readReply("check.lua", 4, v, err)
		out[n] = CheckReply{Status: Status(r.int()), At: r.time(), Now: r.time(), Before: int(r.int())}
		out[n].Err = r.err
	}
	return missing
}

// CancelArgs are the arguments of cancel.lua beside its keys. A zero Token
// means that there is only a booking, an empty Job that there is none.
type CancelArgs struct {
	Numbers
	Cost  int
	Token uint64
	Job   string
	Back  bool // the job gets the first place in the line for its grant
}

// CancelReply is the answer of cancel.lua.
type CancelReply struct {
	Status Status // Granted when a grant was given back, or Refused
	Now    time.Time
	Next   Turn
}

// Cancel runs cancel.lua.
func Cancel(ctx context.Context, c redis.Scripter, k Limit, a CancelArgs) (CancelReply, error) {
	back := 0
	if a.Back {
		back = 1
	}
	r := run(ctx, c, cancelScript, "cancel.lua", 4, k.all(),
		a.Permits, micros(a.Window), a.Cost, tokenText(a.Token), Member{a.Job, a.Cost}.text(), back)
	reply := CancelReply{Status: Status(r.int()), Now: r.time()}
	reply.Next = Turn{At: r.time(), Job: r.text()}
	return reply, r.err
}

// Waiting is one place in a line.
type Waiting struct {
	At   time.Time
	Job  string
	Cost int
}

// PeekReply is the answer of peek.lua.
type PeekReply struct {
	Status  Status
	Now     time.Time
	Free    int
	Next    time.Time // when a newcomer with one permit would go
	Waiting int
	Listed  []Waiting
}

// Peek runs peek.lua. most is 0 to 250.
func Peek(ctx context.Context, c redis.Scripter, k Limit, n Numbers, most int) (PeekReply, error) {
	r := run(ctx, c, peekScript, "peek.lua", 6, []string{k.ledger, k.line, k.promised},
		n.Permits, micros(n.Window), most)
	reply := PeekReply{Status: Status(r.int()), Now: r.time(), Free: int(r.int()), Next: r.time(), Waiting: int(r.int())}
	for range r.count(3) {
		reply.Listed = append(reply.Listed, Waiting{At: r.time(), Job: r.text(), Cost: int(r.int())})
	}
	return reply, r.err
}

// Reset runs reset.lua.
func Reset(ctx context.Context, c redis.Scripter, k Limit, n Numbers) (CancelReply, error) {
	r := run(ctx, c, resetScript, "reset.lua", 4, k.all(), n.Permits, micros(n.Window))
	reply := CancelReply{Status: Status(r.int()), Now: r.time()}
	reply.Next = Turn{At: r.time(), Job: r.text()}
	return reply, r.err
}
