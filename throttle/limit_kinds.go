package throttle

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/internal/civil"
	"github.com/headwayq/headway/throttle/internal/errtext"
)

// Sliding is the exact sliding-window log: at most n permits in any window of
// length per, however the window is laid. Its excess over n is 0. Windows are
// half open: with Sliding(1, time.Minute) a permit at 8:00:00 lets the next one
// go at 8:01:00 sharp, and a call at 8:00:30 is told to wait 30 s.
//
//	instant = max(now, (n-k+1)-th newest grant + per)   for the k-th permit from now, k <= n
//
// n is 1 to 1,000,000, per is 1 ms to 10 years in whole
// microseconds; [Limit.Validate] says what is wrong with others. One call takes
// 10,000 permits at most. An idle key
// costs one small Redis string, and each further permit in the window 7 bytes.
//
// Choose it when the limit is a promise; choose [GCRA] when n is so large that a
// record per permit is too much. The algorithm is that of Redisson's
// RRateLimiter, with an exact wait for n permits and a place in line instead of
// one delay for all.
func Sliding(n int, per time.Duration) Limit {
	return Limit{kind: kindSliding, permits: n, window: per}
}

// Fixed is the counter: a window of length per starts with the first permit
// that falls into none, and holds n permits.
//
//	instant = now, or the end of the window + per*floor((j-1)/n)   for the j-th permit beyond it
//
// Its excess: n-1. No window of its own holds more than n, but a window laid
// over the edge of two holds up to 2n-1, or 2n when the permit that began the
// first was given back. With Fixed(10, time.Hour), one permit
// at 8:00 and nine at 8:59, the next call at 8:59 is told to wait 1 m; ten may
// go at 9:00, which makes nineteen in that minute.
//
// n is 1 to [PermitsMax], per as with [Sliding]. A key costs one small Redis string,
// however large n is. Choose it for quotas where the edge does not matter. It is the counter of
// Redis with Lua (INCR with an expiry, @CountLimit), without its lost expiries.
func Fixed(n int, per time.Duration) Limit {
	return Limit{kind: kindFixed, permits: n, window: per}
}

// Bucket is the token bucket: it holds up to burst permits, is full at the
// start, and gains n permits per window, evenly, one each per/n. A job goes when
// all its permits are there.
//
//	instant = max(now, full - (burst-k)*per/n)   for the k-th permit from now,
//	          full being the instant at which the bucket is full again
//
// With Bucket(10, time.Second, 3) and 3 permits taken at 0, a call at 99 ms is
// told to wait 1 ms. Its excess: burst-1, so any window of length per holds up
// to n+burst-1. per/n is never rounded; only an instant is, up to the next
// microsecond.
//
// n and burst are 1 to [PermitsMax], per is 1 ms to 10 years, and the
// time to fill it, burst*per/n, at most 10 years. In text, a missing burst is
// n. A key costs one small Redis string. Choose it when bursts are welcome and
// the mean counts.
//
// Bucket and [GCRA] with the same numbers admit exactly the same: they are two
// names of one algorithm, and differ in what their text form means without a
// burst. The token bucket is that of Redis with Lua, but it fills continuously;
// see [SteppedBucket] for that which does not.
func Bucket(n int, per time.Duration, burst int) Limit {
	return Limit{kind: kindBucket, permits: n, window: per, burst: burst}
}

// SteppedBucket is the token bucket that gains its n permits at once, every
// per. It is full at the start, and the interval starts with the first permit
// taken from a full bucket.
//
//	instant = now, or the start of the interval + per*ceil((k-left)/n)   for the k-th permit from now
//
// With SteppedBucket(10, time.Second, 10) and 10 permits taken at 0, a call at
// 999 ms is told to wait 1 ms, and at 1 s ten go at once. Its excess: burst-1,
// as with [Bucket].
//
// Bounds as with [Bucket], but burst is at least n (what does not fit would be
// lost at every tick), and the time to fill is ceil(burst/n)*per. In text it is
// a bucket with the word "step". Choose it when a provider refills like this. It
// is the token bucket of Redis with Lua, which keeps the rest of an interval too.
func SteppedBucket(n int, per time.Duration, burst int) Limit {
	return Limit{kind: kindStepped, permits: n, window: per, burst: burst}
}

