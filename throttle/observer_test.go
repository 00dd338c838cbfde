package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// witness is an observer that writes down what it is told.
type witness struct {
	mu   sync.Mutex
	told []string
	all  []throttle.Decision
}

func (w *witness) Decided(_ context.Context, d throttle.Decision, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, fmt.Sprint(d.Granted, " ", err != nil))
	w.all = append(w.all, d)
}

func TestCountsAndObserver(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := &witness{}
	l := newLimiter(t, s.rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{Observer: w})
	_ = s.try(l, 1)
	_ = s.try(l, 1)
	r := throttle.Request{Key: key, Cost: 1, Job: "a"}
	for range 2 { // one place
		_, _ = l.Policy().Redeem(t.Context(), r)
	}
	_, _ = l.Policy().Book(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "b"})
	r.MaxWait = time.Second
	_, _ = l.Policy().Redeem(t.Context(), r)
	_, _ = l.TryAcquire(t.Context(), key, 2)
	_, _ = l.TryAcquire(t.Context(), "", 1) // the caller's own fault
	s.raw.Set(t.Context(), "hw:{newer}:sms", "\xffx", 0)
	_, _ = l.TryAcquire(t.Context(), "newer", 1)
	want := throttle.Counts{Granted: 1, Refused: 1, Booked: 2, TooLate: 1, Exceeded: 1, Failed: 1}
	if got := l.Policy().Counts(); got != want {
		t.Errorf("Counts = %+v, want %+v", got, want)
	}
	told := []string{
		"true false", "false false", "false false", "false false", "false false",
		"false true", "false true", "false true", "false true",
	}
	if !slices.Equal(w.told, told) {
		t.Errorf("told %q, want %q", w.told, told)
	}
	for _, d := range w.all {
		noKey(t, d)
	}
}

func TestCountsWhenRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	for away, want := range map[throttle.FailureMode]throttle.Counts{
		throttle.FailClosed: {Failed: 2},
		throttle.FailOpen:   {Granted: 2, Fallback: 2},
		throttle.FailLocal:  {Granted: 1, Refused: 1, Fallback: 2},
	} {
		l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: away})
		for range 2 {
			_, err := l.TryAcquire(t.Context(), key, 1)
			if errors.Is(err, throttle.ErrUnavailable) != (away == throttle.FailClosed) {
				t.Errorf("%v: TryAcquire = %v", away, err)
			}
		}
		if got := l.Policy().Counts(); got != want {
			t.Errorf("%v: Counts = %+v, want %+v", away, got, want)
		}
	}
}
