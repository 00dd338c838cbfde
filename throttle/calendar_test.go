package throttle_test

import (
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// on sets the clock to an instant, and answers how far it is from the start.
func (s *scene) on(instant string) time.Duration {
	s.Helper()
	at, err := time.Parse(time.RFC3339, instant)
	if err != nil {
		s.Fatal(err)
	}
	s.at(at.Sub(start))
	return s.now.Sub(start)
}

// The worked number of [throttle.Calendar]. The clock of this process is
// months away from that of Redis, which alone decides.
func TestCalendarWorkedNumber(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("rule", throttle.Calendar(10, throttle.Day, "Asia/Shanghai"))
	midnight := s.on("2026-03-02T00:00:00+08:00")
	morning := s.on("2026-03-01T00:00:00+08:00")
	s.want(s.try(l, 4), true, morning)
	evening := s.on("2026-03-01T23:59:00+08:00")
	s.want(s.try(l, 6), true, evening)
	s.want(s.try(l, 1), false, midnight)
	if wait := midnight - evening; wait != time.Minute {
		t.Errorf("from 23:59 to midnight are %v", wait)
	}
	s.at(midnight - us)
	s.want(s.try(l, 1), false, midnight)
	s.at(midnight)
	s.want(s.try(l, 10), true, midnight) // sixteen within two minutes
	s.want(s.try(l, 1), false, midnight+24*time.Hour)
}

// Those in the line get the days after, one after another.
func TestCalendarLine(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("rule", throttle.Calendar(2, throttle.Day, "Europe/Berlin"))
	today := s.on("2026-03-28T12:00:00+01:00")
	for i, want := range []string{
		"", "", "2026-03-29T00:00:00+01:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", "2026-03-30T00:00:00+02:00", "2026-03-31T00:00:00+02:00",
	} {
		at := today
		if want != "" {
			at = s.on(want)
			s.at(today)
		}
		s.want(s.job(l, string(rune('a'+i)), 1), want == "", at)
	}
}

// 44: the days on which clocks are set forward and back have 23 and 25 hours,
// and hold what a day holds.
func TestPitfall44LongAndShortDay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		begin, noon, end, after string
		length                  time.Duration
	}{
		{"2026-03-29T00:00:00+01:00", "2026-03-29T12:00:00+02:00", "2026-03-30T00:00:00+02:00", "2026-03-31T00:00:00+02:00", 23 * time.Hour},
		{"2026-10-25T00:00:00+02:00", "2026-10-25T12:00:00+01:00", "2026-10-26T00:00:00+01:00", "2026-10-27T00:00:00+01:00", 25 * time.Hour},
	} {
		s := newScene(t)
		l := s.limiter("rule", throttle.Calendar(3, throttle.Day, "Europe/Berlin"))
		after, end, begin := s.on(c.after), s.on(c.end), s.on(c.begin)
		if end-begin != c.length {
			t.Errorf("the day has %v, want %v", end-begin, c.length)
		}
		s.at(begin - us)
		s.want(s.try(l, 3), true, begin-us)
		s.want(s.try(l, 1), false, begin)
		s.at(begin)
		s.want(s.try(l, 1), true, begin)
		noon := s.on(c.noon)
		s.want(s.try(l, 2), true, noon)
		for _, at := range []time.Duration{noon, begin + 22*time.Hour, end - us} {
			s.at(at)
			s.want(s.try(l, 1), false, end)
		}
		s.at(end)
		s.want(s.try(l, 3), true, end)
		s.want(s.try(l, 1), false, after)
	}
}

// 14: the clock of the process is hours or years off; Redis says which day it is.
func TestPitfall14CalendarByRedisClock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("rule", throttle.Calendar(1, throttle.Hour, "Asia/Kolkata"))
	for _, now := range []string{"2031-07-01T08:10:00+05:30", "2026-03-01T08:10:00+05:30", "2000-01-01T08:10:00+05:30"} {
		s.raw.FlushDB(t.Context())
		at := s.on(now)
		s.want(s.try(l, 1), true, at)
		s.want(s.try(l, 1), false, at+50*time.Minute)
	}
}
