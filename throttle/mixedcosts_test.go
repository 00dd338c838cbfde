package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// A costly job that is first in its line is not passed by smaller ones that came later, which would
// take what it waits for in each window; and those are told when they go behind it.
func TestCostlyHeadIsNotPassed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limit               throttle.Limit
		first, head, behind time.Duration // when the window ends, and when both go
	}{
		"fixed":                              {throttle.Fixed(5, 3*time.Second), 0, 3 * time.Second, 6 * time.Second},
		"calendar":                           {throttle.Calendar(5, throttle.Minute, "UTC"), 0, time.Minute, 2 * time.Minute},
		"step":                               {throttle.SteppedBucket(5, 3*time.Second, 5), 0, 3 * time.Second, 6 * time.Second},
		"sliding":                            {throttle.Sliding(5, 3*time.Second), 0, 3 * time.Second, 6 * time.Second},
		"sliding, a window below InlineWait": {throttle.Sliding(5, 20*ms), 0, 20 * ms, 40 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l := s.limiter("sms", tt.limit)
			s.want(s.try(l, 3), true, tt.first)
			s.want(s.job(l, "other", 2), true, tt.first)
			head := s.book(l, "head", 5)
			s.want(head, false, tt.head)
			s.at(ms)
			s.want(s.book(l, "behind", 2), false, tt.behind)
			if left, err := l.TimeUntil(t.Context(), key, 2); err != nil || left != tt.behind-ms {
				t.Errorf("TimeUntil(2) = %v, %v, want %v", left, err, tt.behind-ms)
			}
			if err := acquireWithin(t.Context(), l, key, 2, tt.behind-3*ms); !errors.Is(err, throttle.ErrTooLate) {
				t.Errorf("Acquire within %v = %v, want %v at once", tt.behind-3*ms, err, throttle.ErrTooLate)
			}
			s.at(tt.head - 2*ms)
			if d := s.job(l, "behind", 2); d.Granted {
				t.Errorf("the job behind went at %v, before the head", d.At.Sub(start))
			}
			s.want(s.job(l, "head", 5), true, tt.head)
			s.at(tt.behind - 2*ms)
			s.want(s.job(l, "behind", 2), true, tt.behind)
		})
	}
}

func (s *scene) book(l *throttle.Limiter, job string, cost int) throttle.Decision {
	s.Helper()
	d, err := l.Policy().Book(s.Context(), throttle.Request{Key: key, Cost: cost, Job: job})
	if err != nil {
		s.Fatalf("Book(%q, %d): %v", job, cost, err)
	}
	return d
}
