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
	NotCovered // the bounds of a calendar lie elsewhere than Redis' clock
	Outdated   // the ledger was written under a newer limit: the reply has its version
)

// Mode says what acquire.lua may do.
type Mode int

// The modes of acquire.lua.
const (
	Try   Mode = iota // now or not at all
	Grant             // grant, or book
	Book              // book, never grant
)

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
		return strconv.FormatInt(micros(n.Warm), 10) + " " + strconv.Itoa(n.ColdMilli)
	case Calendar:
		b := strconv.AppendInt(make([]byte, 0, 18*len(n.Bounds)+18), micros(n.Short), 10)
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
	Worth    int64     // of a grant: what cancel.lua needs to give all of it back; 0 is not known
	Next     Turn
	Version  int64 // of the ledger's limit, when Outdated
}

// Acquire runs acquire.lua.
func Acquire(ctx context.Context, c redis.Scripter, k Limit, a AcquireArgs) (AcquireReply, error) {
	longest := int64(-1)
	if a.MaxWait >= 0 {
		longest = int64(a.MaxWait / time.Microsecond)
	}
	r := run(ctx, c, acquireScript, "acquire.lua", 8, k.all(),
		a.Kind.text(), a.Permits, micros(a.Window), a.more(), a.Version, a.Cost, tokenText(a.Token), Member{a.Job, a.Cost}.text(), int(a.Mode),
		micros(a.Inline), longest)
	reply := AcquireReply{Status: Status(r.int()), At: r.time(), From: r.time(), Now: r.time(), Promised: r.time()}
	reply.Worth = r.int()
	reply.Next = Turn{At: r.time(), Job: r.text()}
	outdated(reply.Status, &reply.At, &reply.Version)
	return reply, r.err
}

// outdated takes the version out of where an instant stands otherwise.
func outdated(status Status, at *time.Time, version *int64) {
	if status == Outdated && !at.IsZero() {
		*version, *at = at.UnixMicro(), time.Time{}
	}
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

	Version int64 // of the ledger's limit, when Outdated
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
		cmds[i] = checkScript.EvalSha(ctx, pipe, keys, b.Kind.text(), b.Permits, micros(b.Window), b.more(), b.Version, b.text())
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
		outdated(out[n].Status, &out[n].At, &out[n].Version)
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
	Worth int64 // as the grant's answer had it
	Back  bool  // the job gets the first place in the line for its grant
}

// CancelReply is the answer of cancel.lua.
type CancelReply struct {
	Status  Status // Granted when a grant was given back, or Refused
	Now     time.Time
	Next    Turn
	Version int64 // of the ledger's limit, when Outdated
}

// Cancel runs cancel.lua.
func Cancel(ctx context.Context, c redis.Scripter, k Limit, a CancelArgs) (CancelReply, error) {
	back := 0
	if a.Back {
		back = 1
	}
	r := run(ctx, c, cancelScript, "cancel.lua", 4, k.all(),
		a.Kind.text(), a.Permits, micros(a.Window), a.more(), a.Version, a.Cost, tokenText(a.Token), Member{a.Job, a.Cost}.text(), back, a.Worth)
	reply := CancelReply{Status: Status(r.int()), Now: r.time()}
	reply.Next = Turn{At: r.time(), Job: r.text()}
	outdated(reply.Status, &reply.Next.At, &reply.Version)
	return reply, r.err
}

// Waiting is one place in a line.
type Waiting struct {
	At   time.Time
	Job  string
	Cost int
}

// PeekArgs are the arguments of peek.lua beside its keys.
type PeekArgs struct {
	Numbers
	Cost int // of the newcomer whose instant is asked for, at least 1
	Most int // how many of the line to list, 0 to 250
}

// PeekReply is the answer of peek.lua.
type PeekReply struct {
	Status  Status
	Now     time.Time
	Free    int
	Next    time.Time     // when the newcomer would go
	Life    time.Duration // until the ledger is forgotten; 0 when there is none
	Waiting int
	Listed  []Waiting
	Version int64 // of the ledger's limit, when Outdated
}

// Peek runs peek.lua.
func Peek(ctx context.Context, c redis.Scripter, k Limit, a PeekArgs) (PeekReply, error) {
	r := run(ctx, c, peekScript, "peek.lua", 7, []string{k.ledger, k.line, k.promised},
		a.Kind.text(), a.Permits, micros(a.Window), a.more(), a.Version, a.Cost, a.Most)
	reply := PeekReply{Status: Status(r.int()), Now: r.time(), Free: int(r.int()), Next: r.time()}
	reply.Life = time.Duration(r.int()) * time.Millisecond
	reply.Waiting = int(r.int())
	outdated(reply.Status, &reply.Next, &reply.Version)
	for range r.count(3) {
		reply.Listed = append(reply.Listed, Waiting{At: r.time(), Job: r.text(), Cost: int(r.int())})
	}
	return reply, r.err
}

// Reset runs reset.lua.
func Reset(ctx context.Context, c redis.Scripter, k Limit, n Numbers) (CancelReply, error) {
	r := run(ctx, c, resetScript, "reset.lua", 4, k.all(), n.Kind.text(), n.Permits, micros(n.Window), n.more(), n.Version)
	reply := CancelReply{Status: Status(r.int()), Now: r.time()}
	reply.Next = Turn{At: r.time(), Job: r.text()}
	outdated(reply.Status, &reply.Next.At, &reply.Version)
	return reply, r.err
}
