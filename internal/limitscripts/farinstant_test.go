package limitscripts

import (
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// A line so long that its end lies beyond what a reply can hold is told an
// instant that is far away, and not one that is past.
func TestInstantFarAway(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.StartTimed(t)
	const year = 365 * 24 * time.Hour
	for _, n := range []Numbers{
		{Kind: Sliding, Permits: 1, Window: 10 * year},
		{Kind: Fixed, Permits: 1, Window: 10 * year},
		{Kind: GCRA, Permits: 1, Window: 10 * year, Burst: 1},
		{Kind: Step, Permits: 1, Window: 10 * year, Burst: 1},
		{Kind: Smooth, Permits: 1, Window: 10 * year},
		{Kind: WarmUp, Permits: 1, Window: 10 * year, Warm: time.Second, ColdMilli: 3000},
	} {
		k := NewLimitKeys("hw", string(rune(n.Kind)), "id")
		last := time.Time{}
		for i := range 100 {
			r, err := Acquire(t.Context(), rdb, AcquireArgs{Rules: one(k, n, 1_000_000), Token: uint64(i + 1), Job: string(rune('A' + i)), Mode: Book, MaxWait: -1})
			if err != nil {
				t.Fatal(err)
			}
			if r.Status != Booked || i > 0 && !r.At.After(r.Now) || r.At.Before(last) {
				t.Fatalf("%c: booking %d = %+v, the one before is at %v", n.Kind, i, r, last)
			}
			last = r.At
		}
	}
}
