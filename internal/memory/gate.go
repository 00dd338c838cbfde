package memory

import (
	"slices"

	"github.com/headwayq/headway/internal/limitscripts"
)

// gate is when work may run, in microseconds. The zero gate is always open.
type gate struct {
	from, until int64
	open        []opening
}

// opening is open from its first instant until before its last.
type opening struct{ open, close int64 }

func gateOf(g limitscripts.Gate) gate {
	if g.Until.IsZero() {
		return gate{}
	}
	out := gate{from: g.From.UnixMicro(), until: g.Until.UnixMicro()}
	for _, o := range g.Open {
		out.open = append(out.open, opening{o.Open.UnixMicro(), o.Close.UnixMicro()})
	}
	return out
}

func (g gate) always() bool { return g.until == 0 }

func (g gate) covers(now int64) bool { return g.always() || g.from <= now && now < g.until }

// next is the index of the first opening that is not over at an instant.
func (g gate) next(at int64) int {
	i, _ := slices.BinarySearchFunc(g.open, at, func(o opening, at int64) int {
		if o.close <= at {
			return -1
		}
		return 1
	})
	return i
}

// opened is the first instant from a on at which it is open. What is beyond the
// openings that are known is decided when it is near.
func (g gate) opened(a int64) int64 {
	if g.always() {
		return a
	}
	if i := g.next(a); i < len(g.open) {
		return max(a, g.open[i].open)
	}
	return g.until
}

// spread is the instant that lies so much opening time after one at which the
// gate is open.
func (g gate) spread(at, offset int64) int64 {
	i := g.next(at)
	if i == len(g.open) || at < g.open[i].open {
		return min(at+offset, farthest)
	}
	for ; at+offset >= g.open[i].close; i++ {
		if i == len(g.open)-1 {
			return g.until
		}
		offset -= g.open[i].close - at
		at = g.open[i+1].open
	}
	return at + offset
}

const openingKnownFor = 3_600_000_000 // how long after an opening it is known who waited for it
