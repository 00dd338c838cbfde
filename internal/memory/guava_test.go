package memory

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// take is one who waits for his turn, after idle time.
type take struct {
	idle time.Duration
	cost int
	want float64 // seconds waited
}

// ones are takes of one permit.
func ones(idle time.Duration, waits ...float64) []take {
	var out []take
	for _, w := range waits {
		out = append(out, take{idle, 1, w})
		idle = 0
	}
	return out
}

// TestGuavaSequences repeats what the tests of Guava's RateLimiter print. They
// are printed there in hundredths; a wait here is rounded up to a microsecond.
func TestGuavaSequences(t *testing.T) {
	t.Parallel()
	const s = time.Second
	warm := []float64{0, 1.375, 1.125, 0.875, 0.625, 0.5, 0.5, 0.5}
	type part struct {
		limit limitscripts.Numbers
		takes []take
	}
	for _, tc := range []struct {
		name  string
		parts []part
	}{
		{"warm-up", []part{{warmOf(2, s, 4*s, 3000), slices.Concat(
			ones(0, warm...), ones(500*ms+4*s, warm...), ones(500*ms+2*s, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5),
		)}}},
		{"warm-up, cold 10", []part{{warmOf(5, s, 4*s, 10_000), slices.Concat(
			ones(0, 0, 1.7525, 1.2575, 0.7625, 0.300227, 0.2, 0.2, 0.2),
			ones(200*ms+4*s, 0, 1.7525, 1.2575, 0.7625, 0.300227, 0.2, 0.2, 0.2),
		)}}},
		{"warm-up, cold 1", []part{{warmOf(5, s, 4*s, 1000), ones(0, 0, 0.2, 0.2, 0.2, 0.2)}}},
		{"warm-up, another rate in the middle", []part{
			{warmOf(2, s, 4*s, 3000), ones(0, 0, 1.375, 1.125)},
			{warmOf(4, s, 4*s, 3000), ones(0, 0.875, 0.34375, 0.28125, 0.25, 0.25)},
			{warmOf(4, s, 4*s, 3000), ones(250*ms+4*s, 0, 0.71875, 0.65625, 0.59375, 0.53125, 0.46875, 0.40625, 0.34375, 0.28125, 0.25, 0.25)},
		}},
		{"bursty, another rate in the middle", []part{
			{smoothOf(1, s, 1), []take{{0, 1, 0}, {0, 1, 1}}},
			{smoothOf(2, s, 2), []take{{0, 1, 1}, {0, 2, 0.5}, {0, 4, 1}, {0, 1, 2}}},
		}},
		{"bursty, saved while idle", []part{{smoothOf(5, s, 5), []take{
			{0, 1, 0}, {1200 * ms, 1, 0}, {0, 1, 0}, {0, 3, 0}, {0, 1, 0}, {0, 1, 0.2},
		}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			sc := newScene()
			sc.Keep(time.Hour)
			for p, part := range tc.parts {
				for i, take := range part.takes {
					sc.now = sc.now.Add(take.idle)
					r := sc.ask(part.limit, take.cost, "")
					wait := r.At.Sub(sc.now)
					if sc.now = r.At; wait > 0 {
						r = sc.ask(part.limit, take.cost, "")
					}
					if got := wait.Seconds(); math.Abs(got-take.want) > 3e-6 || r.Status != limitscripts.Granted {
						t.Fatalf("part %d, take %d: waited %v (status %v), want %v and a grant", p, i, got, r.Status, take.want)
					}
				}
			}
		})
	}
}
