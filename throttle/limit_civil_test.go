package throttle

import (
	"archive/zip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones of the tests do not depend on the machine

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/civil"
	"github.com/headwayq/headway/internal/limitscripts"
)

// civilCase is the window in which an instant lies, and the one after it.
type civilCase struct {
	zone      string
	unit      Unit
	at        string
	want      string
	next      string
	afterNext string
}

func (c civilCase) check(t *testing.T) {
	t.Helper()
	n := Calendar(1, c.unit, c.zone).numbers(instant(t, c.at))
	want := []string{c.want, c.next, c.afterNext}
	for i, w := range want {
		if w == "" {
			continue
		}
		if got := n.Bounds[i+1]; !got.Equal(instant(t, w)) {
			t.Errorf("%s, %v at %s: window %+d begins at %s, want %s", c.zone, c.unit, c.at, i, got.In(instant(t, w).Location()).Format(time.RFC3339), w)
		}
	}
}

func instant(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestCivilWindows(t *testing.T) {
	t.Parallel()
	for _, c := range []civilCase{
		{"UTC", Minute, "2026-03-01T08:00:59.999999Z", "2026-03-01T08:00:00Z", "2026-03-01T08:01:00Z", ""},
		{"UTC", Hour, "2026-03-01T08:00:00Z", "2026-03-01T08:00:00Z", "2026-03-01T09:00:00Z", ""},
		{"UTC", Day, "2026-02-28T23:59:59Z", "2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z", ""},
		{"UTC", Week, "1970-01-01T00:00:00Z", "1969-12-29T00:00:00Z", "1970-01-05T00:00:00Z", ""},
		{"UTC", Month, "2024-02-29T12:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z", "2024-04-01T00:00:00Z"},
		{"Asia/Shanghai", Day, "2026-03-01T23:59:00+08:00", "2026-03-01T00:00:00+08:00", "2026-03-02T00:00:00+08:00", ""},

		// Days of 23 and 25 hours, and what they do to weeks and months.
		{"Europe/Berlin", Day, "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", ""},
		{"Europe/Berlin", Day, "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00", ""},
		{"Europe/Berlin", Week, "2026-03-29T23:59:59+02:00", "2026-03-23T00:00:00+01:00", "2026-03-30T00:00:00+02:00", ""},
		{"Europe/Berlin", Month, "2026-10-25T02:30:00+01:00", "2026-10-01T00:00:00+02:00", "2026-11-01T00:00:00+01:00", ""},

		// An hour that does not exist, and one that comes twice.
		{"Europe/Berlin", Hour, "2026-03-29T01:30:00+01:00", "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"},
		{"Europe/Berlin", Hour, "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"},
		{"Europe/Berlin", Hour, "2026-10-25T02:30:00+01:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00", ""},

		// Midnight does not exist.
		{"America/Sao_Paulo", Day, "2018-11-04T12:00:00-02:00", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00", ""},
		{"America/Sao_Paulo", Day, "2018-11-03T23:59:59-03:00", "2018-11-03T00:00:00-03:00", "2018-11-04T01:00:00-02:00", ""},
		{"Asia/Beirut", Day, "2022-03-27T05:00:00+03:00", "2022-03-27T01:00:00+03:00", "2022-03-28T00:00:00+03:00", ""},
		{"Africa/Cairo", Day, "2024-04-26T05:00:00+03:00", "2024-04-26T01:00:00+03:00", "2024-04-27T00:00:00+03:00", ""},

		// Midnight comes twice: the first one counts, and the date before that comes back does not.
		{"America/Havana", Day, "2025-11-02T00:30:00-05:00", "2025-11-02T00:00:00-04:00", "2025-11-03T00:00:00-05:00", ""},
		{"America/St_Johns", Day, "2006-10-28T23:30:00-03:30", "2006-10-29T00:00:00-02:30", "2006-10-30T00:00:00-03:30", ""},
		{"America/St_Johns", Hour, "2006-10-28T23:30:00-03:30", "2006-10-29T00:00:00-02:30", "2006-10-29T00:00:00-03:30", ""},

		// Offsets of 30 and 45 minutes, and clocks that are moved by 30.
		{"Asia/Kathmandu", Day, "2026-03-01T00:00:00+05:45", "2026-03-01T00:00:00+05:45", "2026-03-02T00:00:00+05:45", ""},
		{"Pacific/Chatham", Hour, "2026-06-01T08:59:00+12:45", "2026-06-01T08:00:00+12:45", "2026-06-01T09:00:00+12:45", ""},
		{"Asia/Kolkata", Hour, "2026-06-01T08:59:00+05:30", "2026-06-01T08:00:00+05:30", "2026-06-01T09:00:00+05:30", ""},
		{"Australia/Lord_Howe", Hour, "2026-04-05T01:45:00+10:30", "2026-04-05T01:00:00+11:00", "2026-04-05T02:00:00+10:30", ""},
		{"Australia/Lord_Howe", Hour, "2026-10-04T02:45:00+11:00", "2026-10-04T01:00:00+10:30", "2026-10-04T03:00:00+11:00", ""},
		{"Australia/Lord_Howe", Day, "2026-04-05T12:00:00+10:30", "2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30", ""},
		{"America/Caracas", Hour, "2016-05-01T02:15:00-04:30", "2016-05-01T02:00:00-04:30", "2016-05-01T03:00:00-04:00", ""},
		{"Africa/Monrovia", Minute, "1972-01-06T23:59:30-00:44", "1972-01-07T00:43:30Z", "1972-01-07T00:45:00Z", ""},

		// A date that a zone skips.
		{"Pacific/Apia", Day, "2011-12-29T12:00:00-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		{"Pacific/Apia", Day, "2011-12-31T00:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00", ""},
		{"Pacific/Apia", Week, "2011-12-31T12:00:00+14:00", "2011-12-26T00:00:00-10:00", "2012-01-02T00:00:00+14:00", ""},
		{"Pacific/Kiritimati", Month, "1994-12-15T00:00:00-10:00", "1994-12-01T00:00:00-10:00", "1995-01-01T00:00:00+14:00", ""},
	} {
		c.check(t)
	}
}

// The day on which clocks are set back is one window of 25 hours. Symfony's limiter once
// took it for a window of 24 hours and one more hour, and blocked for more than a day.
func TestDayOfClocksSetBackIsOneWindow(t *testing.T) {
	t.Parallel()
	b := Calendar(1, Day, "Europe/Berlin").numbers(instant(t, "2026-10-25T00:00:00+02:00")).Bounds
	if d := b[2].Sub(b[1]); d != 25*time.Hour {
		t.Errorf("the day is %v long, want 25h", d)
	}
}

// The day on which clocks are set forward has 23 hours. Gubernator counts 86,400,000 ms for each day.
func TestDayOfClocksSetForwardIsShort(t *testing.T) {
	t.Parallel()
	b := Calendar(1, Day, "Europe/Berlin").numbers(instant(t, "2026-03-29T00:00:00+01:00")).Bounds
	if d := b[2].Sub(b[1]); d != 23*time.Hour {
		t.Errorf("the day is %v long, want 23h", d)
	}
}

// A day of 25 hours ends at its own midnight. Limiters that add fixed hours have put its end into the next day.
func TestLongDayEndsAtMidnight(t *testing.T) {
	t.Parallel()
	civilCase{"America/New_York", Day, "2026-11-01T23:30:00-05:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00", ""}.check(t)
}

// A window begins by the offset that its time zone had then. go-zero computes the begin with
// the offset of now, which is wrong after the clocks were set.
func TestWindowBeginsByTheOffsetOfThen(t *testing.T) {
	t.Parallel()
	civilCase{"Europe/Berlin", Day, "2026-03-29T12:00:00+02:00", "2026-03-28T23:00:00Z", "", ""}.check(t)
	civilCase{"Europe/Berlin", Month, "2026-03-29T12:00:00+02:00", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", ""}.check(t)
}

// On the last day of a leap year time.ZoneBounds ends before it begins, and
// who goes from one to the next goes in circles.
func TestCivilWindowsAtTheEndOfALeapYear(t *testing.T) {
	t.Parallel()
	civilCase{"Europe/Berlin", Day, "2040-12-31T12:00:00+01:00", "2040-12-31T00:00:00+01:00", "2041-01-01T00:00:00+01:00", "2041-01-02T00:00:00+01:00"}.check(t)
	civilCase{"America/St_Johns", Hour, "2040-12-31T20:30:00-03:30", "2040-12-31T20:00:00-03:30", "2040-12-31T21:00:00-03:30", ""}.check(t)
	civilCase{"Australia/Lord_Howe", Month, "2040-12-31T12:00:00+11:00", "2040-12-01T00:00:00+11:00", "2041-01-01T00:00:00+11:00", ""}.check(t)
}

// checkBounds holds what a script relies on.
func checkBounds(t *testing.T, l Limit, at time.Time) {
	t.Helper()
	n := l.numbers(at)
	if want := units[l.unit].ahead + 2; len(n.Bounds) != want {
		t.Fatalf("%v at %v: %d bounds, want %d", l, at, len(n.Bounds), want)
	}
	if b := n.Bounds; at.Before(b[1]) || !at.Before(b[2]) {
		t.Errorf("%v at %v: lies not in its window, %v to %v", l, at, b[1], b[2])
	}
	for i, b := range n.Bounds[1:] {
		if d := b.Sub(n.Bounds[i]); d < n.Short {
			t.Errorf("%v at %v: the window from %v is %v long, want at least %v", l, at, n.Bounds[i], d, n.Short)
		}
	}
}

// Wherever a zone of the database moves its clocks, the windows follow.
func TestCivilWindowsOfAllZones(t *testing.T) {
	t.Parallel()
	last := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, name := range zoneNames(t) {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for at := time.Unix(1, 0).In(zone); at.Before(last); {
			for u := Minute; u <= Month; u++ {
				checkBounds(t, Calendar(1, u, name), at)
				checkBounds(t, Calendar(1, u, name), at.Add(-time.Microsecond))
			}
			if _, at = at.ZoneBounds(); at.IsZero() {
				break
			}
		}
	}
}

// oddZones have each moved their clocks in another way.
var oddZones = []string{
	"UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "Africa/Cairo", "America/Havana", "America/St_Johns",
	"Asia/Kathmandu", "Pacific/Chatham", "Australia/Lord_Howe", "America/Caracas", "Africa/Monrovia", "Pacific/Apia",
	"Pacific/Kiritimati", "Pacific/Kwajalein", "Asia/Pyongyang", "Africa/Casablanca", "Antarctica/Vostok", "Antarctica/Casey", "Antarctica/Troll",
}

// zoneNames are the odd zones, and all others where the toolchain is at hand.
func zoneNames(t *testing.T) []string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil || testing.Short() {
		return oddZones
	}
	archive, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		return oddZones
	}
	defer archive.Close()
	names := slices.Clone(oddZones)
	for _, f := range archive.File {
		if !strings.HasSuffix(f.Name, "/") {
			names = append(names, f.Name)
		}
	}
	return names
}

// Every 30 s (Monrovia was 44:30 off), a window begins where the clock first shows its date, or a
// full hour.
func TestCivilWindowsFollowTheClock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom(oddZones).Draw(rt, "zone")
		zone, err := time.LoadLocation(name)
		if err != nil {
			rt.Fatal(err)
		}
		around := time.Unix(rapid.Int64Range(2*365*civil.DaySeconds, 80*365*civil.DaySeconds).Draw(rt, "around"), 0).In(zone)
		if at, _ := around.ZoneBounds(); !at.IsZero() && at.Unix() > 3*365*civil.DaySeconds && rapid.Bool().Draw(rt, "at a change") {
			around = at.Add(time.Duration(rapid.IntRange(-90000, 90000).Draw(rt, "off")) * time.Second)
		}
		days := windows{Day, zone}.bounds(around.Unix())
		hours := windows{Hour, zone}.bounds(around.Unix())
		var starts, full []time.Time
		latest := days[0].Add(-time.Minute).In(zone).Format(time.DateOnly)
		for at := days[0].In(zone); at.Before(days[4]); at = at.Add(30 * time.Second) {
			if date := at.Format(time.DateOnly); date > latest {
				starts, latest = append(starts, at.UTC()), date
			}
			if at.Minute() == 0 && at.Second() == 0 && !at.Before(hours[0]) && at.Before(hours[4]) {
				full = append(full, at.UTC())
			}
		}
		if !slices.Equal(starts, days[:4]) {
			rt.Fatalf("%s around %v: days begin at %v, want %v", name, around, days[:4], starts)
		}
		if days[0].After(hours[0]) {
			rt.Fatalf("%s around %v: the hour before, %v, lies before the day before, %v", name, around, hours[0], days[0])
		}
		if !slices.Equal(full, hours[:4]) {
			rt.Fatalf("%s around %v: hours begin at %v, want %v", name, around, hours[:4], full)
		}
	})
}

