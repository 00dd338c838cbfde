// Package civil says what the clock on the wall of a time zone shows. Instants
// are seconds since 1970; local seconds are what the clock shows, read as UTC.
// Offsets are never assumed to be whole hours, nor dates to exist.
package civil

import (
	"math"
	"path"
	"strings"
	"time"
)

// DaySeconds are the seconds of a day on which no clock is changed.
const DaySeconds = 24 * 3600

// Segment is a time in which the offset of a zone does not change.
type Segment struct {
	Start, End int64 // Start <= x < End
	Offset     int64 // of local seconds from instants
}

// SegmentAt returns the segment of a zone in which the instant x lies.
func SegmentAt(zone *time.Location, x int64) Segment {
	t := time.Unix(x, 0).In(zone)
	_, offset := t.Zone()
	start, end := t.ZoneBounds()
	s := Segment{Start: math.MinInt64, End: math.MaxInt64, Offset: int64(offset)}
	if !start.IsZero() {
		s.Start = start.Unix()
	}
	if !end.IsZero() {
		s.End = end.Unix()
	}
	if s.End <= x {
		// Where a zone follows a rule and not a table, Go (1.26) ends each year after
		// 365 days: on December 31st of a leap year the segment has ended already.
		s.End = x - Mod(x, DaySeconds) + DaySeconds
	}
	return s
}

// Mod is a modulo b, and not negative for a positive b.
func Mod(a, b int64) int64 { return ((a % b) + b) % b }

// ZoneFault returns what the name of a zone should be instead, or "" when the
// name is right. load is [time.LoadLocation].
func ZoneFault(zone string, load func(string) (*time.Location, error)) string {
	const byName = "a name of the time zone database such as Europe/Berlin"
	switch {
	case zone == "Local", zone == "localtime", zone == "posixrules":
		return byName + ": this one differs per machine"
	case strings.HasPrefix(zone, "posix/"):
		return byName + ": only some machines know this one"
	case strings.HasPrefix(zone, "right/"):
		return byName + ": this one counts leap seconds"
	case path.Clean(zone) != zone:
		return byName
	}
	if _, err := load(zone); err == nil {
		return ""
	}
	if _, err := load("Europe/London"); err != nil {
		return "a time zone database, which this program does not find: install one, or import time/tzdata"
	}
	return byName
}
