package throttle

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// Bounds of a limit.
const (
	PermitsMax = 1 << 40          // permits per window, at most; 1,000,000 of sliding and concurrent, which keep a record of each
	windowMin  = time.Millisecond // shortest window
	windowMax  = 10 * 365 * day   // longest window, and longest time to fill what a limit stores

	recordsMax = 1_000_000 // permits per window of a limit that keeps a record of each
	// recordsAtOnce bounds what one call takes of such a limit: to write 10,000 records takes Redis
	// a fifth of a millisecond, which is as long as others may have to wait for a script.
	recordsAtOnce = 10_000
)

// permitsMax is how many permits a window of the limit may hold.
func (l Limit) permitsMax() int {
	if l.kind == kindSliding || l.kind == kindConcurrent {
		return recordsMax
	}
	return PermitsMax
}

const day = 24 * time.Hour

// Limit is an algorithm with its numbers, such as "at most 1 in any 60 s". It
// is made by [Sliding], [Fixed], [Calendar], [Bucket], [SteppedBucket], [GCRA],
// [Leaky], [Smooth], [WarmUp] or [Concurrent], or read by [ParseLimit]; the zero Limit is
// invalid. It is a value: two limits of the same kind and numbers are equal by
// ==, and a Limit may be the key of a map. It never changes.
//
// How to choose: sliding when the limit is a promise to a person ("never two
// in 60 s"); fixed or calendar when it is counted like a bill; bucket when
// bursts are welcome; gcra or leaky when they are not; smooth and warmup to
// spare a server that a job burdens after it was let in; concurrent to limit how
// many run at once.
type Limit struct {
	kind      kind
	unit      Unit // calendar
	permits   int
	window    time.Duration
	burst     int
	over      time.Duration // warmup
	coldMilli int           // warmup
	coldBad   uint64        // bits of a factor that thousandths can't hold: NaN must not be in a value that is compared
	zone      string        // calendar
}

// kind is an algorithm as users name it. Bucket and gcra are one script.
type kind uint8

const (
	kindNone kind = iota
	kindSliding
	kindFixed
	kindCalendar
	kindBucket
	kindStepped
	kindGCRA
	kindLeaky
	kindSmooth
	kindWarmUp
	kindConcurrent
)

// kinds are in the order in which errors list them. A stepped bucket has the
// name of the bucket, which finds that one first.
var kinds = [...]struct {
	name    string
	script  limitscripts.Kind
	example string
	words   []string // what may follow n/duration
}{
	kindNone:       {},
	kindSliding:    {name: "sliding", script: limitscripts.Sliding, example: "1/60s"},
	kindFixed:      {name: "fixed", script: limitscripts.Fixed, example: "fixed 10/1h"},
	kindCalendar:   {name: "calendar", script: limitscripts.Calendar, example: "calendar 10/day Asia/Shanghai"},
	kindBucket:     {name: "bucket", script: limitscripts.GCRA, example: "bucket 100/1s burst 200", words: []string{"burst", "step"}},
	kindStepped:    {name: "bucket", script: limitscripts.Step, example: "bucket 10/1s burst 50 step", words: []string{"burst", "step"}},
	kindGCRA:       {name: "gcra", script: limitscripts.GCRA, example: "gcra 100/1s burst 20", words: []string{"burst"}},
	kindLeaky:      {name: "leaky", script: limitscripts.Smooth, example: "leaky 10/1s"},
	kindSmooth:     {name: "smooth", script: limitscripts.Smooth, example: "smooth 5/1s burst 5", words: []string{"burst"}},
	kindWarmUp:     {name: "warmup", script: limitscripts.WarmUp, example: "warmup 2/1s over 4s cold 3", words: []string{"over", "cold"}},
	kindConcurrent: {name: "concurrent", script: limitscripts.Leases, example: "concurrent 50 lease 30s", words: []string{"lease"}},
}

// Kind returns the first word of the text form: "sliding", "bucket" (stepped
// or not). It is empty for the zero Limit.
func (l Limit) Kind() string { return kinds[l.kind].name }

// Permits returns how many permits a window holds.
func (l Limit) Permits() int { return l.permits }

