package throttle_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Two of four holders die; what the others give back goes on through the line, at any
// pace. The leases of the dead go to others at the very instants at which they end,
// though all who wait are 3 ms away.
func TestLeasesOfTheDeadAreUsedWhenTheyEnd(t *testing.T) {
	t.Parallel()
	const n, lease, away, ahead = 4, time.Second, 3 * ms, 4 * ms
	for _, every := range []time.Duration{7 * ms, 20 * ms, 50 * ms, 110 * ms, 330 * ms} {
		t.Run(fmt.Sprint(every), func(t *testing.T) {
			t.Parallel()
			h := newHall(t, n, 250, lease)
			var ends []time.Time
			for i, d := range h.holders[:2] {
				h.at(time.Duration(i) * 3 * ms) // at different instants
				if errs := h.l.Policy().Renew(t.Context(), []throttle.Decision{d}); errs[0] != nil {
					t.Fatal(errs[0])
				}
				ends = append(ends, h.now.Add(lease))
			}
			h.holders = h.holders[2:]

			var grants []throttle.Decision
			comes := make(map[string]time.Time)
			knows := make(map[string]time.Time) // the instant for which it comes
			for at := 4 * ms; at < lease+10*ms; at += ms {
				h.at(at)
				if at%every == 0 {
					h.release()
				}
				for i := range 250 {
					job := fmt.Sprintf("j%02d", i)
					if arrives, ok := comes[job]; ok && !arrives.After(h.now) {
						if d := h.comes(job); d.Granted {
							grants = append(grants, d)
						}
						delete(comes, job)
						delete(knows, job)
					}
				}
				for job, due := range h.due {
					if due.Equal(knows[job]) {
						continue
					}
					knows[job], comes[job] = due, due.Add(away-ahead)
					if soonest := h.now.Add(away); comes[job].Before(soonest) {
						comes[job] = soonest
					}
				}
			}
			for i, end := range ends {
				if !slices.ContainsFunc(grants, func(d throttle.Decision) bool { return d.At.Equal(end) }) {
					t.Errorf("nobody was granted the lease %d of the dead at its end", i+1)
				}
			}
		})
	}
}
