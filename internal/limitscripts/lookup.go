package limitscripts

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// Waiting is one place in a line.
type Waiting struct {
	At   time.Time
	Job  string
	Cost int
}

// PeekArgs are the arguments of peek.lua beside its keys.
type PeekArgs struct {
	Numbers
	Cost              int       // of the newcomer whose instant is asked for, at least 1
	Most              int       // how many of the line to list, 0 to 250
	Closed            time.Time // until when the rule is closed; zero for not
	Spent             int       // how many of the newest grants to list, 0 to 250
	HoldAfterFailover bool      // nothing goes while permits may count that the server has not heard of
}

// Spent is what was granted at an instant. Of a kind that only counts, At is the last of so
// many permits; of a lease it is its end.
type Spent struct {
	At      time.Time
	Permits int
}

// PeekReply is the answer of peek.lua.
type PeekReply struct {
	Status  Status
	Now     time.Time
	Free    int
	Next    time.Time     // when the newcomer would go
	Life    time.Duration // how long the ledger is kept from now on; 0 without a ledger
	Closed  time.Time     // until when the key or its rule is closed; zero for not
	Own     time.Time     // until when the key itself is closed; zero for not
	Held    Held          // for a job of this cost
	Waiting int
	Listed  []Waiting
	Spent   []Spent
	Version int64 // of the ledger's limit, when Outdated
}

var peekScript = luascripts.NewScript("limit/peek")

// Peek runs peek.lua.
func Peek(ctx context.Context, c redis.Scripter, k LimitKeys, a PeekArgs) (PeekReply, error) {
	r, held := runHeld(ctx, c, peekScript, 11, a.HoldAfterFailover, k.all(),
		a.Kind.text(), a.Permits, luascripts.Micros(a.Window), a.more(), a.Version, a.Cost, a.Most, luascripts.Instant(a.Closed), a.Spent)
	reply := PeekReply{Status: statusOf(r), Now: r.Time(), Free: int(r.Int()), Next: r.Time()}
	reply.Life = time.Duration(r.Int()) * time.Millisecond
	reply.Closed, reply.Own = r.Time(), r.Time()
	reply.Held = held.read(r)
	reply.Waiting = int(r.Int())
	if reply.Status == Outdated {
		outdated(&reply.Next, &reply.Version)
	}
	listed, spent := r.Int(), r.Int()
	for range r.Groups(listed, 3) {
		reply.Listed = append(reply.Listed, Waiting{At: r.Time(), Job: r.Text(), Cost: int(r.Int())})
	}
	for range r.Groups(spent, 2) {
		reply.Spent = append(reply.Spent, Spent{At: r.Time(), Permits: int(r.Int())})
	}
	return reply, r.Err()
}

// LookupReply is the answer of lookup.lua.
type LookupReply struct {
	Status  Status // Booked, or Refused when it is not known
	Rule    int    // by which it waits, counted from 1
	At      time.Time
	Now     time.Time
	Permits int       // ahead of it in the line where it stands
	Jobs    int       // the same, jobs
	Parked  bool      // it came too late
	Closed  time.Time // until when the key of the rule is closed; zero for not
	Held    Held      // of that rule
	Version int64     // of the rule's ledger, when Outdated
}

// Held is until when the server grants nothing because it may have forgotten grants, see [AcquireArgs].HoldAfterFailover.
type Held struct {
	Until   time.Time // zero for not
	Unknown bool      // nobody can say it
}

// runHeld runs a script that only reads. Its last argument says whether nothing goes while permits may count that the
// server has not heard of. Only a function knows that. Where there are no functions, the script runs without, and the
// answer is that nobody knows.
func runHeld(ctx context.Context, c redis.Scripter, s *luascripts.Script, n int, hold bool, keys []string, args ...any) (*luascripts.Reply, Held) {
	if hold {
		if r, ran := s.AskFunction(ctx, c, n, keys, append(slices.Clone(args), 1)...); ran {
			return r, Held{}
		}
	}
	return s.Ask(ctx, c, n, keys, append(args, 0)...), Held{Unknown: hold}
}

// read reads what a script says of a hold, where it was asked.
func (h Held) read(r *luascripts.Reply) Held {
	if us := r.Int(); us < 0 {
		h.Unknown = true
	} else if us > 0 {
		h.Until = time.UnixMicro(us)
	}
	return h
}

var lookupScript = luascripts.NewScript("limit/lookup")

// Lookup runs lookup.lua.
func Lookup(ctx context.Context, c redis.Scripter, a RefreshArgs, hold bool) (LookupReply, error) {
	r, held := runHeld(ctx, c, lookupScript, 9, hold, keysOfRules(a.Rules, a.Policy), rulesText(a.Rules), a.Job)
	reply := LookupReply{Status: statusOf(r), Rule: ruleOf(r, len(a.Rules)), At: r.Time(), Now: r.Time(), Permits: int(r.Int()), Jobs: int(r.Int())}
	reply.Parked = r.Int() == 1
	reply.Closed = r.Time()
	reply.Held = held.read(r)
	if reply.Status == Outdated {
		outdated(&reply.At, &reply.Version)
	}
	return reply, r.Err()
}

// ListArgs are the arguments of list.lua beside its keys.
type ListArgs struct {
	Numbers
	Closed            time.Time // until when the rule is closed; zero for not
	From              Ticket    // the first to list
	Skip              int       // so many of that very ticket were seen
	Most              int       // 1 to 250
	HoldAfterFailover bool      // as in PeekArgs
}

// Ticket orders a line. The zero Ticket is before all.
type Ticket struct {
	Number int64
	Some   bool
}

func (t Ticket) text() string {
	if !t.Some {
		return ""
	}
	return strconv.FormatInt(t.Number, 10)
}

// Listed is one place in a line.
type Listed struct {
	Waiting
	Parked bool // it came too late, at its instant
	Ticket int64
}

// ListReply is the answer of list.lua.
type ListReply struct {
	Status  Status
	Now     time.Time
	Version int64 // of the ledger's limit, when Outdated
	All     int   // how many are in the line
	Listed  []Listed
}

var listScript = luascripts.NewScript("limit/list")

// List runs list.lua.
func List(ctx context.Context, c redis.Scripter, k LimitKeys, a ListArgs) (ListReply, error) {
	r, _ := runHeld(ctx, c, listScript, 5, a.HoldAfterFailover, k.all(),
		a.Kind.text(), a.Permits, luascripts.Micros(a.Window), a.more(), a.Version, luascripts.Instant(a.Closed), a.From.text(), a.Skip, a.Most)
	reply := ListReply{Status: statusOf(r), Now: r.Time(), Version: r.Int(), All: int(r.Int())}
	for range r.Count(5) {
		w := Waiting{At: r.Time(), Job: r.Text(), Cost: int(r.Int())}
		reply.Listed = append(reply.Listed, Listed{Waiting: w, Parked: r.Int() == 1, Ticket: r.Int()})
	}
	return reply, r.Err()
}
