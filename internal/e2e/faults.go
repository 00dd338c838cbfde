package e2e

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of [Faults.After], in whole seconds as Retry-After is.
const (
	faultAfterDefault = 30 * time.Second
	faultAfterMin     = time.Second
	faultAfterMax     = time.Hour
)

// Share is a part of all messages, in millionths.
type Share int

// shareAll is every message.
const shareAll Share = 1_000_000

// String returns s in percent: 5000 is "0.5%".
func (s Share) String() string {
	return strconv.FormatFloat(float64(s)/10_000, 'f', -1, 64) + "%"
}

// Faults says how often the embedded gateway answers with which fault: on its
// own, as a provider has bad moments, not for what the message is. The zero
// Faults never does. It prints as [ParseFaults] reads it.
type Faults struct {
	TooMany     Share         // 429 with Retry-After, which closes the phone number for that long
	After       time.Duration // that Retry-After, whole seconds, 1s to 1h; zero without TooMany
	Unavailable Share         // 503 without Retry-After
	Timeout     Share         // the message is taken, and there is no answer
	Seed        uint64        // decides which messages; the same seed, the same ones
}

// ParseFaults reads "429=5%,after=2s,5xx=1%,timeout=0.5%,seed=7", in any order,
// with at least one of 429, 5xx and timeout. A share is 0% to 100% with up to
// four decimals, and they add up to 100% at most. Seed is 1 to 2^64-1; without it Seed is
// zero. After defaults to 30s. The error is all that is wrong, joined.
func ParseFaults(text string) (Faults, error) {
	var f Faults
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("-gateway-faults: "+format, a...)) }
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		if seen[name] {
			bad("%q is given twice", name)
		}
		seen[name] = true
		if fault := f.set(name, value); fault != "" {
			bad("%s", fault)
		}
	}
	if !seen["429"] && !seen["5xx"] && !seen["timeout"] {
		bad("want at least one of 429, 5xx and timeout, such as 5xx=1%%")
	}
	if seen["after"] && !seen["429"] {
		bad("after has no effect without 429")
	}
	if sum := f.TooMany + f.Unavailable + f.Timeout; sum > shareAll {
		bad("the shares add up to %v, want 100%% at most", sum)
	}
	if len(errs) > 0 {
		return Faults{}, errors.Join(errs...)
	}
	if seen["429"] {
		f.After = cmp.Or(f.After, faultAfterDefault)
	}
	return f, nil
}

// set sets what name stands for, or says what is wrong.
func (f *Faults) set(name, value string) (fault string) {
	switch name {
	case "429":
		return f.TooMany.set(name, value)
	case "5xx":
		return f.Unavailable.set(name, value)
	case "timeout":
		return f.Timeout.set(name, value)
	case "after":
		d, err := time.ParseDuration(value)
		if err != nil || d < faultAfterMin || d > faultAfterMax || d%time.Second != 0 {
			return fmt.Sprintf("after is %q, want whole seconds, 1s to 1h", value)
		}
		f.After = d
	case "seed":
		seed, err := strconv.ParseUint(value, 10, 64)
		if err != nil || seed == 0 {
			return fmt.Sprintf("seed is %q, want 1 to 2^64-1", value)
		}
		f.Seed = seed
	default:
		return fmt.Sprintf("%q is none of 429, after, 5xx, timeout and seed", name)
	}
	return ""
}

// set reads a percentage as digits, not as a float: 0.1 has none. It says what is
// wrong.
func (s *Share) set(name, value string) (fault string) {
	const decimals = "0000"
	number, ok := strings.CutSuffix(value, "%")
	whole, frac, dot := strings.Cut(number, ".")
	if ok && whole != "" && len(whole) <= 3 && (frac != "" || !dot) && len(frac) <= len(decimals) {
		n, err := strconv.ParseUint(whole+frac+decimals[len(frac):], 10, 32)
		if err == nil && n <= uint64(shareAll) {
			*s = Share(n)
			return ""
		}
	}
	return fmt.Sprintf("%s is %q, want 0%% to 100%%, with up to four decimals", name, value)
}

