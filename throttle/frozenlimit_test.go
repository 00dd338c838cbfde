package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// The master that has the stored limits stands still, and the client's time-outs are long. Callers of these rules, whose keys are at
// another master, are answered within seconds, as when Redis is away: also those that wait for another caller's reading.
func TestClusterMasterOfTheStoredLimitIsSilent(t *testing.T) {
	t.Parallel()
	shared, nodes := redistest.StartNodes(t, 3)
	redistest.ServeInPart(t, nodes)
	nodeOf := func(key string) int { return redistest.NodeOf(t, shared, nodes, key) }
	silent := (nodeOf("{"+key+"}") + 1) % len(nodes)
	o := *shared.Options()
	o.ReadTimeout = 10 * time.Minute
	rdb := redis.NewClusterClient(&o)
	t.Cleanup(func() { _ = rdb.Close() })
	var limiters []*throttle.Limiter // by mode; the callers below ask as fast as they can, and never use their limits up
	for i := 0; len(limiters) < 3; i++ {
		if rule := fmt.Sprint("r", i); nodeOf("hw:limit:"+rule) == silent {
			mode := throttle.FailureMode(len(limiters))
			limiters = append(limiters, newLimiter(t, rdb, rule, throttle.Sliding(1_000_000, time.Hour), throttle.Config{OnUnavailable: mode}))
		}
	}
	for _, l := range limiters {
		if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
	}

	nodes[silent].Pause()
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(nodes[silent].Resume)
	answered := make(chan error, 100)
	for mode, l := range limiters {
		for range 3 {
			wg.Go(func() { // until what is known of the limit is too old
				for {
					d, err := l.TryAcquire(context.Background(), key, 1)
					want := err == nil && d.Granted
					if throttle.FailureMode(mode) == throttle.FailClosed {
						want = want || errors.Is(err, throttle.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded)
					}
					if !want {
						answered <- fmt.Errorf("%v: TryAcquire = %v, %w", throttle.FailureMode(mode), d, err)
						return
					}
					if err != nil || d.Fallback != throttle.FailClosed {
						answered <- nil
						return
					}
				}
			})
		}
	}
	wg.Go(func() {
		for {
			ctx, cancel := context.WithTimeoutCause(context.Background(), 50*ms, errors.New("no time left"))
			_, err := limiters[0].TryAcquire(ctx, key, 1)
			cancel()
			if errors.Is(err, throttle.ErrUnavailable) && errors.Is(err, context.DeadlineExceeded) { // its own context has ended
				answered <- nil
				return
			}
		}
	})
	began := time.Now()
	eventually(t, "all are answered", func() bool { return len(answered) == 3*len(limiters)+1 })
	t.Logf("all were answered after %v", time.Since(began).Round(ms))
	for range 3*len(limiters) + 1 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	// the bookings of one rule do not wait for its limit one after the other
	bookings := make([]throttle.BookingRef, 50)
	for i := range bookings {
		bookings[i] = throttle.BookingRef{Policy: limiters[0].Policy(), IDs: []string{key}, Costs: []int{1}, Job: fmt.Sprint("j", i)}
	}
	refreshed := make(chan []throttle.BookingStatus, 1)
	wg.Go(func() { refreshed <- throttle.ForWorkers.Refresh(context.Background(), rdb, bookings) })
	eventually(t, "all bookings are answered", func() bool { return len(refreshed) > 0 })
	for _, status := range <-refreshed {
		if !errors.Is(status.Err, throttle.ErrUnavailable) {
			t.Errorf("a booking is %+v, want %v", status, throttle.ErrUnavailable)
		}
	}
	nodes[silent].Resume()
	for _, l := range limiters {
		eventually(t, "Redis decides again", func() bool {
			d, err := l.TryAcquire(t.Context(), key, 1)
			return err == nil && d.Granted && d.Fallback == throttle.FailClosed
		})
	}
}
