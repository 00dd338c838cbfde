package mailtest

import (
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle/gate"
)

func gateOf(t *testing.T, hours string) gate.Gate {
	t.Helper()
	g, err := gate.Parse(hours + " recipient")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestClock: at whatever time of the day the demonstration begins, the gate opens when
// it is to, by the library's own reckoning, is open for 12 h of the clock, and a
// schedule ticks at the instant that shows its time.
func TestClock(t *testing.T) {
	t.Parallel()
	gate := gateOf(t, "09:00-21:00")
	for minutes := range 24 * 4 {
		now := time.Date(2026, 2, 28, 0, 15*minutes, 7, 500, time.UTC)
		c, err := NewClock(now, gate, 720, 12)
		if err != nil {
			t.Fatal(err)
		}
		begin := now.Truncate(time.Second)
		if c.Begin != begin || c.Show(begin) != "06:36" || c.Show(begin.Add(time.Second)) != "06:48" || c.Show(c.Opens) != "09:00" {
			t.Fatalf("begun at %v the clock shows %s, a second later %s, and %s when the gate opens; want 06:36, 06:48, 09:00",
				now, c.Show(begin), c.Show(begin.Add(time.Second)), c.Show(c.Opens))
		}
		opens := gate.Openings(begin, begin.Add(150*time.Second), c.Zone)
		if len(opens) != 2 {
			t.Fatalf("begun at %v the gate opens %d times in 150 s, want twice", now, len(opens))
		}
		for i, o := range opens {
			from, until := o.Open.Sub(begin), o.Close.Sub(begin)
			if want := time.Duration(12+120*i) * time.Second; from != want || until != want+time.Minute {
				t.Fatalf("begun at %v the gate is open from %v to %v, want a minute from %v", now, from, until, want)
			}
		}
		cron := schedule.MustCron("0 0 7 * * *", c.Zone)
		if tick := cron.Next(begin).Sub(begin); tick != 2*time.Second {
			t.Fatalf("begun at %v it is 07:00 after %v, want 2s", now, tick)
		}
		if open := c.OpenFor(gate); open < time.Minute || open > c.Until.Sub(begin) {
			t.Fatalf("begun at %v the gate is open for %v of %v", now, open, c.Until.Sub(begin))
		}
	}
}

// TestClockScales: the ends of the range, and times that are not on a minute.
func TestClockScales(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 23, 59, 59, 0, time.UTC)
	gate := gateOf(t, "09:00-12:00,13:00-21:00")
	for _, scale := range []int{1, 2, 7, 60, 361, 720, 1440} {
		c, err := NewClock(now, gate, scale, 12)
		if err != nil {
			t.Fatal(err)
		}
		at := gate.Openings(now, now.Add(time.Minute), c.Zone)
		if len(at) == 0 || at[0].Open != c.Opens || c.Opens.Sub(now) != 12*time.Second {
			t.Errorf("scale %d: the gate opens at %v, want in 12 s", scale, at)
		}
		later := now.Add(100 * time.Second).In(c.Zone)
		passed := later.Sub(now) + offsetOf(later) - offsetOf(now.In(c.Zone))
		if want := 100 * time.Duration(scale) * time.Second; passed != want {
			t.Errorf("scale %d: %v pass in 100 s, want %v", scale, passed, want)
		}
		if end := offsetOf(c.Until.In(c.Zone)); end > offsetMax {
			t.Errorf("scale %d: the clock is %v from UTC in the end, want %v at most", scale, end, offsetMax)
		}
	}
}

func offsetOf(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}

func TestClockRefusesAGateThatNeverShuts(t *testing.T) {
	t.Parallel()
	if _, err := NewClock(time.Now(), gateOf(t, "00:00-24:00"), 720, 12); !errors.Is(err, ErrGateDaily) {
		t.Errorf("NewClock = %v, want ErrGateDaily", err)
	}
}
