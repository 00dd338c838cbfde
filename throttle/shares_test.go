package throttle_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/throttle"
)

// A limit in shares, as docs/scale.md has it: each share lets its part through, and all of them
// together never more than the limit. The part of a share without jobs stays unused.
func TestSharesNeverExceedTheLimit(t *testing.T) {
	t.Parallel()
	const shares, part, window, step, windows = 4, 5, 100 * ms, 10 * ms, 5
	for idle := range 2 { // shares that have no jobs
		t.Run(fmt.Sprint(idle, " idle"), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l := s.limiter("provider", throttle.Sliding(part, window))
			var spent []judge.Spent
			for at := time.Duration(0); at < windows*window; at += step {
				s.at(at)
				for phone := range 60 {
					share := phone % shares
					if share < idle {
						continue
					}
					d, err := l.Policy().TryAcquire(t.Context(), throttle.Request{Key: fmt.Sprint(share), Cost: 1})
					if err != nil {
						t.Fatal(err)
					}
					if d.Granted {
						spent = append(spent, judge.Spent{At: d.At.UnixMicro(), Cost: 1})
					}
				}
			}
			if want := (shares - idle) * part * windows; len(spent) != want {
				t.Errorf("%d of %d shares let %d through in %d windows, want %d", shares-idle, shares, len(spent), windows, want)
			}
			if most := judge.Most(spent, window); most > shares*part {
				t.Errorf("%d in one window, want at most %d", most, shares*part)
			}
		})
	}
}
