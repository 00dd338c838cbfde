package gate

import (
	"slices"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/civil"
	"github.com/headwayq/headway/throttle/internal/errtext"
)

const day = 24 * time.Hour

// Bounds of what is answered about openings.
const (
	// WindowMax is the longest time about which one call answers.
	WindowMax = 10 * 365 * day
	// Lookahead is how far before and after the window that was asked for an
	// opening is followed. One that is longer is cut there.
	Lookahead = 366 * day
	// OpeningsMax is how many openings one call answers. Later ones are left out.
	OpeningsMax = 100_000
)

const (
	// scanReach is how far schedules are followed. It is longer than Lookahead by
	// what is computed around a window, so that where an opening is cut does not
	// depend on what was asked before.
	scanReach = int64(Lookahead/time.Second) + 64*civil.DaySeconds
	// stretchesMax has room for those around a window, at most one every other minute.
	stretchesMax = OpeningsMax + 10_000
)

// Opening is a time in which a gate is open, from Open to before Close, in UTC.
type Opening struct{ Open, Close time.Time }

// InZone is a gate as one request meets it: in the time zone of its key.
type InZone struct {
	Rule string // a name for it, of a policy's rule
	Gate Gate
	In   *time.Location // the recipient's zone; required when the gate opens by it, and not looked at otherwise
}

// Validate returns what is wrong with g, an [*Error], or nil: Gate is not from Parse, or it
// opens by the recipient's zone and In is nil. Such a gate is never open.
func (g InZone) Validate() error {
	if err := g.Gate.Validate(); err != nil {
		return err
	}
	if g.Gate.Zone() == "" && g.In == nil {
		return &Error{Field: "zone", Value: "missing", Want: "the recipient's in InZone.In of gate " + errtext.Quote(g.Rule) + ", which opens by it"}
	}
	return nil
}

// Openings returns when g is open: each opening that overlaps [from, until),
// whole, in order, disjoint; adjacent ones are one. One that began or ends more
// than [Lookahead] away is cut there. What lies more than [WindowMax] after
// from or beyond [OpeningsMax] openings is left out.
//
// in is the recipient's zone, which g does not look at if it has its own. Where
// the zone is the recipient's and in is nil, g is closed. Results of windows
// below 32 days are remembered per *time.Location: load each of them once.
func (g Gate) Openings(from, until time.Time, in *time.Location) []Opening {
	w := windowOf(from, until)
	return w.openings(InZone{Gate: g, In: in}.during(w))
}

// Openings returns when all gates are open at once, as [Gate.Openings] does for
// one. Without a gate that is always.
func Openings(gates []InZone, from, until time.Time) []Opening {
	w := windowOf(from, until)
	all := []stretch{{w.lo - scanReach, w.hi + scanReach}}
	for _, g := range gates {
		all = both(all, g.during(w))
	}
	return w.openings(all) // what overlaps w and one another does so within w
}

// FirstClosed returns the rule of the first gate that is closed at an instant, and
// whether there is one.
func FirstClosed(gates []InZone, at time.Time) (rule string, closed bool) {
	w := windowOf(at, at.Add(1))
	for _, g := range gates {
		if len(g.during(w)) == 0 {
			return g.Rule, true
		}
	}
	return "", false
}

// window is from lo to before hi, in seconds since 1970, and empty if hi <= lo.
type window struct{ lo, hi int64 }

// windowOf rounds outwards: gates open and close at full seconds.
func windowOf(from, until time.Time) window {
	const farthest = 1 << 40 // 34,000 years; sums far beyond overflow
	if !from.Before(until) {
		return window{}
	}
	lo := min(max(from.Unix(), -farthest), farthest)
	hi := min(max(until.Unix(), -farthest), farthest)
	if until.Nanosecond() > 0 {
		hi++
	}
	return window{lo, min(hi, lo+int64(WindowMax/time.Second))}
}

// openings are the stretches as they are answered.
func (w window) openings(all []stretch) []Opening {
	if w.hi <= w.lo || len(all) == 0 {
		return nil
	}
	const reach = int64(Lookahead / time.Second)
	out := make([]Opening, 0, len(all))
	for _, s := range all[:min(len(all), OpeningsMax)] {
		out = append(out, Opening{
			time.Unix(max(s.open, w.lo-reach), 0).UTC(),
			time.Unix(min(s.close, w.hi+reach), 0).UTC(),
		})
	}
	return out
}

// during are the stretches that overlap a window. They are shared and must not
// be written to.
func (g InZone) during(w window) []stretch {
	p := g.Gate.plan
	if p == nil || w.hi <= w.lo {
		return nil
	}
	zone := p.zone
	if zone == nil {
		zone = g.In
	}
	if zone == nil {
		return nil
	}
	return p.kept.during(w, zone, p.compute)
}

// keptOpenings remembers, for each zone, the openings around the last window
// that was asked for.
type keptOpenings struct {
	mu    sync.RWMutex
	zones map[*time.Location]keptWindow
	size  int // stretches in zones, and one for each zone
}

type keptWindow struct {
	window
	all []stretch
}

// keptMax bounds what a gate remembers: 256 KiB. Then it starts anew.
const keptMax = 16 * 1024

func (k *keptOpenings) during(w window, zone *time.Location, compute func(window, *time.Location) []stretch) []stretch {
	k.mu.RLock()
	kept := k.zones[zone]
	k.mu.RUnlock()
	if kept.lo <= w.lo && w.hi <= kept.hi && kept.lo < kept.hi {
		return overlapping(kept.all, w.lo, w.hi)
	}
	if w.hi-w.lo >= 32*civil.DaySeconds {
		return compute(w, zone)
	}
	// Backwards a little, for callers whose clocks differ.
	kept.window = window{w.lo - civil.DaySeconds, w.hi + 8*civil.DaySeconds}
	kept.all = slices.Clip(slices.Clone(compute(kept.window, zone)))
	if cost := len(kept.all) + 1; cost <= keptMax {
		k.mu.Lock()
		k.keep(zone, kept, cost)
		k.mu.Unlock()
	}
	return overlapping(kept.all, w.lo, w.hi)
}

func (k *keptOpenings) keep(zone *time.Location, w keptWindow, cost int) {
	if old, ok := k.zones[zone]; ok {
		k.size -= len(old.all) + 1
	}
	if k.size+cost > keptMax || k.zones == nil {
		k.zones, k.size = make(map[*time.Location]keptWindow), 0
	}
	k.zones[zone] = w
	k.size += cost
}
