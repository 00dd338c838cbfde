package throttle

import (
	"testing"
	"time"
)

// A job that a script promoted by more than a window tells the callers of its instant, whom Redis
// would promote one by one. Nobody else is woken, and those callers wake nobody.
func TestPromotedCallerWakesThoseOfItsInstant(t *testing.T) {
	t.Parallel()
	l := &Limiter{limit: Sliding(2, time.Second)}
	now := time.Now()
	late := now.Add(time.Minute)
	caller := func(job string, at time.Time) *waiter {
		w := &waiter{job: job, rule: l, key: "k", told: &Decision{At: at, start: at}, moved: make(chan struct{}, 1)}
		l.waiters.stand("k", waitingCaller{job, at, at, now, w.moved})
		return w
	}
	all := map[string]*waiter{}
	for job, at := range map[string]time.Time{"first": now.Add(time.Second), "a": late, "b": late, "behind": late.Add(time.Second)} {
		all[job] = caller(job, at)
	}
	woken := func() (jobs string) {
		for _, job := range []string{"first", "a", "b", "behind"} {
			select {
			case <-all[job].moved:
				jobs += job + " "
			default:
			}
		}
		return jobs
	}
	for _, tt := range []struct {
		job    string
		reason askReason
		at     time.Time
		want   string
	}{
		{"a", askOnTime, now, ""},
		{"a", askPromoted, now, "b "},
		{"b", askOnTime, now, ""},
		{"a", askPromoted, late.Add(-time.Second), ""},
		{"b", askPromoted, late.Add(-time.Second - time.Microsecond), "a "},
		{"behind", askPromoted, now, ""},
	} {
		w := all[tt.job]
		w.reason = tt.reason
		w.takeIn(Decision{Granted: true, At: tt.at}, nil)
		if got := woken(); got != tt.want {
			t.Errorf("%s, promoted: %v, to %v: %q are woken, want %q", tt.job, tt.reason == askPromoted, tt.at.Sub(now), got, tt.want)
		}
		if w.reason == askPromoted {
			t.Errorf("%s is taken for promoted once more", tt.job)
		}
	}
}
