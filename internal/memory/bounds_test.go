package memory

import "github.com/headwayq/headway/internal/limitscripts"

// hold fails when the grants that were kept are more than the limit allows.
func (h *history) hold() {
	h.Helper()
	live := h.live()
	for i := range live {
		sum := int64(0)
		for j := i; j < len(live); j++ {
			if live[j].at < live[max(j, 1)-1].at {
				h.Fatalf("a grant at %d after one at %d", live[j].at, live[j-1].at)
			}
			spaced := sum // what came before the newest
			sum += live[j].cost
			if most, got := h.most(live[i].at, live[j].at, spaced, sum); got > most {
				h.Fatalf("%+v: %d permits from %d to %d, want at most %d", h.limit, got, live[i].at, live[j].at, most)
			}
		}
	}
	if h.limit.Kind == limitscripts.Calendar {
		used := map[int64]int64{}
		for _, g := range live {
			w := h.window(h.limit, g.at)
			if used[w] += g.cost; used[w] > int64(h.limit.Permits) {
				h.Fatalf("%+v: %d permits in the window of %d", h.limit, used[w], g.at)
			}
		}
	}
}

// most is how many permits may go from one grant to another, both included, and
// how many of them count: a job of a smooth limit does not count itself.
func (h *history) most(from, to, spaced, sum int64) (most, got int64) {
	n, w, length := int64(h.limit.Permits), h.limit.Window.Microseconds(), to-from
	burst := int64(h.limit.Burst)
	switch h.limit.Kind {
	case limitscripts.Sliding:
		if length >= w {
			return sum, sum
		}
		return n, sum
	case limitscripts.Fixed:
		if length >= w {
			return sum, sum
		}
		return 2 * n, sum
	case limitscripts.GCRA:
		return burst + (length+1)*n/w, sum // a window in whole microseconds that holds both is so long
	case limitscripts.Step:
		return burst + n*(length/w+1), sum
	case limitscripts.Smooth:
		return burst + (length+1)*n/w, spaced
	case limitscripts.WarmUp:
		return (length + 1) * n / w, spaced
	}
	return sum, sum
}
