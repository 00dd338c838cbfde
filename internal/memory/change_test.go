package memory

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestChangeNeverOver changes a limit in the middle of a trace, from each kind
// to each: what goes afterwards is within the new limit, counting what went in
// the last window under the old one. What that was over the new limit's own
// bound counts as the bound.
func TestChangeNeverOver(t *testing.T) {
	t.Parallel()
	for _, from := range kinds {
		for _, to := range kinds {
			t.Run(fmt.Sprintf("%c to %c", from, to), func(t *testing.T) {
				t.Parallel()
				rapid.Check(t, func(rt *rapid.T) {
					h := &history{T: rt, scene: newScene(), limit: anyLimit(rt, from)}
					h.Keep(100 * time.Hour)
					h.wander("before")
					known := h.now.UnixMicro() // since when the old limit looks at grants
					for _, g := range h.grants {
						known = max(known, g.at)
					}
					known -= h.limit.Window.Microseconds()
					h.limit = anyLimit(rt, to)
					changed := len(h.grants)
					h.wander("after")
					if from == to && (to == limitscripts.Smooth || to == limitscripts.WarmUp) {
						known = math.MaxInt64 // of what went before they keep the debt alone
					}
					h.holdSince(changed, known)
				})
			})
		}
	}
}

// wander asks and gives back at random.
func (h *history) wander(when string) {
	cost := rapid.IntRange(0, costMost(h.limit)).Draw(h.T, "equal cost "+when)
	for range rapid.IntRange(1, 25).Draw(h.T, "length "+when) {
		h.move(true)
		if rapid.IntRange(0, 5).Draw(h.T, "op") == 0 {
			h.giveBack()
			continue
		}
		c := cost
		if c == 0 {
			c = rapid.IntRange(1, costMost(h.limit)).Draw(h.T, "cost")
		}
		h.acquire(c, 0)
	}
}

// holdSince looks at each stretch from a grant before the change, but later
// than known, to one after it.
func (h *history) holdSince(changed int, known int64) {
	h.Helper()
	live, later := h.live(), []given{}
	for _, g := range h.grants[changed:] {
		if !g.refunded {
			later = append(later, g)
		}
	}
	h.grants = later
	h.hold()
	before := slices.DeleteFunc(live[:len(live)-len(later)], func(g given) bool { return g.at <= known })
	if h.limit.Kind == limitscripts.GCRA || h.limit.Kind == limitscripts.Step {
		before = h.clip(before)
	}
	for i := range before {
		h.holdFrom(before[i:], later)
	}
}

// clip makes old grants, which another limit gave, what this one could have
// given: a bucket of 2 does not know of a third.
func (h *history) clip(old []given) []given {
	out := make([]given, len(old))
	for i, g := range old {
		for j, sum := i, int64(0); j >= 0; j-- {
			most, _ := h.most(old[j].at, g.at, 0, 0)
			g.cost = max(0, min(g.cost, most-sum))
			if j > 0 {
				sum += out[j-1].cost
			}
		}
		out[i] = g
	}
	return out
}

// holdFrom looks at the stretches from the first of the old grants on.
func (h *history) holdFrom(old, later []given) {
	h.Helper()
	n, w := int64(h.limit.Permits), h.limit.Window.Microseconds()
	first, used := old[0].at, int64(0)
	for _, g := range old {
		used += g.cost
	}
	spaced := used
	slack := int64(0)
	switch h.limit.Kind {
	case limitscripts.GCRA:
		slack = 1 // clip cuts fractions
	case limitscripts.Step:
		slack = n
	}
	for _, g := range later {
		switch length := g.at - first; h.limit.Kind {
		case limitscripts.Sliding:
			if used += g.cost; length < w && used > n {
				h.Fatalf("%+v: %d permits from %d to %d", h.limit, used, first, g.at)
			}
		case limitscripts.Fixed:
			if used = min(used, n) + g.cost; length < w && used > 2*n {
				h.Fatalf("%+v: %d permits from %d to %d", h.limit, used, first, g.at)
			}
		case limitscripts.Calendar:
			if used += g.cost; h.window(h.limit, first) == h.window(h.limit, g.at) && used > n {
				h.Fatalf("%+v: %d permits from %d to %d", h.limit, used, first, g.at)
			}
		default:
			used += g.cost
			if most, got := h.most(first, g.at, spaced, used); got > most+slack {
				h.Fatalf("%+v: %d permits from %d to %d, want at most %d", h.limit, got, first, g.at, most+slack)
			}
			spaced += g.cost
		}
	}
}