func TestNumbersOfEachKind(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	type numbers struct {
		kind    limitscripts.Kind
		permits int
		window  time.Duration
		burst   int
		warm    time.Duration
		cold    int
	}
	for _, tt := range []struct {
		limit Limit
		want  numbers
	}{
		{Sliding(3, time.Minute), numbers{'s', 3, time.Minute, 0, 0, 0}},
		{Fixed(3, time.Minute), numbers{'f', 3, time.Minute, 0, 0, 0}},
		{Calendar(3, Month, ""), numbers{'c', 3, 31 * day, 0, 0, 0}},
		{Bucket(3, time.Minute, 2), numbers{'g', 3, time.Minute, 2, 0, 0}},
		{GCRA(3, time.Minute, 2), numbers{'g', 3, time.Minute, 2, 0, 0}},
		{SteppedBucket(3, time.Minute, 5), numbers{'p', 3, time.Minute, 5, 0, 0}},
		{Leaky(3, time.Minute), numbers{'m', 3, time.Minute, 0, 0, 0}},
		{Smooth(3, time.Minute, 5), numbers{'m', 3, time.Minute, 5, 0, 0}},
		{WarmUp(3, time.Minute, time.Hour, 2.5), numbers{'w', 3, time.Minute, 0, time.Hour, 2500}},
	} {
		n := tt.limit.numbers(now)
		if got := (numbers{n.Kind, n.Permits, n.Window, n.Burst, n.Warm, n.ColdMilli}); got != tt.want {
			t.Errorf("%v: numbers %+v, want %+v", tt.limit, got, tt.want)
		}
		if calendar := tt.limit.kind == kindCalendar; calendar != (len(n.Bounds) > 0) || calendar != (n.Short > 0) {
			t.Errorf("%v: bounds %v, short %v", tt.limit, n.Bounds, n.Short)
		}
	}
}

// numbers is called for every decision.
func TestNumbersDoNotAllocate(t *testing.T) {
	now := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	for _, l := range []Limit{Sliding(1, time.Minute), WarmUp(1, time.Second, time.Second, 3), Calendar(1, Day, "Asia/Shanghai")} {
		l.numbers(now)
		if got := testing.AllocsPerRun(100, func() { l.numbers(now) }); got != 0 {
			t.Errorf("%v: %v allocations, want none", l, got)
		}
	}
}

// What is remembered of one window must not serve another.
func TestCivilBoundsAreNotStale(t *testing.T) {
	t.Parallel()
	l := Calendar(1, Hour, "Asia/Tokyo")
	at := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	for _, d := range []time.Duration{0, time.Hour - 1, time.Hour, 90 * time.Minute, -1, 0, -48 * time.Hour, 1000 * time.Hour} {
		checkBounds(t, l, at.Add(d))
	}
}