// GCRA is the generic cell rate algorithm: permits come evenly, one each per/n,
// and up to burst of them may come at once after a pause.
//
//	instant = max(now, TAT + (k-burst)*per/n)   for the k-th permit from now,
//	          TAT being the newest grant's theoretical time plus that of its permits
//
// With GCRA(10, time.Second, 1) and a permit at 0, a call at 30 ms is told to
// wait 70 ms. Its excess: burst-1, so none with burst 1.
//
// Bounds as with [Bucket]; a cost above burst is never granted. In text, a
// missing burst is 1: even spacing. That is its only difference from [Bucket],
// whose missing burst is n; with the same numbers the two admit exactly the
// same. Choose it for even spacing, or for a large n. It comes from ITU-T I.371,
// where it polices telecom cells, and is known on Redis from redis-cell.
func GCRA(n int, per time.Duration, burst int) Limit {
	return Limit{kind: kindGCRA, permits: n, window: per, burst: burst}
}

// Leaky is the leaky bucket as a queue: one permit each per/n, nothing stored.
// A job pays for the one before it: it waits until that one's permits have
// leaked out, whatever it costs itself.
//
//	instant = max(now, the grant before + its cost*per/n)
//
// With Leaky(10, time.Second) and one permit at 0, a call at 30 ms is told to
// wait 70 ms; when it takes 5 permits at 100 ms, the next goes at 600 ms. Its
// excess is the cost of one job less 1: none when each costs 1.
//
// n is 1 to [PermitsMax], per 1 ms to 10 years. Choose it when jobs of
// any cost must go, evenly; [GCRA] with burst 1 refuses a cost above 1.
func Leaky(n int, per time.Duration) Limit {
	return Limit{kind: kindLeaky, permits: n, window: per}
}

// Smooth is [Leaky] that stores up to burst permits while nobody comes. It
// starts empty. A job pays for the one before it, and stored permits pay first.
//
//	instant = max(now, V)   V = max(V before, now - burst*per/n), then + cost*per/n
//
// With Smooth(1, time.Second, 1) callers that ask for 1, 2, 3, 4, 5 permits one
// after another wait 0, 1, 2, 3, 4 s. With Smooth(5, time.Second, 5), after a
// second or more of silence, 1, 1, 3 and 1 permits go at once, the next waits
// 200 ms. Its excess: burst, and the cost of one job less 1.
//
// Bounds as with [Leaky]; burst is 0 to [PermitsMax] and must be stored within
// 10 years. In text, a missing burst is n. It is Guava's SmoothBursty, exact
// to the microsecond at any rate. Choose it when a large job must not wait for
// its own size.
func Smooth(n int, per time.Duration, burst int) Limit {
	return Limit{kind: kindSmooth, permits: n, window: per, burst: burst}
}

// WarmUp is [Leaky] whose permits take longer while it is cold: up to cold
// times per/n. It is cold at the start and after a pause of over; in use it
// warms up within over.
//
//	s = per/n          warm = over/(2s)     most = warm + 2*over/(s + cold*s)
//	a permit with x stored takes s for x <= warm, else s + (x-warm)*(cold-1)*s/(most-warm)
//	while nobody comes, x grows by most/over per unit of time
//
// With WarmUp(2, time.Second, 4*time.Second, 3) callers one after another wait
// 0, 1.375, 1.125, 0.875, 0.625, 0.5, 0.5 s. Its excess is the cost of one job
// less 1: no permit takes less than per/n.
//
// Bounds as with [Leaky]; over is 1 ms to 10 years and stores at most
// 10^12 permits; cold is 1 to 1000 in thousandths, and cold*per/n is at most
// 10 years. In text, over is required and a missing cold is 3. It is Guava's
// SmoothWarmingUp, which without an over admits everything: here that is
// refused. Choose it for a server that needs its caches filled first.
func WarmUp(n int, per, over time.Duration, cold float64) Limit {
	l := Limit{kind: kindWarmUp, permits: n, window: per, over: over}
	milli := math.Round(cold * 1000)
	// A factor that was computed, such as 0.1*12, is some 1e-13 off.
	if math.Abs(cold*1000-milli) > 1e-6 || math.Abs(milli) > math.MaxInt32 || math.IsNaN(cold) {
		l.coldBad = math.Float64bits(cold)
	} else {
		l.coldMilli = int(milli)
	}
	return l
}

