package throttle

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/throttle/internal/civil"
)

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
