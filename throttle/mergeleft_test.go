package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// oneByOne lets a client's calls through one for each word that it is given, and all
// once there are no more words.
type oneByOne struct {
	redis.UniversalClient
	words chan struct{}
	calls atomic.Int64
}

func (o *oneByOne) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	o.calls.Add(1)
	<-o.words
	return o.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// A call whose caller left while it was under way is answered still, and to nobody:
// what it stands in is not used for another call.
func TestCallOfOneWhoLeftIsNobodyElses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	slow := &oneByOne{UniversalClient: rdb, words: make(chan struct{})}
	full := newLimiter(t, slow, "full", throttle.Sliding(1, time.Hour), throttle.Config{})
	throttle.Patient(slow)
	free := newLimiter(t, rdb, "free", throttle.Sliding(1, time.Hour), throttle.Config{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := full.TryAcquire(t.Context(), key, 1); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "two calls under way", func() bool { return slow.calls.Load() == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	const n = 20
	for range n {
		wg.Go(func() {
			d, err := full.Redeem(ctx, throttle.Request{Key: key, Cost: 1, Job: "left"})
			if !errors.Is(err, context.Canceled) || d.Granted || !d.At.IsZero() {
				t.Errorf("Redeem = %v, %v, want %v", d, err, context.Canceled)
			}
		})
	}
	waitFor(t, "all others behind them", func() bool { return throttle.Gathered(slow) == n })
	slow.words <- struct{}{}
	waitFor(t, "all others under way", func() bool { return slow.calls.Load() == 3 && throttle.Gathered(slow) == 0 })
	cancel()
	ask := func(i int) {
		switch d, err := free.TryAcquire(t.Context(), fmt.Sprint(i), 1); {
		case err != nil || !d.Granted:
			t.Errorf("TryAcquire(%d) = %v, %v, want a grant", i, d, err)
		case d.Key != fmt.Sprint(i) || d.Rule != "free":
			t.Errorf("TryAcquire(%d) is answered for another key or by rule %q", i, d.Rule)
		}
	}
	crowded(10*n, ask)
	close(slow.words) // the answers to those who left come now
	crowded(10*n, func(i int) { ask(10*n + i) })
	wg.Wait()
}

// Calls that follow each other in the same memory have nothing of each other: neither
// the parts of a policy of more rules, nor a job, a gate or an answer.
func TestCallsOfSeveralKindsByTurns(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	phone := newLimiter(t, rdb, "phone", throttle.Sliding(1, time.Hour), throttle.Config{})
	wide := newLimiter(t, rdb, "provider", throttle.GCRA(1_000_000, time.Hour, 1_000_000), throttle.Config{})
	both := newPolicy(t, phone, wide)
	crowded(16, func(g int) {
		for i := range 40 {
			id := fmt.Sprint(g, "-", i)
			r := throttle.Request{Key: id, Cost: 1, More: []throttle.KeyCost{{Key: "all", Cost: 1 + i%3}}}
			if d, err := both.TryAcquire(t.Context(), r); err != nil || !d.Granted || len(d.Left) != 2 || d.Left[0] != 0 || d.Left[1] == 0 {
				t.Errorf("TryAcquire of two rules = %v, left %v, %v, want a grant and what is left", d, d.Left, err)
			}
			if d, err := phone.TryAcquire(t.Context(), id, 1); err != nil || d.Granted || d.Rule != "phone" || d.Left != nil {
				t.Errorf("TryAcquire of the phone = %v, left %v, %v, want a refusal", d, d.Left, err)
			}
			if d, err := wide.TryAcquire(t.Context(), id, 1+i%3); err != nil || !d.Granted {
				t.Errorf("TryAcquire of the provider = %v, %v, want a grant", d, err)
			}
			if d, err := phone.Redeem(t.Context(), throttle.Request{Key: id, Cost: 1, Job: id}); err != nil || d.Granted || d.Job != id {
				t.Errorf("Redeem = %v, %v, want a booking", d, err)
			}
		}
	})
}
