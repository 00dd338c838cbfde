package throttle_test

import (
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Whatever a grant is settled to on the way, as much is spent as it comes to: exactly
// where the ledger knows single permits. A bucket is one instant or one count: of a
// correction of a correction it gives back what is sure, and never more.
func TestSettleUpAndDown(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{
		throttle.Sliding(6, time.Minute), throttle.Fixed(6, time.Minute), throttle.Bucket(6, time.Minute, 6),
		throttle.GCRA(6, time.Minute, 6), throttle.SteppedBucket(6, time.Minute, 6),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l, exact := s.limiter("rule", limit), limit.Kind() == "sliding" || limit.Kind() == "fixed"
			bill := l.Policy().Charge(s.try(l, 1))
			for i, to := range []int{1, 5, 4, 5, 2, 0, 3, 0, 6, 0} {
				s.at(time.Duration(i) * ms)
				for range 2 { // the second time nothing is left to do
					if _, err := bill.Adjust(t.Context(), map[string]int{"rule": to}); err != nil {
						t.Fatal(err)
					}
				}
				got, err := l.Available(t.Context(), key)
				if err != nil || got > 6-to || exact && got != 6-to || bill.Charged("rule") != to {
					t.Fatalf("settled to %d: %d available, %v, %d paid, want %d available", to, got, err, bill.Charged("rule"), 6-to)
				}
			}
		})
	}
}
