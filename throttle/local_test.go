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

	"github.com/headwayq/headway/throttle"
)

func newLocal(tb testing.TB, limit throttle.Limit) *throttle.Limiter {
	tb.Helper()
	l, err := throttle.NewLocal("sms", limit, throttle.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// Without a Redis the same calls do the same.
func TestLocalLimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, begin := newLocal(t, throttle.Sliding(1, time.Second)), time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var order []int
		for i := range 10 {
			wg.Go(func() {
				if err := l.Acquire(t.Context(), key, 1); err != nil {
					t.Errorf("Acquire %d = %v, want nil", i, err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				if at, want := time.Since(begin), time.Duration(i)*time.Second; at < want || at > want+ms {
					t.Errorf("Acquire %d returned at %v, want %v", i, at, want)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("order = %v, want that of arrival", order)
		}
		time.Sleep(time.Second)
		d, err := l.TryAcquire(t.Context(), key, 1)
		if err != nil || !d.Granted || d.Fallback != throttle.FailClosed {
			t.Errorf("TryAcquire = %v, %v, want a grant", d, err)
		}
		if _, err := l.Policy().Refund(t.Context(), d.Request); err != nil {
			t.Errorf("Refund = %v, want nil", err)
		}
		if n, err := l.Available(t.Context(), key); err != nil || n != 1 {
			t.Errorf("Available = %d, %v, want 1", n, err)
		}
		d, _ = l.TryAcquire(t.Context(), key, 1)
		if _, err := l.Reset(t.Context(), key); err != nil {
			t.Errorf("Reset = %v, want nil", err)
		}
		if until, err := l.TimeUntil(t.Context(), key, 1); err != nil || until != 0 {
			t.Errorf("TimeUntil after Reset = %v, %v, want 0", until, err)
		}
		if other := newLocal(t, throttle.Sliding(1, time.Second)); d.Granted {
			if d, err := other.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
				t.Errorf("TryAcquire of another limiter = %v, %v, want a grant", d, err)
			}
		}
	})
}

func TestLocalRefusals(t *testing.T) {
	t.Parallel()
	if _, err := throttle.NewLocal("a b", throttle.Limit{}, throttle.Config{Prefix: ":"}); !errors.Is(err, throttle.ErrInvalidConfig) || !errors.Is(err, throttle.ErrInvalidLimit) {
		t.Errorf("NewLocal = %v, want every fault", err)
	}
	l := newLocal(t, throttle.Sliding(1, time.Minute))
	if _, err := l.TryAcquire(t.Context(), key, 2); !errors.Is(err, throttle.ErrExceedsLimit) {
		t.Errorf("TryAcquire(2) = %v, want %v", err, throttle.ErrExceedsLimit)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	place := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "a", Costs: []int{1}}
	_, try := l.TryAcquire(ended, key, 1)
	_, peek := l.Peek(ended, key, 1)
	_, reset := l.Reset(ended, key)
	_, leave := throttle.ForWorkers.CancelBooking(ended, place)
	for op, err := range map[string]error{
		"TryAcquire": try, "Peek": peek, "Reset": reset, "Leave": leave,
		"Refresh": throttle.ForWorkers.Refresh(ended, nil, []throttle.BookingRef{place})[0].Err,
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context = %v, want %v", op, err, context.Canceled)
		}
		noKey(t, err)
	}
}

// Places of both kinds are looked at together, those in Redis in one round trip.
func TestRefreshOfBothKinds(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	there, here := s.limiter("sms", throttle.Sliding(1, time.Minute)), newLocal(t, throttle.Sliding(1, time.Hour))
	var places []throttle.BookingRef
	for _, l := range []*throttle.Limiter{here, there, here, there} {
		if len(places) < 2 {
			s.try(l, 1)
			s.job(l, "a", 1)
		}
		places = append(places, throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: map[bool]string{true: "a", false: "b"}[len(places) < 2], Costs: []int{1}})
	}
	trips := &roundTrips{}
	s.raw.AddHook(trips)
	throttle.ForWorkers.Refresh(t.Context(), s.rdb, places) // the script gets known
	trips.n = 0
	got := throttle.ForWorkers.Refresh(t.Context(), s.rdb, places)
	for i, known := range []bool{true, true, false, false} {
		if got[i].Err != nil || got[i].Known != known {
			t.Errorf("Refresh of place %d = %+v, want known = %v", i, got[i], known)
		}
	}
	if w := got[0].At.Sub(got[0].Now); w < 59*time.Minute || got[1].At.Sub(start) != time.Minute {
		t.Errorf("Refresh = %v from now and at %v, want an hour and a minute", w, got[1].At.Sub(start))
	}
	if trips.n != 1 {
		t.Errorf("%d round trips, want 1", trips.n)
	}
	if _, err := throttle.ForWorkers.CancelBooking(t.Context(), places[0]); err != nil {
		t.Errorf("Leave = %v, want nil", err)
	}
	if got := throttle.ForWorkers.Refresh(t.Context(), nil, places[:1]); got[0].Known {
		t.Errorf("Refresh after Leave = %+v, want it unknown", got[0])
	}
}

// pipelines counts them.
type roundTrips struct{ n int }

func (r *roundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.n++
		return next(ctx, cmd)
	}
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.n++
		return next(ctx, cmds)
	}
}
