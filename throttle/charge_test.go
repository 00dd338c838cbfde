package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// Whatever a grant is adjusted to on the way, as much is spent as it comes to: exactly
// where the ledger knows single permits. A bucket is one instant or one count: of a
// correction of a correction it gives back what is sure, and never more.
func TestAdjustUpAndDown(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{
		throttle.Sliding(6, time.Minute), throttle.Fixed(6, time.Minute), throttle.Bucket(6, time.Minute, 6),
		throttle.GCRA(6, time.Minute, 6), throttle.SteppedBucket(6, time.Minute, 6),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l, exact := s.limiter("rule", limit), limit.Kind() == "sliding" || limit.Kind() == "fixed"
			charge := l.Policy().Charge(s.try(l, 1))
			for i, to := range []int{1, 5, 4, 5, 2, 0, 3, 0, 6, 0} {
				s.at(time.Duration(i) * ms)
				for range 2 { // the second time nothing is left to do
					if _, err := charge.Adjust(t.Context(), map[string]int{"rule": to}); err != nil {
						t.Fatal(err)
					}
				}
				got, err := l.Available(t.Context(), key)
				if err != nil || got > 6-to || exact && got != 6-to || charge.Charged("rule") != to {
					t.Fatalf("adjusted to %d: %d available, %v, %d charged, want %d available", to, got, err, charge.Charged("rule"), 6-to)
				}
			}
		})
	}
}

// What this process counted while Redis was away is adjusted here too.
func TestChargeOfALocalGrant(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	opts := srv.ClientOptions()
	opts.MaxRetries, opts.DialerRetries = -1, 1
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	p := newLimiter(t, rdb, "r", throttle.Sliding(6, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}).Policy()
	srv.Kill()
	d, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 5})
	if err != nil || !d.Granted || d.Fallback != throttle.FailLocal {
		t.Fatalf("TryAcquire = %v, %v, want a local grant", d, err)
	}
	// it does not adjust by a limit that was heard a moment ago
	if _, err := throttle.ForWorkers.LimitInForce(t.Context(), p.Rules()[0]); !errors.Is(err, throttle.ErrUnavailable) {
		t.Fatalf("LimitInForce = %v, want %v", err, throttle.ErrUnavailable)
	}
	if _, err := p.Charge(d).Adjust(t.Context(), map[string]int{"r": 2}); err != nil {
		t.Fatalf("Adjust: %v", err)
	}
	for _, want := range []bool{true, false} {
		d, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 4})
		if err != nil || d.Granted != want {
			t.Errorf("TryAcquire = %v, %v, want granted %v: 2 of 6 are paid", d, err, want)
		}
	}
}