// Calendar holds n permits in each window of a civil calendar: "10 a day in
// Shanghai". Windows begin where the clock of the zone says so.
//
//	instant = now, or the start of the window after it + floor((j-1)/n) windows   for the j-th permit beyond it
//
// A day begins at the first instant of its date: at 00:00, or after it where
// clocks skip midnight. A week begins on Monday, a month on the 1st. A day may
// have 23 or 25 hours; a date that a zone skips is no window, and the one before
// it is not longer for that. A minute and an hour begin whenever the clock shows
// a full one. So the hour that comes twice in autumn is two windows, and where
// clocks are moved by half an hour the hour may have 30 or 90 minutes.
//
// With Calendar(10, Day, "Asia/Shanghai") and ten permits on March 1st, a call
// at 23:59 there is told to wait 1 m. Its excess: no civil window ever holds
// more than n, but any other window of the same length up to 2n, and 3n when a
// shorter civil window lies within (February, a day of 23 hours).
//
// n is 1 to [PermitsMax]. The zone is a name of the time zone database; "" is
// UTC; "Local" and other names that mean something else on another machine are
// refused. Every process should have the same version of the database. A key costs
// one small Redis string. Choose it for what is counted by the date, such as a
// contract's quota. Redisson's RRateLimiter has no such windows.
func Calendar(n int, unit Unit, zone string) Limit {
	if zone == "" {
		zone = zoneDefault
	}
	if int(unit) >= len(units) {
		unit = unitBad
	}
	return Limit{kind: kindCalendar, permits: n, unit: unit, window: units[unit].nominal, zone: zone}
}

// Unit is a unit of the civil calendar; the zero Unit is invalid.
type Unit uint8

// The units of [Calendar].
const (
	Minute Unit = iota + 1
	Hour
	Day
	Week // from Monday on
	Month
)

// unitBad stands for all others.
const unitBad Unit = 0

const unitNames = "minute, hour, day, week or month"

const zoneDefault = "UTC"

// units: no window since 1970 in any zone is below short, which a test looks up;
// ahead is how many windows a script gets beyond the current one.
var units = [...]struct {
	name    string
	nominal time.Duration
	short   time.Duration
	ahead   int
}{
	unitBad: {name: "no unit"},
	Minute:  {"minute", time.Minute, time.Minute, 16},
	Hour:    {"hour", time.Hour, 30 * time.Minute, 16},
	Day:     {"day", day, 16 * time.Hour, 16},
	Week:    {"week", 7 * day, 5 * day, 16},
	Month:   {"month", 31 * day, 27 * day, 14},
}

// String returns the name as it is in a text: "minute", "day".
func (u Unit) String() string {
	if int(u) >= len(units) {
		u = unitBad
	}
	return units[u].name
}

func unitNamed(name string) Unit {
	for u := Minute; u <= Month; u++ {
		if units[u].name == name {
			return u
		}
	}
	return unitBad
}

func (l Limit) calendarFaults(f *faultList) {
	if l.unit == unitBad {
		f.add("unit", l.unit.String(), unitNames)
	}
	if want := civil.ZoneFault(l.zone, time.LoadLocation); want != "" {
		f.add("zone", errtext.Quote(l.zone), want)
	}
}

// windows computes where the windows of a unit begin in a zone. Seconds are those
// since 1970; local seconds are what the clock of the zone shows, read as UTC.
// Offsets are never assumed to be whole hours, nor dates to exist.
type windows struct {
	unit Unit
	zone *time.Location
}

// begin is the start of the window in which x lies.
func (c windows) begin(x int64) int64 {
	period, short := c.period()
	if !short {
		at, _ := c.dated(x)
		return at
	}
	for {
		s := civil.SegmentAt(c.zone, x)
		if at := x - civil.Mod(x+s.Offset, period); at >= s.Start {
			return at
		}
		x = s.Start - 1
	}
}

// next is the start of the window after that in which x lies.
func (c windows) next(x int64) int64 {
	period, short := c.period()
	if !short {
		at, i := c.dated(x)
		following := at
		for following <= at {
			i++
			following = c.first(c.local(i))
		}
		return following
	}
	for {
		s := civil.SegmentAt(c.zone, x)
		if at := x + period - civil.Mod(x+s.Offset, period); at < s.End {
			return at
		}
		x = s.End
		if civil.Mod(x+civil.SegmentAt(c.zone, x).Offset, period) == 0 {
			return x
		}
	}
}

// period is the length of units that begin whenever the clock shows a full one.
// The others begin once, with their date.
func (c windows) period() (int64, bool) {
	switch c.unit {
	case Minute:
		return 60, true
	case Hour:
		return 3600, true
	}
	return 0, false
}

// dated is the start and the number of the dated window in which x lies. A
// clock that is set back over midnight shows the date before once more, which
// is still the new window.
func (c windows) dated(x int64) (at, i int64) {
	i = c.index(x+civil.SegmentAt(c.zone, x).Offset) + 1
	for {
		if at = c.first(c.local(i)); at <= x {
			return at, i
		}
		i--
	}
}

