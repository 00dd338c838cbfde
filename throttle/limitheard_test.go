package throttle_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// Another limiter hears of a change within a second; callers that block there
// go at once when the limit rose.
func TestChangeReachesWhoBlocks(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, time.Hour), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
		l, operator := limiter(), limiter()
		if err := l.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		const callers = 20
		got := make(chan error, callers)
		for range callers {
			go func() { got <- l.Acquire(t.Context(), key, 1) }()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		began := time.Now()
		if err := operator.SetLimit(t.Context(), throttle.Sliding(100, time.Second)); err != nil {
			t.Fatal(err)
		}
		for range callers {
			if err := <-got; err != nil {
				t.Errorf("Acquire = %v", err)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the last went %v after the change, want a second at most", took)
		}
		// and who wants more than a lowered limit holds hears it
		for range 100 - callers {
			if _, err := operator.TryAcquire(t.Context(), key, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := operator.SetLimit(t.Context(), throttle.Sliding(100, time.Hour)); err != nil {
			t.Fatal(err)
		}
		go func() { got <- operator.Acquire(t.Context(), key, 90) }()
		synctest.Wait() // it is in the line
		if err := operator.SetLimit(t.Context(), throttle.Sliding(50, time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := <-got; !errors.Is(err, throttle.ErrExceedsLimit) {
			t.Errorf("Acquire(90) under a limit of 50 = %v, want %v", err, throttle.ErrExceedsLimit)
		}
	})
}

// waitFor polls until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	end := time.NewTimer(20 * time.Second)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// A second after a limit was lowered nobody admits by the old one: several
// limiters take what they get, the grants are counted.
func TestLoweredLimitHoldsEverywhere(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const crew = 4
	var mu sync.Mutex
	var grants []time.Time
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range crew {
		l := newLimiter(t, srv.Client(t), "sms", throttle.Sliding(10, 200*time.Millisecond), throttle.Config{InlineWait: throttle.InlineWaitNone})
		wg.Go(func() {
			for ctx.Err() == nil {
				if d, err := l.TryAcquire(ctx, key, 1); err == nil && d.Granted {
					mu.Lock()
					grants = append(grants, d.At)
					mu.Unlock()
				}
			}
		})
	}
	waitFor(t, "grants under the old limit", func() bool { mu.Lock(); defer mu.Unlock(); return len(grants) >= 30 })
	rdb := srv.Client(t)
	operator := newLimiter(t, rdb, "sms", throttle.Sliding(10, 200*time.Millisecond), throttle.Config{})
	if err := operator.SetLimit(t.Context(), throttle.Sliding(1, 200*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	changed := rdb.Time(t.Context()).Val()
	waitFor(t, "ten grants from a second after the change on", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(grants) > 10 && grants[len(grants)-10].Sub(changed) > time.Second
	})
	cancel()
	wg.Wait()
	slices.SortFunc(grants, time.Time.Compare)
	for i, at := range grants {
		if at.Sub(changed) < time.Second {
			continue
		}
		if gap := at.Sub(grants[i-1]); gap < 200*time.Millisecond {
			t.Errorf("a grant %v after the change is %v after the one before it, want 200ms", at.Sub(changed), gap)
		}
	}
}

// While Redis is away a limiter decides by what it knows for a second at most;
// its answer to more than that is the error.
func TestLimitInForceWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	rdb, proxy := redistest.Behind(t, redistest.Start(t), func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
	limit := throttle.Sliding(5, time.Minute)
	l := newLimiter(t, rdb, "sms", limit, throttle.Config{})
	if err := l.SetLimit(t.Context(), limit); err != nil {
		t.Fatal(err)
	}
	set := time.Now()
	proxy.Refuse(true)
	if got, err := l.LimitInForce(t.Context()); got != limit || err != nil {
		t.Errorf("LimitInForce = %v, %v, want %v from memory", got, err, limit)
	}
	var err error
	waitFor(t, "an error", func() bool { _, err = l.LimitInForce(t.Context()); return err != nil })
	if took := time.Since(set); !errors.Is(err, throttle.ErrUnavailable) || took < 900*time.Millisecond {
		t.Errorf("LimitInForce = %v after %v, want %v after a second", err, took, throttle.ErrUnavailable)
	}
	proxy.Refuse(false)
	waitFor(t, "the limit again", func() bool { got, err := l.LimitInForce(t.Context()); return err == nil && got == limit })
}

// Callers that ask at the same time share one look, and none is needed for
// half a second.
func TestLooksAreShared(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	var looks gets
	rdb.AddHook(&looks)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	began := time.Now()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				if _, err := l.LimitInForce(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := looks.Load(); n > 1+int64(time.Since(began)/(500*time.Millisecond)) {
		t.Errorf("%d looks in %v, want one in half a second", n, time.Since(began))
	}
}

// A limit that is known costs no allocation. Not in parallel: others allocate.
func TestKnownLimitCostsNoAllocation(t *testing.T) {
	l := newLimiter(t, redistest.Start(t).Client(t), "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	wantInForce(t, l, throttle.Sliding(1, time.Minute))
	if n := testing.AllocsPerRun(100, func() { _, _ = l.LimitInForce(context.Background()) }); n != 0 {
		t.Errorf("%v allocations when the limit is known, want none", n)
	}
}