// Window returns the length of the window, of concurrent that of a lease. Of a calendar it is nominal: 24 h
// for a day, 7 days for a week, 31 days for a month.
func (l Limit) Window() time.Duration { return l.window }

// counts is for how long, at most, a permit counts: for the window, or until what a burst took is filled again.
func (l Limit) counts() time.Duration {
	most := max(l.permits, l.burst)
	return l.window * time.Duration((most+l.permits-1)/l.permits)
}

// noDebt says that the limit holds no more than it admits: what is charged above that is not known afterwards.
func (l Limit) noDebt() bool {
	switch l.kind {
	case kindSliding, kindBucket, kindStepped, kindGCRA:
		return true
	}
	return false
}

// each is the time of one permit.
func (l Limit) each() time.Duration { return l.window / time.Duration(l.permits) }

// Burst returns how many permits a bucket or gcra gives at once, and how many
// smooth stores; 0 for limits that know no burst.
func (l Limit) Burst() int { return l.burst }

// MaxCost returns the largest cost that can ever be granted: what a window or a
// bucket holds, and 10,000 at most of sliding, which keeps a record of each permit. Under leaky, smooth and warmup a job waits for the one before
// it, so any cost up to [PermitsMax] is granted, as long as its own time (its
// cold time under warmup) is at most 10 years.
func (l Limit) MaxCost() int {
	switch l.kind {
	case kindSliding:
		return min(l.permits, recordsAtOnce)
	case kindFixed, kindCalendar:
		return l.permits
	case kindBucket, kindStepped, kindGCRA:
		return l.burst
	case kindConcurrent:
		return min(1, l.permits)
	case kindLeaky, kindSmooth:
		return atMost(permitsWithin(l.permits, l.window))
	case kindWarmUp:
		if l.coldMilli < 1 {
			return 0
		}
		return atMost(permitsWithin(1000*l.permits, l.window) / uint64(l.coldMilli))
	}
	return 0
}

// fits refuses a cost that the limit of a rule can never admit.
func (l Limit) fits(rule string, cost int) error {
	if cost > l.MaxCost() {
		return &ExceedsLimitError{Rule: rule, Cost: cost, Limit: l}
	}
	return nil
}

// permitsWithin is how many permits come in 10 years at n per window.
func permitsWithin(n int, window time.Duration) uint64 {
	if n < 1 || window < windowMin {
		return 0
	}
	hi, lo := bits.Mul64(uint64(n), uint64(windowMax))
	if hi >= uint64(window) {
		return math.MaxUint64
	}
	q, _ := bits.Div64(hi, lo, uint64(window))
	return q
}

func atMost(permits uint64) int { return int(min(permits, PermitsMax)) }

// numbers are what the scripts need to know. The windows of a calendar lie
// around the given instant; their slice is shared and must not be written to.
func (l Limit) numbers(around time.Time) limitscripts.Numbers {
	n := limitscripts.Numbers{Kind: kinds[l.kind].script, Permits: l.permits, Window: l.window}
	switch l.kind {
	case kindCalendar:
		n.Short, n.Bounds = units[l.unit].short, civilBounds(l.unit, l.zone, around)
	case kindWarmUp:
		n.Warm, n.ColdMilli = l.over, l.coldMilli
	default:
		n.Burst = l.burst
	}
	return n
}

// storedMax bounds what warmup stores: its doubles then still tell permits apart.
const storedMax = 1e12

// Bounds of the factor by which a cold permit takes longer, in thousandths.
const (
	coldMilliMin = 1000
	coldMilliMax = 1000 * 1000

	coldWant = "1 to 1000 in thousandths"
)

// LimitError is one fault of a limit. It unwraps to [ErrInvalidLimit].
type LimitError struct {
	Field string // what is wrong: "permits", "window", "burst", "over", "cold", "lease", "unit", "zone", "kind", or "word" of a text
	Value string // as it was given, clipped when long
	Want  string // what is right
}

func (e *LimitError) Error() string { return ErrInvalidLimit.Error() + ": " + e.short() }

func (e *LimitError) Unwrap() error { return ErrInvalidLimit }

