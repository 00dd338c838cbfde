package throttle

import (
	"slices"
	"sync"
	"time"
)

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
	if w.hi-w.lo >= 32*daySeconds {
		return compute(w, zone)
	}
	// Backwards a little, for callers whose clocks differ.
	kept.window = window{w.lo - daySeconds, w.hi + 8*daySeconds}
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
