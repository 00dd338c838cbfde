package worker_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// While tasks become due thick and fast a pool looks for them 3 ms apart; one with few
// workers more often, for it is done sooner with what one look wakes. Neither falls
// behind.
func TestLooksKeepApart(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		workers int
		apart   time.Duration
		least   int // looks; 8 in 25 ms are 3 ms apart
	}{{10, time.Millisecond, 9}, {200, 3 * time.Millisecond, 6}} {
		t.Run(fmt.Sprint(tc.workers, " workers"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const n, every, window = 1000, 50 * time.Microsecond, 10 * time.Second
				rdb, _ := redistest.Mini(t)
				r, seen := rigOn(t, nil, rdb), &runs{}
				limit := throttle.Sliding(1, window)
				lim := r.limiter("sms", limit)
				var due []time.Time
				for i := range n {
					due = append(due, r.take(lim, fmt.Sprint("+", i)).At.Add(window))
					r.enqueue("sms", fmt.Sprint(i), to(fmt.Sprint("+", i)), asynq.MaxRetry(0))
					time.Sleep(every)
				}
				var mu sync.Mutex
				var looks []time.Time
				cfg := policies(smsLimit(limit))
				cfg.Asynq.Concurrency = tc.workers
				r.startOn(&hooked{rdb, func() {
					mu.Lock()
					defer mu.Unlock()
					looks = append(looks, time.Now())
				}}, seen.handler(), cfg)
				time.Sleep(time.Until(due[n-1]) + time.Second)
				if all := seen.all(); len(all) != n || all[n-1].at.Sub(due[n-1]) > 50*ms {
					t.Fatalf("%d ran, the last at %v, want all %d, the last at %v", len(all), all[len(all)-1].at, n, due[n-1])
				}
				mu.Lock()
				defer mu.Unlock()
				count, from, to := 0, due[n/4], due[3*n/4] // while it is under way
				for _, at := range looks {
					if at.After(from) && at.Before(to) {
						count++
					}
				}
				t.Logf("%d looks in %v", count, to.Sub(from))
				if want := int(to.Sub(from) / tc.apart); count > want+2 || count < tc.least {
					t.Errorf("%d looks in %v, want one in %v, and %d at least", count, to.Sub(from), tc.apart, tc.least)
				}
			})
		})
	}
}