func (e *LimitError) short() string {
	what := e.Field + " " + e.Value
	if e.Field == "permits" {
		what = e.Value + " permits"
	}
	return what + ", want " + e.Want
}

// Validate returns everything that is wrong with l, joined, or nil. Each fault
// is a [LimitError] and unwraps to [ErrInvalidLimit].
func (l Limit) Validate() error {
	var errs []error
	for _, f := range l.faults() {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}

// faultList collects what is wrong.
type faultList []*LimitError

func (f *faultList) add(field, value, want string) {
	*f = append(*f, &LimitError{Field: field, Value: value, Want: want})
}

func (f *faultList) whole(field string, value, low, high int, why string) {
	if value < low || value > high {
		f.add(field, strconv.Itoa(value), fmt.Sprintf("%d to %d%s", low, high, why))
	}
}

func (f *faultList) duration(field string, d time.Duration) {
	if d < windowMin || d > windowMax {
		f.add(field, formatWindow(d), "1ms to "+formatWindow(windowMax))
	} else if d%time.Microsecond != 0 {
		f.add(field, formatWindow(d), "whole microseconds")
	}
}

func (l Limit) faults() faultList {
	var f faultList
	if l.kind == kindNone {
		f.add("kind", "none", "a limit from a constructor or ParseLimit")
		return f
	}
	f.whole("permits", l.permits, 1, l.permitsMax(), "")
	switch l.kind {
	case kindCalendar:
		l.calendarFaults(&f)
	case kindConcurrent:
		l.leaseFaults(&f)
	default:
		f.duration("window", l.window)
	}
	l.burstFaults(&f, len(f) == 0)
	if l.kind == kindWarmUp {
		l.warmUpFaults(&f, len(f) == 0)
	}
	return f
}

// burstFaults needs sane permits and a sane window to know how long the burst
// takes to come back.
func (l Limit) burstFaults(f *faultList, sane bool) {
	low, high, why := 1, PermitsMax, ""
	switch l.kind {
	case kindStepped:
		if l.permits <= PermitsMax && l.burst < l.permits {
			f.add("burst", strconv.Itoa(l.burst), fmt.Sprintf("at least the %d permits of a step: what does not fit would be lost at every tick", l.permits))
			return
		}
	case kindSmooth:
		low = 0
	case kindBucket, kindGCRA:
	default:
		return
	}
	if sane {
		fill := permitsWithin(l.permits, l.window)
		if l.kind == kindStepped {
			fill = math.MaxUint64
			if steps := uint64(windowMax / l.window); steps <= fill/uint64(l.permits) {
				fill = steps * uint64(l.permits)
			}
		}
		if fill < uint64(high) {
			high, why = int(fill), ", what is filled within "+formatWindow(windowMax)
		}
	}
	f.whole("burst", l.burst, low, high, why)
}

func (l Limit) warmUpFaults(f *faultList, sane bool) {
	f.duration("over", l.over)
	if l.coldBad != 0 || l.coldMilli < coldMilliMin || l.coldMilli > coldMilliMax {
		f.add("cold", l.coldText(), coldWant)
	}
	if !sane || len(*f) > 0 {
		return
	}
	if l.MaxCost() < 1 {
		f.add("cold", l.coldText(), "cold*window/permits, the time of a cold permit, of at most "+formatWindow(windowMax))
	}
	// Below, nothing can go wrong: over is at least a millisecond, so the most
	// that is stored is above 0.
	if m := l.storedWhenCold(); m > storedMax {
		f.add("over", formatWindow(l.over), fmt.Sprintf("a time in which at most %.0f permits are stored, not %.0f", float64(storedMax), m))
	}
}

// storedWhenCold is what [WarmUp] stores at most, see there.
func (l Limit) storedWhenCold() float64 {
	s, c, d := float64(l.window)/float64(l.permits), float64(l.coldMilli)/1000, float64(l.over)
	return 0.5*d/s + 2*d/(s+c*s)
}

func (l Limit) coldText() string {
	v := float64(l.coldMilli) / 1000
	if l.coldBad != 0 {
		v = math.Float64frombits(l.coldBad)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
