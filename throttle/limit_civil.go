package throttle

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// civil computes where the windows of a unit begin in a zone. Seconds are those
// since 1970; local seconds are what the clock of the zone shows, read as UTC.
// Offsets are never assumed to be whole hours, nor dates to exist.
type civil struct {
	unit Unit
	zone *time.Location
}

// segment is a time in which the offset of a zone does not change.
type segment struct {
	start, end int64 // start <= x < end
	offset     int64
}

func (c civil) segment(x int64) segment {
	t := time.Unix(x, 0).In(c.zone)
	_, offset := t.Zone()
	start, end := t.ZoneBounds()
	s := segment{start: math.MinInt64, end: math.MaxInt64, offset: int64(offset)}
	if !start.IsZero() {
		s.start = start.Unix()
	}
	if !end.IsZero() {
		s.end = end.Unix()
	}
	if s.end <= x {
		// Where a zone follows a rule and not a table, Go (1.26) ends each year after
		// 365 days: on December 31st of a leap year the segment has ended already.
		s.end = x - mod(x, daySeconds) + daySeconds
	}
	return s
}

// begin is the start of the window in which x lies.
func (c civil) begin(x int64) int64 {
	period, short := c.period()
	if !short {
		at, _ := c.dated(x)
		return at
	}
	for {
		s := c.segment(x)
		if at := x - mod(x+s.offset, period); at >= s.start {
			return at
		}
		x = s.start - 1
	}
}

// next is the start of the window after that in which x lies.
func (c civil) next(x int64) int64 {
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
		s := c.segment(x)
		if at := x + period - mod(x+s.offset, period); at < s.end {
			return at
		}
		x = s.end
		if mod(x+c.segment(x).offset, period) == 0 {
			return x
		}
	}
}

// period is the length of units that begin whenever the clock shows a full one.
// The others begin once, with their date.
func (c civil) period() (int64, bool) {
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
func (c civil) dated(x int64) (at, i int64) {
	i = c.index(x+c.segment(x).offset) + 1
	for {
		if at = c.first(c.local(i)); at <= x {
			return at, i
		}
		i--
	}
}

// first is the first second at which the clock shows local or later.
func (c civil) first(local int64) int64 {
	const farthest = 16 * 3600 // no zone was ever so far from UTC
	for x := local - farthest; ; {
		s := c.segment(x)
		if at := max(x, local-s.offset); at < s.end {
			return at
		}
		x = s.end
	}
}

const (
	daySeconds  = 24 * 3600
	weekSeconds = 7 * daySeconds
	firstMonday = 4 * daySeconds // 1970-01-05
)

// index numbers the dated windows, local tells where one begins.
func (c civil) index(local int64) int64 {
	switch c.unit {
	case Day:
		return (local - mod(local, daySeconds)) / daySeconds
	case Week:
		local -= firstMonday
		return (local - mod(local, weekSeconds)) / weekSeconds
	}
	t := time.Unix(local, 0).UTC()
	return int64(t.Year()-1970)*12 + int64(t.Month()-time.January)
}

func (c civil) local(i int64) int64 {
	switch c.unit {
	case Day:
		return i * daySeconds
	case Week:
		return firstMonday + i*weekSeconds
	}
	return time.Date(1970, time.January+time.Month(i), 1, 0, 0, 0, 0, time.UTC).Unix()
}

func mod(a, b int64) int64 { return ((a % b) + b) % b }

// bounds are the starts of the windows around x: the one before, that of x, and
// those after it.
func (c civil) bounds(x int64) []time.Time {
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
	civil
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
		k = &civilKept{civil: civil{unit, loaded}}
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
