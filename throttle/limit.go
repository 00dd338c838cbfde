package throttle

import (
	"math"
	"math/bits"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// Bounds of a limit.
const (
	PermitsMax = 1_000_000        // permits per window, at most
	WindowMin  = time.Millisecond // shortest window
	WindowMax  = 10 * 365 * day   // longest window, and longest time to fill what a limit stores
)

const day = 24 * time.Hour

// Limit is an algorithm with its numbers, such as "at most 1 in any 60 s". It
// is made by [Sliding], [Fixed], [Calendar], [Bucket], [SteppedBucket], [GCRA],
// [Leaky], [Smooth], [WarmUp] or [Concurrent], or read by [ParseLimit]; the zero Limit is
// invalid. It is a value: two limits of the same kind and numbers are equal by
// ==, and a Limit may be the key of a map. It never changes and talks to nobody.
//
// How to choose: sliding when the limit is a promise to somebody ("never two
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
	script  luascripts.Kind
	example string
	words   []string // what may follow n/duration
}{
	kindNone:       {},
	kindSliding:    {name: "sliding", script: luascripts.Sliding, example: "1/60s"},
	kindFixed:      {name: "fixed", script: luascripts.Fixed, example: "fixed 10/1h"},
	kindCalendar:   {name: "calendar", script: luascripts.Calendar, example: "calendar 10/day Asia/Shanghai"},
	kindBucket:     {name: "bucket", script: luascripts.GCRA, example: "bucket 100/1s burst 200", words: []string{"burst", "step"}},
	kindStepped:    {name: "bucket", script: luascripts.Step, example: "bucket 10/1s burst 50 step", words: []string{"burst", "step"}},
	kindGCRA:       {name: "gcra", script: luascripts.GCRA, example: "gcra 100/1s burst 20", words: []string{"burst"}},
	kindLeaky:      {name: "leaky", script: luascripts.Smooth, example: "leaky 10/1s"},
	kindSmooth:     {name: "smooth", script: luascripts.Smooth, example: "smooth 5/1s burst 5", words: []string{"burst"}},
	kindWarmUp:     {name: "warmup", script: luascripts.WarmUp, example: "warmup 2/1s over 4s cold 3", words: []string{"over", "cold"}},
	kindConcurrent: {name: "concurrent", script: luascripts.Leases, example: "concurrent 50 lease 30s", words: []string{"lease"}},
}

// Kind returns the first word of the text form: "sliding", "bucket" (stepped
// or not). It is empty for the zero Limit.
func (l Limit) Kind() string { return kinds[l.kind].name }

// Permits returns how many permits a window holds.
func (l Limit) Permits() int { return l.permits }

// Window returns the length of the window, of concurrent that of a lease. Of a calendar it is nominal: 24 h
// for a day, 7 days for a week, 31 days for a month.
func (l Limit) Window() time.Duration { return l.window }

// Burst returns how many permits a bucket or gcra gives at once, and how many
// smooth stores; 0 for limits that know no burst.
func (l Limit) Burst() int { return l.burst }

// MaxCost returns the largest cost that can ever be granted: what a window or a
// bucket holds. Under leaky, smooth and warmup a job waits for the one before
// it, so any cost up to [PermitsMax] is granted, as long as its own time (its
// cold time under warmup) is at most [WindowMax].
func (l Limit) MaxCost() int {
	switch l.kind {
	case kindSliding, kindFixed, kindCalendar:
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

// permitsWithin is how many permits come in [WindowMax] at n per window.
func permitsWithin(n int, window time.Duration) uint64 {
	if n < 1 || window < WindowMin {
		return 0
	}
	hi, lo := bits.Mul64(uint64(n), uint64(WindowMax))
	if hi >= uint64(window) {
		return math.MaxUint64
	}
	q, _ := bits.Div64(hi, lo, uint64(window))
	return q
}

func atMost(permits uint64) int { return int(min(permits, PermitsMax)) }

// numbers are what the scripts need to know. The windows of a calendar lie
// around the given instant; their slice is shared and must not be written to.
func (l Limit) numbers(around time.Time) luascripts.Numbers {
	n := luascripts.Numbers{Kind: kinds[l.kind].script, Permits: l.permits, Window: l.window}
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
