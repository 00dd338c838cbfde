package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// A limit of bytes counts each of them: all kinds but sliding, which records each permit, take up to
// 2^40 of them, and let the last one in when the first of all have come back.
func TestLimitOfBytes(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const all, day = throttle.PermitsMax, 24 * time.Hour
	for name, tt := range map[string]struct {
		limit throttle.Limit
		again time.Duration // when one more byte may go behind all
	}{
		"fixed":    {throttle.Fixed(all, day), day},
		"calendar": {throttle.Calendar(all, throttle.Day, ""), 16 * time.Hour},
		"step":     {throttle.SteppedBucket(all, day, all), day},
		"bucket":   {throttle.Bucket(all, day, all), time.Microsecond},
		"slow":     {throttle.Bucket(1000, time.Second, all/5000), ms},
		"odd":      {throttle.Bucket(all-1, 7*time.Second+time.Microsecond, all-3), time.Microsecond},
		"leaky":    {throttle.Leaky(all, day), day},
		"smooth":   {throttle.Smooth(all, day, all), day},
	} {
		l := s.limiter(name, tt.limit)
		cost := tt.limit.MaxCost()
		if tt.limit.Kind() == "leaky" || tt.limit.Kind() == "smooth" {
			cost = all
		}
		s.at(0)
		s.want(s.try(l, cost-1), true, 0)
		if tt.limit.Kind() != "leaky" && tt.limit.Kind() != "smooth" { // those go one after the other
			s.want(s.try(l, 1), true, 0)
			s.want(s.try(l, 1), false, tt.again)
			s.at(tt.again)
			s.want(s.try(l, 1), true, tt.again)
			continue
		}
		s.want(s.try(l, 1), false, tt.again)
		s.at(tt.again - time.Microsecond)
		s.want(s.try(l, 1), false, tt.again)
	}
}

// Each permit of sliding is a record: a call that takes so many that Redis would be busy for long
// is refused, and the error says so.
func TestSlidingTakesNoMoreAtOnceThanRedisRecordsInTime(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(50_000, time.Minute))
	s.want(s.try(l, 10_000), true, 0)
	_, err := l.TryAcquire(t.Context(), key, 10_001)
	const want = `throttle: rule "sms": cost 10001, want at most 10000 at once under sliding 50000/1m, which keeps a record of each permit: other kinds take any cost`
	if !errors.Is(err, throttle.ErrExceedsLimit) || err.Error() != want {
		t.Errorf("TryAcquire of 10,001 = %v, want %s", err, want)
	}
}