// String returns the faults as [ParseFaults] reads them, "" for none.
func (f Faults) String() string {
	if f == (Faults{}) {
		return ""
	}
	var parts []string
	if f.After > 0 {
		parts = append(parts, "429="+f.TooMany.String(), "after="+strconv.Itoa(int(f.After/time.Second))+"s")
	}
	if f.Unavailable > 0 || f.After == 0 && f.Timeout == 0 { // a text names one at least
		parts = append(parts, "5xx="+f.Unavailable.String())
	}
	if f.Timeout > 0 {
		parts = append(parts, "timeout="+f.Timeout.String())
	}
	if f.Seed > 0 {
		parts = append(parts, "seed="+strconv.FormatUint(f.Seed, 10))
	}
	return strings.Join(parts, ",")
}

// fault is what becomes of one message at the gateway.
type fault int

const (
	faultNone        fault = iota // taken, 202
	faultTooMany                  // not taken, 429
	faultUnavailable              // not taken, 503
	faultTimeout                  // taken, no answer
)

// draw returns the fault of the n-th draw for the message with that id, from 1. It
// follows from its arguments alone: a run can be repeated, whatever order its
// messages come in.
func (f Faults) draw(id string, n uint64) fault {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 16+len(id)), f.Seed)
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint64(b, n), id...))
	at := Share(binary.BigEndian.Uint64(sum[:]) % uint64(shareAll))
	switch {
	case at < f.TooMany:
		return faultTooMany
	case at < f.TooMany+f.Unavailable:
		return faultUnavailable
	case at < f.TooMany+f.Unavailable+f.Timeout:
		return faultTimeout
	}
	return faultNone
}

// FaultStats is what the embedded gateway's [Faults] have come to.
type FaultStats struct {
	TooMany       int // answers 429 that closed a phone number
	EarlyAfter429 int // messages to a closed phone number, 429 too: breaches by a sender that does not heed Retry-After
	UnderWay429   int // such that were granted before the sender could know, 429 too
	Unavailable   int // answers 503
	TimedOut      int // messages that were taken and not answered
}

// hearsWithin is how long a 429 may take until it is heard of where grants are made:
// what is granted up to then was under way, and no breach. It is less than the
// least Retry-After, so that something is left to be judged.
const hearsWithin = faultAfterMin / 2

// faultMaker decides on each message that comes to the gateway. It is not safe
// for concurrent use.
//
// With after=2s a phone number that gets its 429 at 10 s is closed: a message at
// 11.5 s is early, and its 429 says 1 s, the rest rounded up. It does not close it
// for longer: at 12 s the phone number is open. A message at 11.5 s that was granted
// at 10.5 s or before was under way, and is counted apart.
type faultMaker struct {
	faults Faults
	draws  map[string]uint64  // by message id
	closed map[string]closing // by PhoneKey
	stats  FaultStats
}

// closing is the time in which a phone number is closed.
type closing struct{ from, until time.Time }

func newFaultMaker(f Faults) *faultMaker {
	return &faultMaker{faults: f, draws: map[string]uint64{}, closed: map[string]closing{}}
}

// next returns the fault of a message that comes at that instant, with the
// Retry-After of a 429 in whole seconds. An early message draws nothing, so that
// what is drawn does not depend on how many came early.
func (m *faultMaker) next(a Arrival, at time.Time) (f fault, after time.Duration) {
	if c, ok := m.closed[a.Key]; ok {
		if at.Before(c.until) {
			if time.UnixMicro(a.GrantedUs).After(c.from.Add(hearsWithin)) {
				m.stats.EarlyAfter429++
			} else {
				m.stats.UnderWay429++
			}
			return faultTooMany, ceilSecond(c.until.Sub(at))
		}
		delete(m.closed, a.Key)
	}
	if m.faults == (Faults{}) {
		return faultNone, 0
	}
	m.draws[a.ID]++
	f = m.faults.draw(a.ID, m.draws[a.ID])
	switch f {
	case faultNone:
	case faultTooMany:
		m.stats.TooMany++
		m.closed[a.Key] = closing{at, at.Add(m.faults.After)}
		after = m.faults.After
	case faultUnavailable:
		m.stats.Unavailable++
	case faultTimeout:
		m.stats.TimedOut++
	}
	return f, after
}

func ceilSecond(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
