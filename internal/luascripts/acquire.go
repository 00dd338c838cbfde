package luascripts

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// CallsMax bounds how many calls of acquire.lua are one.
const CallsMax = 64

// ErrRetrySingly says that a call among others failed: what it comes back with when
// it is sent alone is its answer.
var ErrRetrySingly = errors.New("luascripts: the call failed among others")

// AcquireArgs are the arguments of one call of acquire.lua. Token is not zero.
// MaxWait below zero means any wait.
type AcquireArgs struct {
	Rules     []RuleCall // narrowest first, 1 to RulesMax; those of kind Leases last
	Policy    string     // whose turns count; "" for a policy of one rule
	Gate      Gate
	Token     uint64
	Job       string
	Mode      Mode
	Inline    time.Duration
	MaxWait   time.Duration
	Tell      bool           // the permits that are left, too
	Templates *CallTemplates // of calls before, with which it may share its form; nil for none
}

// AcquireReply is the answer to one call of acquire.lua.
type AcquireReply struct {
	Status   Status
	Rule     int         // which refuses, counted from 1; 0 for the gate
	At       time.Time   // of the grant or the booking; when refused, the first instant possible
	From     time.Time   // since when the ledgers admit it, which may be past
	Now      time.Time   // Redis' clock
	Promised time.Time   // what the job was told before; zero when it was not in the line
	Fence    int64       // of a grant with a lease: grows from lease to lease
	Each     []time.Time // of a grant, by part: its instant, where they differ; else none, and all are At
	Worth    []int64     // of a grant, by part: what cancel.lua needs to give all of it back; 0 is not known
	Free     []int       // by part, when Tell
	Promoted []Promotion
	Version  int64 // of the part's ledger, when Outdated
}

// Call is one call of acquire.lua and what it came back with.
type Call struct {
	AcquireArgs
	AcquireReply
	Err error // ErrRetrySingly when it failed and others did not
}

// Acquire runs acquire.lua for one call.
func Acquire(ctx context.Context, c redis.Scripter, a AcquireArgs) (AcquireReply, error) {
	call := Call{AcquireArgs: a}
	r := sendAcquire(ctx, c, []*Call{&call})
	call.read(&r, r.time())
	return call.AcquireReply, call.Err
}

// AcquireMany runs acquire.lua for 1 to [CallsMax] calls, in order: each as if it
// were sent alone. On Cluster their keys share a slot. After an error none has an
// answer.
func AcquireMany(ctx context.Context, c redis.Scripter, calls []*Call) error {
	r := sendAcquire(ctx, c, calls)
	return readMany(calls, &r)
}

// readMany reads the answers to calls that were sent together.
func readMany(calls []*Call, r *reply) error {
	now := r.time()
	if r.err != nil {
		return r.err
	}
	for _, call := range calls {
		call.read(r, now)
		if call.Err == nil && call.Status == askAlone {
			call.Err = ErrRetrySingly
		}
	}
	return nil
}

// ask sends calls, and begins to read the answer.
func sendAcquire(ctx context.Context, c redis.Scripter, calls []*Call) reply {
	command := acquireCommand(calls)
	v, err := command.run(ctx, c)
	return acquireReply(calls, v, err)
}

func acquireReply(calls []*Call, v any, err error) reply {
	return replyOf("acquire.lua", 1+len(calls), v, err)
}

// askAlone is the answer to a call that failed among others.
const askAlone Status = -1

// form is what a call has in common with others: all but its keys, token and job.
func (a *AcquireArgs) form() string {
	longest := int64(-1)
	if a.MaxWait >= 0 {
		longest = int64(a.MaxWait / time.Microsecond)
	}
	first := &a.Rules[0]
	b := append(make([]byte, 0, 192), '-', '0'+byte(a.Mode))
	if a.alone() && first.isRing() && !a.Mode.Books() && !a.Tell {
		b[0] = 'r'
		if first.isOne() {
			b[0] = 'o'
		}
	}
	if b[0] != '-' {
		b = appendBytes(b, 7, first.Version)
		b = appendBytes(b, 7, micros(first.Window))
		b = appendBytes(b, 3, int64(first.Permits))
		b = appendBytes(b, 3, int64(first.Cost))
		b = appendBytes(b, 7, micros(a.Inline))
		b = appendBytes(b, 7, 1+longest)
	}
	for _, n := range [...]int64{int64(len(a.Rules)), int64(a.Mode), micros(a.Inline), longest} {
		b = append(strconv.AppendInt(b, n, 10), '|')
	}
	b = append(append(b, a.Gate.text()...), '|', '0'+byte(flag(a.Tell)), '|', '0'+byte(flag(a.Policy != "")), '|')
	for i, group := range groups(a.Rules) {
		p := &a.Rules[i]
		b = append(b, byte(p.Kind), '|')
		b = append(strconv.AppendInt(b, int64(p.Permits), 10), '|')
		b = append(strconv.AppendInt(b, micros(p.Window), 10), '|')
		b = append(append(b, p.more()...), '|')
		for _, n := range [...]int64{p.Version, int64(p.Cost), int64(group), instant(p.Closed), p.Worth} {
			b = append(strconv.AppendInt(b, n, 10), '|')
		}
	}
	return string(b)
}

// appendBytes appends the last bytes of a number, which is not negative.
func appendBytes(b []byte, width int, n int64) []byte {
	var all [8]byte
	binary.BigEndian.PutUint64(all[:], uint64(n)) // #nosec G115
	return append(b, all[len(all)-width:]...)
}

// alone says that a call is decided by one rule and nothing else.
func (a *AcquireArgs) alone() bool { return len(a.Rules) == 1 && a.Policy == "" && a.Gate.isZero() }

// isRing says that the part may go the way of ring.lua.
func (p *RuleCall) isRing() bool {
	return p.Kind == Sliding && p.Closed.IsZero() && p.Cost <= p.Permits
}

// isOne says that it may go that of one.lua, too.
func (p *RuleCall) isOne() bool { return p.Permits == 1 && p.Window >= copyLife }

// copyLife is COPY of numbers.lua.
const copyLife = time.Minute
