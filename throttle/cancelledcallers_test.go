package throttle_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// Three in ten of the callers of several processes give up while they wait. The others use the
// permits that those had been promised: a limit that hands out its permits one by one has to be used
// in time, or the permit is lost.
func TestVirtualCallersThatGiveUpCostNothing(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{throttle.GCRA(100, time.Second, 1), throttle.GCRA(20, time.Second, 1)} {
		bubble(t, limit, func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
			const callers = 400
			each := time.Second / time.Duration(limit.Permits())
			processes := []*throttle.Limiter{limiter(), limiter(), limiter()}
			rnd := rand.New(rand.NewPCG(13, 2))
			begin, last, granted := time.Now(), time.Now(), 0
			var wg sync.WaitGroup
			var mu sync.Mutex
			for i := range callers {
				ctx, cancel := context.WithCancel(t.Context())
				if wait := time.Duration(i) * each; i > 20 && rnd.IntN(10) < 3 {
					time.AfterFunc(time.Duration(rnd.Int64N(int64(wait)/2)), cancel)
				}
				wg.Go(func() {
					defer cancel()
					if err := processes[i%3].Acquire(ctx, key, 1); err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Errorf("caller %d: %v", i, err)
						}
						return
					}
					mu.Lock()
					defer mu.Unlock()
					granted, last = granted+1, time.Now()
				})
				synctest.Wait()
			}
			wg.Wait()
			if share := float64(granted-1) * float64(each) / float64(last.Sub(begin)); share < 0.995 {
				t.Errorf("%v: %d of %d callers were granted in %v, %.1f %% of the rate, want at least 99.5 %%", limit, granted, callers, last.Sub(begin), 100*share)
			}
		})
	}
}
