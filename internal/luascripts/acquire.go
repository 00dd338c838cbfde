package luascripts

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// CallsMax bounds how many calls of acquire.lua are one.
const CallsMax = 64

// ErrAskAlone says that a call among others failed: what it comes back with when
// it is sent alone is its answer.
var ErrAskAlone = errors.New("luascripts: the call failed among others")

// AcquireArgs are the arguments of one call of acquire.lua. Token is not zero.
// MaxWait below zero means any wait.
type AcquireArgs struct {
	Parts   []Part // narrowest first, 1 to PartsMax; those of kind Leases last
	Policy  string // whose turns count; "" for a policy of one rule
	Gate    Gate
	Token   uint64
	Job     string
	Mode    Mode
	Inline  time.Duration
	MaxWait time.Duration
	Tell    bool // the permits that are left, too
}

// AcquireReply is the answer to one call of acquire.lua.
type AcquireReply struct {
	Status   Status
	Part     int       // which refuses, counted from 1; 0 for the gate
	At       time.Time // of the grant or the booking; when refused, the first instant possible
	From     time.Time // since when the ledgers admit it, which may be past
	Now      time.Time // Redis' clock
	Promised time.Time // what the job was told before; zero when it was not in the line
	Fence    int64     // of a grant with a lease: grows from lease to lease
	Worth    []int64   // of a grant, by part: what cancel.lua needs to give all of it back; 0 is not known
	Free     []int     // by part, when Tell
	Next     []Turn
	Version  int64 // of the part's ledger, when Outdated
}

// Acquire runs acquire.lua for one call.
func Acquire(ctx context.Context, c redis.Scripter, a AcquireArgs) (AcquireReply, error) {
	keys, args := acquireCall([]*AcquireArgs{&a})
	r := run(ctx, c, acquireScript, "acquire.lua", 2, keys, args...)
	now := r.time()
	return readAcquire(r, now, len(a.Parts))
}

// Answer is what one call among others came back with.
type Answer struct {
	AcquireReply
	Err error // ErrAskAlone when it failed and others did not
}

// AcquireMany runs acquire.lua for 1 to [CallsMax] calls, in order: each as if it
// were sent alone. On Cluster their keys share a slot.
func AcquireMany(ctx context.Context, c redis.Scripter, calls []*AcquireArgs) ([]Answer, error) {
	keys, args := acquireCall(calls)
	r := run(ctx, c, acquireScript, "acquire.lua", 1+len(calls), keys, args...)
	out, now := make([]Answer, len(calls)), r.time()
	if r.err != nil {
		return nil, r.err
	}
	for i, a := range calls {
		out[i].AcquireReply, out[i].Err = readAcquire(r, now, len(a.Parts))
	}
	return out, nil
}

// askAlone is the answer to a call that failed among others.
const askAlone = -2

// readAcquire reads the answer to a call, in short or in full.
func readAcquire(all *reply, now time.Time, parts int) (AcquireReply, error) {
	out := AcquireReply{Now: now, Worth: make([]int64, parts), Free: make([]int, parts)}
	if short, ok := all.isInt(); ok {
		if short == askAlone {
			return AcquireReply{}, ErrAskAlone
		}
		out.Status, out.At = Granted, now
		if short >= 0 {
			out.From = now.Add(-time.Duration(short) * time.Microsecond)
		}
		return out, all.err
	}
	r := all.list()
	out.Status, out.Part, out.At, out.From = Status(r.int()), int(r.orZero()), r.timeOrZero(), r.timeOrZero()
	out.Promised, out.Fence = r.timeOrZero(), r.orZero()
	turns := r.orZero()
	if out.Status == Outdated {
		outdated(&out.At, &out.Version)
	}
	for i := range parts {
		out.Worth[i], out.Free[i] = r.orZero(), int(r.orZero())
	}
	out.Next = r.turns(turns)
	return out, r.err
}

// acquireCall are the keys and arguments of acquire.lua.
func acquireCall(calls []*AcquireArgs) (keys []string, args []any) {
	parts := 0
	for _, a := range calls {
		parts += len(a.Parts)
	}
	keys, args = make([]string, 0, 5*parts+1), make([]any, 1, 2+len(calls))
	args[0] = len(calls)
	forms := make([]string, 0, 1)
	for _, a := range calls {
		keys = appendPartKeys(keys, a.Parts, a.Policy)
		if !a.Gate.isZero() {
			keys = append(keys, widest(a.Parts).opening())
		}
		text := a.form()
		form := slices.Index(forms, text)
		if form < 0 {
			form = len(forms)
			forms = append(forms, text)
		}
		args = append(args, a.call(byte(form+1)))
	}
	for _, text := range forms {
		args = append(args, text)
	}
	return keys, args
}

// call is what one call differs in from others of its form.
func (a *AcquireArgs) call(form byte) string {
	b := append(make([]byte, 0, 64), form)
	b = binary.BigEndian.AppendUint64(b, a.Token)
	return string(append(b, a.Job...))
}

// form is what a call has in common with others: all but its keys, token and job.
func (a *AcquireArgs) form() string {
	longest := int64(-1)
	if a.MaxWait >= 0 {
		longest = int64(a.MaxWait / time.Microsecond)
	}
	first := &a.Parts[0]
	b := append(make([]byte, 0, 192), '-', '0'+byte(a.Mode))
	if a.alone() && first.isRing() && a.Mode != Book && !a.Tell {
		b[0] = 'r'
		if first.isOne() {
			b[0] = 'o'
		}
	}
	b = append(b, binary.BigEndian.AppendUint64(nil, uint64(first.Version))[1:]...)
	b = append(strconv.AppendInt(b, micros(first.Window), 10), '|')
	for _, n := range [...]int64{int64(len(a.Parts)), int64(a.Mode), micros(a.Inline), longest} {
		b = append(strconv.AppendInt(b, n, 10), '|')
	}
	b = append(append(b, a.Gate.text()...), '|', '0'+byte(flag(a.Tell)), '|', '0'+byte(flag(a.Policy != "")), '|')
	for i, group := range groups(a.Parts) {
		p := &a.Parts[i]
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

// alone says that a call is decided by one rule and nothing else.
func (a *AcquireArgs) alone() bool { return len(a.Parts) == 1 && a.Policy == "" && a.Gate.isZero() }

// isRing says that the part may go the way of ring.lua.
func (p *Part) isRing() bool { return p.Kind == Sliding && p.Closed.IsZero() && p.Cost <= p.Permits }

// isOne says that it may go that of one.lua, too.
func (p *Part) isOne() bool { return p.Permits == 1 && p.Window >= copyLife }

// copyLife is COPY of clock.lua.
const copyLife = time.Minute
