package throttle

import (
	"time"

	"github.com/headwayq/headway/throttle/internal/civil"
	"github.com/headwayq/headway/throttle/internal/errtext"
)

// Calendar holds n permits in each window of a civil calendar: "10 a day in
// Shanghai". Windows begin where the clock of the zone says so.
//
//	instant = now, or the start of the window after it + floor((j-1)/n) windows   for the j-th permit beyond it
//
// A day begins at the first instant of its date: at 00:00, or after it where
// clocks skip midnight. A week begins on Monday, a month on the 1st. A day may
// have 23 or 25 hours; a date that a zone skips is no window, and the one before
// it is not longer for that. A minute and an hour begin whenever the clock shows
// a full one. So the hour that comes twice in autumn is two windows, and where
// clocks are moved by half an hour the hour may have 30 or 90 minutes.
//
// With Calendar(10, Day, "Asia/Shanghai") and ten permits on March 1st, a call
// at 23:59 there is told to wait 1 m. Its excess: no civil window ever holds
// more than n, but any other window of the same length up to 2n, and 3n when a
// shorter civil window lies within (February, a day of 23 hours).
//
// n is 1 to [PermitsMax]. The zone is a name of the time zone database; "" is
// UTC; "Local" and other names that mean something else on another machine are
// refused. Every process should have the same version of the database. A key costs
// one small Redis string. Choose it for what is counted by the date, such as a
// contract's quota. Redisson's RRateLimiter has no such windows.
func Calendar(n int, unit Unit, zone string) Limit {
	if zone == "" {
		zone = zoneDefault
	}
	if int(unit) >= len(units) {
		unit = unitBad
	}
	return Limit{kind: kindCalendar, permits: n, unit: unit, window: units[unit].nominal, zone: zone}
}

// Unit is a unit of the civil calendar; the zero Unit is invalid.
type Unit uint8

// The units of [Calendar].
const (
	Minute Unit = iota + 1
	Hour
	Day
	Week // from Monday on
	Month
)

// unitBad stands for all others.
const unitBad Unit = 0

const unitNames = "minute, hour, day, week or month"

const zoneDefault = "UTC"

// units: no window since 1970 in any zone is below short, which a test looks up;
// ahead is how many windows a script is told beyond the current one.
var units = [...]struct {
	name    string
	nominal time.Duration
	short   time.Duration
	ahead   int
}{
	unitBad: {name: "no unit"},
	Minute:  {"minute", time.Minute, time.Minute, 16},
	Hour:    {"hour", time.Hour, 30 * time.Minute, 16},
	Day:     {"day", day, 16 * time.Hour, 16},
	Week:    {"week", 7 * day, 5 * day, 16},
	Month:   {"month", 31 * day, 27 * day, 14},
}

// String returns the name as it is in a text: "minute", "day".
func (u Unit) String() string {
	if int(u) >= len(units) {
		u = unitBad
	}
	return units[u].name
}

func unitNamed(name string) Unit {
	for u := Minute; u <= Month; u++ {
		if units[u].name == name {
			return u
		}
	}
	return unitBad
}

func (l Limit) calendarFaults(f *faultList) {
	if l.unit == unitBad {
		f.add("unit", l.unit.String(), unitNames)
	}
	if want := civil.ZoneFault(l.zone, time.LoadLocation); want != "" {
		f.add("zone", errtext.Quote(l.zone), want)
	}
}
