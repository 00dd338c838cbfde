package throttle_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// policies runs f in a bubble; each call of policy is another process, with the
// phone one in 3 s and the provider one a second.
func policies(t *testing.T, f func(t *testing.T, policy func() *throttle.Policy, rdb *redis.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		f(t, func() *throttle.Policy {
			client := miniClient(t, m)
			return newPolicy(t, newLimiter(t, client, "phone", throttle.Sliding(1, 3*time.Second), throttle.Config{}),
				newLimiter(t, client, "provider", throttle.Sliding(1, time.Second), throttle.Config{}))
		}, rdb)
	})
}

// Whoever blocks goes as soon as both rules admit it, in whatever process.
func TestPolicyAcquireBlocks(t *testing.T) {
	t.Parallel()
	policies(t, func(t *testing.T, policy func() *throttle.Policy, _ *redis.Client) {
		processes := []*throttle.Policy{policy(), policy()}
		begin := time.Now()
		var wg sync.WaitGroup
		for i, call := range []struct {
			phone string
			at    time.Duration
		}{{"A", 0}, {"A", 3 * time.Second}, {"B", time.Second}, {"B", 4 * time.Second}, {"C", 2 * time.Second}} {
			wg.Go(func() {
				d, err := processes[i%2].Acquire(t.Context(), wish(2, call.phone, ""))
				if took := time.Since(begin); err != nil || !d.Granted || took < call.at || took > call.at+ms {
					t.Errorf("Acquire of %s = %v, %v after %v, want a grant after %v", call.phone, d, err, took, call.at)
				}
			})
			synctest.Wait() // it waits in its line
		}
		wg.Wait()
	})
}

// Who gives up, or has not the time, leaves no place in any line.
func TestPolicyAcquireGivesUp(t *testing.T) {
	t.Parallel()
	policies(t, func(t *testing.T, policy func() *throttle.Policy, rdb *redis.Client) {
		p := policy()
		if d, err := p.Acquire(t.Context(), wish(2, "A", "")); err != nil || !d.Granted {
			t.Fatalf("Acquire = %v, %v", d, err)
		}
		for _, phone := range []string{"A", "B"} {
			cause := errors.New("shut down")
			ctx, cancel := context.WithCancelCause(t.Context())
			result := make(chan error)
			go func() {
				_, err := p.Acquire(ctx, wish(2, phone, ""))
				result <- err
			}()
			synctest.Wait()
			cancel(cause)
			if err := <-result; !errors.Is(err, cause) {
				t.Errorf("Acquire of %s = %v, want its context's cause", phone, err)
			}
			r := wish(2, phone, "")
			r.MaxWait = 500 * ms
			if _, err := p.Acquire(t.Context(), r); !errors.Is(err, throttle.ErrTooLate) {
				t.Errorf("Acquire of %s = %v, want %v", phone, err, throttle.ErrTooLate)
			}
			for _, l := range p.Rules() {
				for _, k := range []string{phone, "provider"} {
					if n := rdb.Exists(t.Context(), l.Ledger(k)+":line").Val(); n != 0 {
						t.Errorf("%d keys of the line of %s are left, want none", n, l.Rule())
					}
				}
			}
		}
	})
}
