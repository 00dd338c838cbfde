package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

func TestAvailableAndTimeUntil(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(3, time.Minute))
	look := func(available int, until ...time.Duration) {
		t.Helper()
		if got, err := l.Available(t.Context(), key); err != nil || got != available {
			t.Errorf("Available = %d, %v, want %d", got, err, available)
		}
		for i, want := range until {
			if got, err := l.TimeUntil(t.Context(), key, i+1); err != nil || got != want {
				t.Errorf("TimeUntil(%d) = %v, %v, want %v", i+1, got, err, want)
			}
		}
	}
	look(3, 0, 0, 0)
	s.want(s.try(l, 1), true, 0)
	s.at(20 * time.Second)
	s.want(s.try(l, 1), true, 20*time.Second)
	look(1, 0, 40*time.Second, time.Minute)
	s.want(s.job(l, "a", 2), false, time.Minute)
	look(0, time.Minute, time.Minute, 100*time.Second) // behind the two of a
	if _, err := l.TimeUntil(t.Context(), key, 4); !errors.Is(err, throttle.ErrExceedsLimit) {
		t.Errorf("TimeUntil(4) = %v, want %v", err, throttle.ErrExceedsLimit)
	}
	if _, err := l.TimeUntil(t.Context(), key, 0); !errors.Is(err, throttle.ErrInvalidCost) {
		t.Errorf("TimeUntil(0) = %v, want %v", err, throttle.ErrInvalidCost)
	}
	for _, k := range allKeys(t, s.raw) {
		before := s.raw.Dump(t.Context(), k).Val()
		look(0)
		if after := s.raw.Dump(t.Context(), k).Val(); after != before {
			t.Errorf("%s changed by a look", k)
		}
	}
}

// A key tells when it is forgotten.
func TestPeekTellsExpiry(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := newLimiter(t, s.raw, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	if got, err := l.Peek(t.Context(), key, 0); err != nil || got.Expires != 0 {
		t.Errorf("Expires of an unknown key = %v, %v, want 0", got.Expires, err)
	}
	if _, err := l.TryAcquire(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Peek(t.Context(), key, 0); err != nil || got.Expires <= 50*time.Second || got.Expires > time.Minute+time.Second {
		t.Errorf("Expires = %v, %v, want about a minute", got.Expires, err)
	}
}

func TestLooksWhenRedisIsAway(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	for _, away := range []throttle.FailureMode{throttle.FailClosed, throttle.FailOpen, throttle.FailLocal} {
		l := newLimiter(t, rdb, "sms", throttle.Sliding(3, time.Minute), throttle.Config{OnUnavailable: away})
		if _, err := l.Available(t.Context(), key); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("%v: Available = %v, want %v", away, err, throttle.ErrUnavailable)
		}
		if _, err := l.TimeUntil(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("%v: TimeUntil = %v, want %v", away, err, throttle.ErrUnavailable)
		}
	}
}