// first is the first second at which the clock shows local or later.
func (c windows) first(local int64) int64 {
	const farthest = 16 * 3600 // no zone was ever so far from UTC
	for x := local - farthest; ; {
		s := civil.SegmentAt(c.zone, x)
		if at := max(x, local-s.Offset); at < s.End {
			return at
		}
		x = s.End
	}
}

const (
	weekSeconds = 7 * civil.DaySeconds
	firstMonday = 4 * civil.DaySeconds // 1970-01-05
)

// index numbers the dated windows, local tells where one begins.
func (c windows) index(local int64) int64 {
	switch c.unit {
	case Day:
		return (local - civil.Mod(local, civil.DaySeconds)) / civil.DaySeconds
	case Week:
		local -= firstMonday
		return (local - civil.Mod(local, weekSeconds)) / weekSeconds
	}
	t := time.Unix(local, 0).UTC()
	return int64(t.Year()-1970)*12 + int64(t.Month()-time.January)
}

func (c windows) local(i int64) int64 {
	switch c.unit {
	case Day:
		return i * civil.DaySeconds
	case Week:
		return firstMonday + i*weekSeconds
	}
	return time.Date(1970, time.January+time.Month(i), 1, 0, 0, 0, 0, time.UTC).Unix()
}

// bounds are the starts of the windows around x: the one before, that of x, and
// those after it.
func (c windows) bounds(x int64) []time.Time {
	at := c.begin(x)
	out := make([]time.Time, 0, units[c.unit].ahead+2)
	out = append(out, time.Unix(c.begin(at-1), 0).UTC(), time.Unix(at, 0).UTC())
	for range units[c.unit].ahead {
		at = c.next(at)
		out = append(out, time.Unix(at, 0).UTC())
	}
	return out
}

// civilCache remembers the windows around now, per unit and zone: as many as
// there are zones in the database, since only what can be loaded is kept.
var civilCache = struct {
	mu   sync.RWMutex
	kept map[civilKey]*civilKept
}{kept: make(map[civilKey]*civilKept)}

type civilKey struct {
	unit Unit
	zone string
}

type civilKept struct {
	windows
	latest atomic.Pointer[[]time.Time]
}

// civilBounds are the bounds of the windows around t, or nil when the zone can't
// be loaded, which [Limit.Validate] has seen before.
func civilBounds(unit Unit, zone string, t time.Time) []time.Time {
	key := civilKey{unit, zone}
	civilCache.mu.RLock()
	k := civilCache.kept[key]
	civilCache.mu.RUnlock()
	if k == nil {
		loaded, err := time.LoadLocation(zone)
		if err != nil || unit == unitBad {
			return nil
		}
		k = &civilKept{windows: windows{unit, loaded}}
		civilCache.mu.Lock()
		civilCache.kept[key] = k
		civilCache.mu.Unlock()
	}
	if b := k.latest.Load(); b != nil && !t.Before((*b)[1]) && t.Before((*b)[2]) {
		return *b
	}
	b := k.bounds(t.Unix())
	k.latest.Store(&b)
	return b
}

// Bounds of a lease.
const (
	leaseMin = 100 * time.Millisecond
	leaseMax = day
)

// Concurrent lets at most n run at once. A grant holds a lease; it ends
// when it is released, at once, or when it was not renewed for so long: a holder
// that died gives its place back within one lease. How many are free follows from
// the leases that have not ended and from nothing else.
//
//	instant = now, when fewer than n leases are live; else when the next of them ends
//
// With Concurrent(2, 30*time.Second) and two leases that were taken at 0 s and
// renewed at 10 s, a job that comes at 15 s is promised 40 s, and goes at 21 s when one of
// the two is released then: the release returns the next in line.
//
// n is 1 to 1,000,000, lease 100 ms to 24 h; choose a lease longer than
// any pause of a process that is still alive. Each grant costs one. A worker renews
// and releases by itself; others use [Policy.Renew] and [Policy.Release]. It can't be
// changed into a limit of another kind at run time, nor back.
func Concurrent(n int, lease time.Duration) Limit {
	return Limit{kind: kindConcurrent, permits: n, window: lease}
}

// IsConcurrent says whether the limit is one of [Concurrent].
func (l Limit) IsConcurrent() bool { return l.kind == kindConcurrent }

func (l Limit) leaseFaults(f *faultList) {
	switch {
	case l.window < leaseMin || l.window > leaseMax:
		f.add("lease", formatWindow(l.window), formatWindow(leaseMin)+" to "+formatWindow(leaseMax))
	case l.window%time.Microsecond != 0:
		f.add("lease", formatWindow(l.window), "whole microseconds")
	}
}
