package civil

import (
	"errors"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones of the tests do not depend on the machine
)

func TestMissingZoneDatabaseIsNamed(t *testing.T) {
	t.Parallel()
	none := func(string) (*time.Location, error) { return nil, errors.New("no such file") }
	if got := ZoneFault("Europe/Berlin", none); !strings.Contains(got, "time/tzdata") {
		t.Errorf("ZoneFault without a database = %q, want the remedy in it", got)
	}
	if got := ZoneFault("Europe/Berlln", time.LoadLocation); got == "" || strings.Contains(got, "tzdata") {
		t.Errorf("ZoneFault of a misspelt zone = %q, want nothing about the database", got)
	}
	if got := ZoneFault("Europe/Berlin", time.LoadLocation); got != "" {
		t.Errorf("ZoneFault of a zone = %q, want none", got)
	}
}

// A name that means something else on the next machine, or nothing, is no name of a zone,
// also where it loads.
func TestNamesOfOneMachineAreRefused(t *testing.T) {
	t.Parallel()
	all := func(string) (*time.Location, error) { return time.UTC, nil }
	for _, name := range []string{"", "Local", "localtime", "posixrules", "posix/Europe/Berlin", "right/Europe/Berlin", "Europe/../UTC"} {
		if ZoneFault(name, all) == "" {
			t.Errorf("ZoneFault(%q) finds no fault", name)
		}
	}
}

// On the last day of a leap year time.ZoneBounds ends before it begins. A caller
// who goes from one segment to the next must not go in circles.
func TestSegmentsHoldTheirInstant(t *testing.T) {
	t.Parallel()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	x := time.Date(2040, 12, 31, 12, 0, 0, 0, zone).Unix()
	if s := SegmentAt(zone, x); s.Start > x || x >= s.End || s.Offset != 3600 {
		t.Errorf("SegmentAt(%d) = %+v, want one around it, an hour from UTC", x, s)
	}
}
