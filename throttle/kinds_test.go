package throttle_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// us is a duration in microseconds, which is what the scripts count in.
const us = time.Microsecond

// step is one call, and what it answers: a try, or with back the refund of the
// last grant.
type step struct {
	at      time.Duration // since the start of the scene
	cost    int
	granted bool
	wait    time.Duration
	back    bool
}

// follow plays steps on one key.
func (s *scene) follow(l *throttle.Limiter, steps ...step) {
	s.Helper()
	var last throttle.Decision
	for i, w := range steps {
		s.at(w.at)
		if w.back {
			if _, err := l.Refund(s.Context(), last.Request); err != nil {
				s.Fatalf("%v, step %d: %v", l.Limit(), i, err)
			}
			continue
		}
		d := s.try(l, w.cost)
		if wait := d.At.Sub(s.now); d.Granted != w.granted || wait != w.wait {
			s.Errorf("%v, step %d, %d permits at %v: granted %v, wait %v, want %v, %v", l.Limit(), i, w.cost, w.at, d.Granted, wait, w.granted, w.wait)
		}
		if d.Granted {
			last = d
		}
	}
}

// kindsOf are three permits, or so, in a window, of every kind; in a minute of
// the calendar.
func kindsOf(window time.Duration) []throttle.Limit {
	return []throttle.Limit{
		throttle.Sliding(3, window),
		throttle.Fixed(3, window),
		throttle.Bucket(3, window, 4),
		throttle.SteppedBucket(3, window, 4),
		throttle.GCRA(3, window, 2),
		throttle.Leaky(3, window),
		throttle.Smooth(3, window, 2),
		throttle.WarmUp(3, window, 2*window, 3),
		throttle.Calendar(3, throttle.Minute, "Asia/Shanghai"),
	}
}

// perKind runs f for each kind, on a rule of its own.
func perKind(t *testing.T, window time.Duration, f func(s *scene, l *throttle.Limiter)) {
	t.Helper()
	s := newScene(t)
	for i, limit := range kindsOf(window) {
		s.at(0)
		f(s, s.limiter(fmt.Sprint("rule", i), limit))
	}
}

// drain takes single permits until one is refused, and answers that.
func (s *scene) drain(l *throttle.Limiter) throttle.Decision {
	s.Helper()
	for range 20 {
		if d := s.try(l, 1); !d.Granted {
			return d
		}
	}
	s.Fatalf("%v: 20 permits at one instant", l.Limit())
	return throttle.Decision{}
}

// pay takes n permits as Guava's acquire does, and answers how long it waited:
// the clock is moved to the instant that was told.
func pay(ctx context.Context, rdb *redistest.Timed, l *throttle.Limiter, n int) (time.Duration, error) {
	d, err := l.TryAcquire(ctx, key, n)
	if err != nil || d.Granted {
		return 0, err
	}
	if err := rdb.SetTime(ctx, d.At); err != nil {
		return 0, err
	}
	again, err := l.TryAcquire(ctx, key, n)
	if err == nil && !again.Granted {
		err = fmt.Errorf("after the wait it was told another: %w", again.Err())
	}
	return d.At.Sub(d.Now), err
}
