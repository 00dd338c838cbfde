package gate

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones of the tests do not depend on the machine

	"github.com/google/go-cmp/cmp"
)

// checkOpenings holds what is true of any answer.
func checkOpenings(t interface {
	Helper()
	Errorf(string, ...any)
}, got []Opening, from, until time.Time) {
	t.Helper()
	for i, o := range got {
		if !o.Open.Before(o.Close) || !o.Open.Before(until) || !o.Close.After(from) {
			t.Errorf("opening %d, %v, is empty or outside of %v to %v", i, o, from, until)
		}
		if i > 0 && !o.Open.After(got[i-1].Close) {
			t.Errorf("opening %d, %v, is not after %v", i, o, got[i-1])
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

// openingCase lists the openings that overlap two instants, as the clock of a
// zone shows their ends.
type openingCase struct {
	gate        string
	in          string
	from, until string
	want        string
}

// shown is an instant with its offset, so that a change of the clock is seen.
func shown(at time.Time) string { return strings.TrimSuffix(at.Format("01-02T15:04Z0700"), "00") }

func (c openingCase) check(t *testing.T) {
	t.Helper()
	g := mustParse(t, c.gate)
	name := g.Zone()
	var in *time.Location
	if c.in != "" {
		name = c.in
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	if c.in != "" {
		in = zone
	}
	from, until := instant(t, c.from), instant(t, c.until)
	openings := g.Openings(from, until, in)
	checkOpenings(t, openings, from, until)
	var got []string
	for _, o := range openings {
		got = append(got, shown(o.Open.In(zone))+" "+shown(o.Close.In(zone)))
	}
	if diff := cmp.Diff(c.want, strings.Join(got, ", ")); diff != "" {
		t.Errorf("%v from %s to %s (-want +got):\n%s", g, c.from, c.until, diff)
	}
}

func TestOpenings(t *testing.T) {
	t.Parallel()
	for _, c := range []openingCase{
		// 2026-03-06 is a Friday. Openings are whole, also where the window cuts them.
		{"09:00-21:00 Mon-Fri UTC", "", "2026-03-06T12:00:00Z", "2026-03-09T10:00:00Z", "03-06T09:00Z 03-06T21:00Z, 03-09T09:00Z 03-09T21:00Z"},
		{"09:00-21:00 Mon-Fri UTC", "", "2026-03-06T21:00:00Z", "2026-03-09T09:00:00Z", ""},
		{"09:00-21:00 Mon-Fri UTC", "", "2026-03-06T20:59:59.999Z", "2026-03-09T09:00:00.000000001Z", "03-06T09:00Z 03-06T21:00Z, 03-09T09:00Z 03-09T21:00Z"},
		{"09:00-21:00 UTC", "", "2026-03-06T12:00:00Z", "2026-03-06T12:00:00Z", ""},
		{"09:00-21:00 UTC", "", "2026-03-06T12:00:00Z", "2026-03-06T11:00:00Z", ""},
		{"09:00-12:00,13:00-18:00 Mon-Fri Asia/Shanghai", "", "2026-03-06T00:00:00Z", "2026-03-07T00:00:00Z", "03-06T09:00+08 03-06T12:00+08, 03-06T13:00+08 03-06T18:00+08"},
		{"09:00-18:00 Mon-Fri; 10:00-14:00 Sat UTC", "", "2026-03-06T00:00:00Z", "2026-03-08T23:00:00Z", "03-06T09:00Z 03-06T18:00Z, 03-07T10:00Z 03-07T14:00Z"},
		{"09:00-18:00 recipient", "Asia/Kathmandu", "2026-03-06T00:00:00Z", "2026-03-07T00:00:00Z", "03-06T09:00+0545 03-06T18:00+0545"},
		{"09:00-18:00 UTC", "Asia/Kathmandu", "2026-03-06T00:00:00Z", "2026-03-07T00:00:00Z", "03-06T14:45+0545 03-06T23:45+0545"},

		// Across midnight, and what runs into the next or lies within another.
		{"22:00-06:00 Mon UTC", "", "2026-03-10T05:00:00Z", "2026-03-17T00:00:00Z", "03-09T22:00Z 03-10T06:00Z, 03-16T22:00Z 03-17T06:00Z"},
		{"22:00-06:00 UTC", "", "2026-03-10T05:00:00Z", "2026-03-10T23:00:00Z", "03-09T22:00Z 03-10T06:00Z, 03-10T22:00Z 03-11T06:00Z"},
		{"12:00-24:00 Mon; 00:00-12:00 Tue UTC", "", "2026-03-10T05:00:00Z", "2026-03-11T00:00:00Z", "03-09T12:00Z 03-10T12:00Z"},
		{"09:00-18:00,10:00-12:00,17:00-19:00 UTC", "", "2026-03-10T18:30:00Z", "2026-03-10T18:31:00Z", "03-10T09:00Z 03-10T19:00Z"},
		{"12:00-11:59 Mon; 06:00-07:00 Tue; 11:59-12:30 Tue UTC", "", "2026-03-10T05:00:00Z", "2026-03-11T00:00:00Z", "03-09T12:00Z 03-10T12:30Z"},
		{"00:00-24:00 Mon-Fri UTC", "", "2026-03-04T05:00:00Z", "2026-03-05T00:00:00Z", "03-02T00:00Z 03-07T00:00Z"},

		// Holidays are the dates on which an opening begins.
		{"09:00-18:00 except 2026-12-25,12-26 UTC", "", "2026-12-24T00:00:00Z", "2026-12-28T00:00:00Z", "12-24T09:00Z 12-24T18:00Z, 12-27T09:00Z 12-27T18:00Z"},
		{"09:00-18:00 except 2026-12-25,12-26 UTC", "", "2027-12-25T00:00:00Z", "2027-12-28T00:00:00Z", "12-25T09:00Z 12-25T18:00Z, 12-27T09:00Z 12-27T18:00Z"},
		{"22:00-06:00 except 2026-12-25 UTC", "", "2026-12-24T00:00:00Z", "2026-12-26T23:00:00Z", "12-23T22:00Z 12-24T06:00Z, 12-24T22:00Z 12-25T06:00Z, 12-26T22:00Z 12-27T06:00Z"},
		{"22:00-06:00 except 02-29 UTC", "", "2028-02-28T23:00:00Z", "2028-03-01T23:00:00Z", "02-28T22:00Z 02-29T06:00Z, 03-01T22:00Z 03-02T06:00Z"},
		{"00:00-24:00 except 12-25 UTC", "", "2026-03-10T00:00:00Z", "2026-03-11T00:00:00Z", "12-26T00:00Z 12-25T00:00Z"},

		// Cron: a second opening tick changes nothing, a closing on the same minute wins.
		{`cron "0 9 * * 1-5" to "0 21 * * *" UTC`, "", "2026-03-06T12:00:00Z", "2026-03-09T10:00:00Z", "03-06T09:00Z 03-06T21:00Z, 03-09T09:00Z 03-09T21:00Z"},
		{`cron "0 9,12 * * *" to "30 20 * * *" UTC`, "", "2026-03-06T13:00:00Z", "2026-03-07T00:00:00Z", "03-06T09:00Z 03-06T20:30Z"},
		{`cron "0 * * * *" to "0 9,21 * * *" UTC`, "", "2026-03-06T08:00:00Z", "2026-03-06T22:00:00Z", "03-05T22:00Z 03-06T09:00Z, 03-06T10:00Z 03-06T21:00Z"},
		{`cron "0 20 * * 5" to "0 6 * * 1" except 2026-03-06 UTC`, "", "2026-03-01T00:00:00Z", "2026-03-16T00:00:00Z", "02-27T20:00Z 03-02T06:00Z, 03-13T20:00Z 03-16T06:00Z"},
		{`cron "0 9 1,15 * 1" to "@daily" UTC`, "", "2026-03-01T00:00:00Z", "2026-03-10T00:00:00Z", "03-01T09:00Z 03-02T00:00Z, 03-02T09:00Z 03-03T00:00Z, 03-09T09:00Z 03-10T00:00Z"},
		{`cron "0 9 29 2 *" to "0 21 29 2 *" UTC`, "", "2025-01-01T00:00:00Z", "2033-01-01T00:00:00Z", "02-29T09:00Z 02-29T21:00Z, 02-29T09:00Z 02-29T21:00Z"},
		{`cron "@yearly" to "0 0 29 2 *" UTC`, "", "2097-01-01T00:00:00Z", "2097-01-02T00:00:00Z", "01-01T00:00Z 01-03T00:00Z"}, // cut, see Lookahead
	} {
		c.check(t)
	}
}

// The worked number of [Gate].
func TestWeekendOfAGate(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]time.Duration{
		"2026-03-06T12:00:00+01:00": 60 * time.Hour,
		"2026-03-27T12:00:00+01:00": 59 * time.Hour,
		"2026-10-23T12:00:00+02:00": 61 * time.Hour,
	} {
		at := instant(t, from)
		got := mustParse(t, exampleText).Openings(at, at.Add(4*day), nil)
		if d := got[1].Open.Sub(got[0].Close); d != want {
			t.Errorf("after the Friday of %s: closed for %v, want %v", from, d, want)
		}
	}
}

func TestOpeningsWhereClocksAreChanged(t *testing.T) {
	t.Parallel()
	for _, c := range []openingCase{
		// Berlin, 02:00 is followed by 03:00: opening, closing, both, none within.
		{"02:30-09:00 Europe/Berlin", "", "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z", "03-29T03:00+02 03-29T09:00+02"},
		{"20:00-02:30 Europe/Berlin", "", "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z", "03-28T20:00+01 03-29T03:00+02"},
		{"02:15-02:45 Europe/Berlin", "", "2026-03-29T00:00:00Z", "2026-03-30T12:00:00Z", "03-30T02:15+02 03-30T02:45+02"},
		{"01:00-02:15,02:45-04:00 Europe/Berlin", "", "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z", "03-29T01:00+01 03-29T04:00+02"},
		{"02:00-03:00 Europe/Berlin", "", "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z", ""},
		{"03:00-04:00 Europe/Berlin", "", "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z", "03-29T03:00+02 03-29T04:00+02"},
		// 03:00 is followed by 02:00.
		{"20:00-02:30 Europe/Berlin", "", "2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z", "10-24T20:00+02 10-25T02:30+02, 10-25T02:00+01 10-25T02:30+01"},
		{"02:30-09:00 Europe/Berlin", "", "2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z", "10-25T02:30+02 10-25T02:00+01, 10-25T02:30+01 10-25T09:00+01"},
		{"02:15-02:45 Europe/Berlin", "", "2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z", "10-25T02:15+02 10-25T02:45+02, 10-25T02:15+01 10-25T02:45+01"},
		{"20:00-03:00 Europe/Berlin", "", "2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z", "10-24T20:00+02 10-25T03:00+01"},
		{"20:00-02:00 Europe/Berlin", "", "2026-10-24T23:00:00Z", "2026-10-25T12:00:00Z", "10-24T20:00+02 10-25T02:00+02"},
		{"02:00-03:00 Europe/Berlin", "", "2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z", "10-25T02:00+02 10-25T03:00+01"},
		{"00:00-24:00 Sun Europe/Berlin", "", "2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z", "10-25T00:00+02 10-26T00:00+01"},

		// Two openings become one where the time between them is skipped, also far from the window.
		{"12:00-24:00 Sat; 00:00-02:00,03:00-24:00 Sun; 00:00-24:00 Mon-Fri Europe/Berlin", "", "2026-04-03T10:00:00Z", "2026-04-03T11:00:00Z", "03-28T12:00+01 04-04T00:00+02"},
		{"00:00-24:00 Mon-Sat; 00:00-02:00,03:00-12:00 Sun Europe/Berlin", "", "2026-03-23T00:00:00Z", "2026-03-23T01:00:00Z", "03-23T00:00+01 03-29T12:00+02"},
		{`cron "0 3 29 * *" to "0 2 29 * *" Europe/Berlin`, "", "2026-02-10T00:00:00Z", "2026-02-10T01:00:00Z", "01-29T03:00+01 04-29T02:00+02"},

		// New York: 02:00 to 03:00, and back.
		{"02:30-09:00 America/New_York", "", "2026-03-08T06:00:00Z", "2026-03-08T20:00:00Z", "03-08T03:00-04 03-08T09:00-04"},
		{"20:00-02:30 America/New_York", "", "2026-03-08T06:00:00Z", "2026-03-08T20:00:00Z", "03-07T20:00-05 03-08T03:00-04"},
		{"20:00-01:30 America/New_York", "", "2026-11-01T05:00:00Z", "2026-11-01T20:00:00Z", "10-31T20:00-04 11-01T01:30-04, 11-01T01:00-05 11-01T01:30-05"},
		{"01:30-09:00 America/New_York", "", "2026-11-01T05:00:00Z", "2026-11-01T20:00:00Z", "11-01T01:30-04 11-01T01:00-05, 11-01T01:30-05 11-01T09:00-05"},

		// Lord Howe: 02:00 to 02:30, and 02:00 back to 01:30.
		{"02:15-09:00 Australia/Lord_Howe", "", "2026-10-03T15:00:00Z", "2026-10-04T05:00:00Z", "10-04T02:30+11 10-04T09:00+11"},
		{"20:00-02:15 Australia/Lord_Howe", "", "2026-10-03T15:00:00Z", "2026-10-04T05:00:00Z", "10-03T20:00+1030 10-04T02:30+11"},
		{"20:00-01:45 Australia/Lord_Howe", "", "2026-04-04T14:00:00Z", "2026-04-05T05:00:00Z", "04-04T20:00+11 04-05T01:45+11, 04-05T01:30+1030 04-05T01:45+1030"},
		{"01:45-09:00 Australia/Lord_Howe", "", "2026-04-04T14:00:00Z", "2026-04-05T05:00:00Z", "04-05T01:45+11 04-05T01:30+1030, 04-05T01:45+1030 04-05T09:00+1030"},

		// Midnight does not exist, or the hour before it comes twice.
		{"00:00-24:00 Sun America/Sao_Paulo", "", "2018-11-04T02:00:00Z", "2018-11-04T12:00:00Z", "11-04T01:00-02 11-05T00:00-02"},
		{"22:00-00:30 Sat America/Sao_Paulo", "", "2018-11-04T02:00:00Z", "2018-11-04T12:00:00Z", "11-03T22:00-03 11-04T01:00-02"},
		{"22:00-24:00 Sat America/Sao_Paulo", "", "2018-02-18T00:00:00Z", "2018-02-18T12:00:00Z", "02-17T22:00-02 02-18T00:00-03"},

		// Friday the 30th was no day in Apia; what opens on it opens at the jump, if it runs so far.
		{"09:00-21:00 Fri Pacific/Apia", "", "2011-12-28T00:00:00Z", "2012-01-03T00:00:00Z", ""},
		{"22:00-06:00 Pacific/Apia", "", "2011-12-30T00:00:00Z", "2011-12-31T00:00:00Z", "12-29T22:00-10 12-31T06:00+14"},
		{"22:00-06:00 Fri Pacific/Apia", "", "2011-12-30T00:00:00Z", "2011-12-31T00:00:00Z", "12-31T00:00+14 12-31T06:00+14"},

		// The library's ticks would be lost in the gap, or come twice; ours are those of the clock on the wall.
		{`cron "30 2 * * *" to "0 9 * * *" Europe/Berlin`, "", "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z", "03-29T03:00+02 03-29T09:00+02"},
		{`cron "0 20 * * *" to "30 2 * * *" Europe/Berlin`, "", "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z", "03-28T20:00+01 03-29T03:00+02"},
		{`cron "0 20 * * *" to "30 2 * * *" Europe/Berlin`, "", "2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z", "10-24T20:00+02 10-25T02:30+02, 10-25T02:00+01 10-25T02:30+01"},
		{`cron "@daily" to "0 12 * * *" America/Sao_Paulo`, "", "2018-11-04T02:00:00Z", "2018-11-04T12:00:00Z", "11-04T01:00-02 11-04T12:00-02"},
		{`cron "15 2 * * *" to "0 9 * * *" Australia/Lord_Howe`, "", "2026-10-03T15:00:00Z", "2026-10-04T05:00:00Z", "10-04T02:30+11 10-04T09:00+11"},
	} {
		c.check(t)
	}
}

// Shut on a date that never was, Friday the 30th in Apia: open all the time, and cut.
func TestShutOnADateThatNeverWas(t *testing.T) {
	t.Parallel()
	from, until := instant(t, "2011-12-30T00:00:00Z"), instant(t, "2011-12-31T00:00:00Z")
	got := mustParse(t, "00:00-24:00 except 2011-12-30 Pacific/Apia").Openings(from, until, nil)
	if diff := cmp.Diff([]Opening{{from.Add(-Lookahead), until.Add(Lookahead)}}, got); diff != "" {
		t.Error(diff)
	}
}

// Where an opening is cut does not depend on what was asked before.
func TestLongOpeningsAreCut(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 3, 6, 12, 0, 0, 0, time.UTC)
	for _, text := range []string{"00:00-24:00 UTC", "00:00-12:00,12:00-00:00 except 2020-01-01 recipient", `cron "0 0 1 1 *" to "0 0 29 2 *" UTC`} {
		g := mustParse(t, text)
		at := from
		if strings.HasPrefix(text, "cron") {
			at = at.AddDate(76, 0, 0) // 2102: from January 2097 to February 2104
		}
		for _, d := range []time.Duration{0, 20 * day, 3 * time.Hour, 33 * day, day} {
			lo, hi := at.Add(d), at.Add(d+day)
			want := []Opening{{lo.Add(-Lookahead), hi.Add(Lookahead)}}
			if diff := cmp.Diff(want, g.Openings(lo, hi, time.UTC)); diff != "" {
				t.Errorf("%s %v on (-want +got):\n%s", text, d, diff)
			}
		}
	}
	if diff := cmp.Diff([]Opening{{from.Add(-Lookahead), from.Add(day + Lookahead)}}, Openings(nil, from, from.Add(day))); diff != "" {
		t.Errorf("Openings without a gate (-want +got):\n%s", diff)
	}
}

func TestOpeningsAreBounded(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 3, 6, 12, 0, 0, 0, time.UTC)
	g := mustParse(t, `cron "*/2 * * * *" to "1-59/2 * * * *" UTC`)
	got := g.Openings(from, from.Add(WindowMax), nil)
	if len(got) != OpeningsMax || !got[0].Open.Equal(from) || !got[OpeningsMax-1].Open.Equal(from.Add((OpeningsMax-1)*2*time.Minute)) {
		t.Errorf("%d openings from %v on, want %d from %v on", len(got), got[0], OpeningsMax, from)
	}
	hours := mustParse(t, "09:00-21:00 UTC")
	if got := hours.Openings(from, from.Add(10*WindowMax), nil); len(got) != int(WindowMax/day)+1 {
		t.Errorf("%d openings, want those of WindowMax, %d", len(got), WindowMax/day+1)
	}
	for _, at := range []time.Time{{}, time.Unix(math.MaxInt64-1, 0), time.Unix(math.MinInt64+1, 0), time.Unix(1<<40, 0), time.Unix(-1<<40, 0), time.Unix(1<<39, 0)} {
		for _, g := range []Gate{hours, g, mustParse(t, "00:00-24:00 Europe/Berlin")} {
			for _, d := range []time.Duration{0, 1, day, math.MaxInt64} {
				if got := g.Openings(at, at.Add(d), nil); len(got) > OpeningsMax {
					t.Errorf("%d openings at %v", len(got), at)
				}
			}
		}
	}
	if got := len(hours.Openings(time.Time{}, time.Time{}.Add(10*day), nil)); got != 10 {
		t.Errorf("%d openings in the year 1, want 10", got)
	}
}

func TestOpeningsOfSeveralGates(t *testing.T) {
	t.Parallel()
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	gates := []InZone{
		{Rule: "tenant", Gate: mustParse(t, "07:00-21:00 Mon-Sat Europe/Berlin")}, // 06:00 to 20:00 UTC
		{Rule: "phone", Gate: mustParse(t, "09:00-18:00 recipient"), In: tokyo},   // 00:00 to 09:00 UTC
	}
	at := time.Date(2026, 3, 6, 8, 0, 0, 0, time.UTC) // a Friday
	utc := func(d, h int) time.Time { return time.Date(2026, 3, d, h, 0, 0, 0, time.UTC) }
	want := []Opening{{utc(6, 6), utc(6, 9)}, {utc(7, 6), utc(7, 9)}, {utc(9, 6), utc(9, 9)}}
	if diff := cmp.Diff(want, Openings(gates, at, at.Add(3*day))); diff != "" {
		t.Errorf("Openings (-want +got):\n%s", diff)
	}
	// Whole, though one of them alone is open before and after.
	if diff := cmp.Diff(want[:1], Openings(gates, at, at.Add(time.Second))); diff != "" {
		t.Errorf("Openings of a second (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		at   time.Time
		rule string
	}{
		{utc(6, 8), ""}, {utc(6, 6), ""}, {utc(6, 9).Add(-1), ""}, {utc(6, 9), "phone"}, {utc(6, 5), "tenant"}, {utc(8, 8), "tenant"}, {utc(8, 12), "tenant"},
	} {
		if rule, closed := FirstClosed(gates, tt.at); rule != tt.rule || closed != (tt.rule != "") {
			t.Errorf("FirstClosed(%v) = %q, %v, want %q", tt.at, rule, closed, tt.rule)
		}
	}
	if rule, closed := FirstClosed(nil, at); closed {
		t.Errorf("FirstClosed without a gate = %q, %v, want none", rule, closed)
	}
	gates[1].In = nil
	if rule, closed := FirstClosed(gates, at); rule != "phone" || !closed || Openings(gates, at, at.Add(day)) != nil {
		t.Errorf("with an unknown zone FirstClosed = %q, %v, want it shut", rule, closed)
	}
}

// A schedule answers whole stretches, whatever part of them is asked for.
func TestStretchesAreWhole(t *testing.T) {
	t.Parallel()
	monday := time.Date(2026, 3, 9, 0, 0, 0, 0, time.UTC).Unix()
	const hour = 3600
	for _, tt := range []struct {
		gate     string
		from, to int64 // seconds since Monday
		want     []stretch
	}{
		{"22:00-06:00 Mon UTC", 29 * hour, 29*hour + 1, []stretch{{22 * hour, 30 * hour}}},
		{"22:00-06:00 Mon UTC", 30 * hour, 31 * hour, nil},
		{"00:00-24:00 Mon-Fri UTC", 100 * hour, 101 * hour, []stretch{{0, 120 * hour}}},
		{"00:00-24:00 Mon-Fri UTC", hour, 2 * hour, []stretch{{0, 120 * hour}}},
		{"23:59-23:58 Mon; 23:58-23:57 Tue UTC", 70 * hour, 71 * hour, []stretch{{24*hour - 60, 72*hour - 180}}},
		{"09:00-10:00 UTC", 9*hour - 1, 9 * hour, nil},
		{`cron "0 22 * * 1" to "0 6 * * 3" UTC`, 29 * hour, 29*hour + 1, []stretch{{22 * hour, 54 * hour}}},
		{`cron "0 22 * * 1" to "0 6 * * 3" UTC`, 54 * hour, 80 * hour, nil},
	} {
		var got []stretch
		for _, s := range mustParse(t, tt.gate).plan.schedule.stretches(monday+tt.from, monday+tt.to) {
			got = append(got, stretch{s.open - monday, s.close - monday})
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s from %d to %d: %v, want %v", tt.gate, tt.from, tt.to, got, tt.want)
		}
	}
}

// What is answered is the caller's, and what is remembered does not grow.
func TestKeptOpenings(t *testing.T) {
	t.Parallel()
	g := mustParse(t, "09:00-21:00 Tue-Sat recipient")
	at := time.Date(2026, 3, 6, 8, 0, 0, 0, time.UTC)
	first := g.Openings(at, at.Add(day), time.UTC)
	want := slices.Clone(first)
	first[0] = Opening{}
	if diff := cmp.Diff(want, g.Openings(at, at.Add(day), time.UTC)); diff != "" {
		t.Errorf("the second answer (-want +got):\n%s", diff)
	}
	for i := range 4000 {
		zone := time.FixedZone("same name", i%1000)
		lo := at.Add(time.Duration(i) * time.Hour)
		got := g.Openings(lo, lo.Add(3*day), zone)
		if i%100 == 0 {
			if diff := cmp.Diff(brute(g, lo, lo.Add(3*day), zone), got); diff != "" {
				t.Fatalf("%v from %v (-want +got):\n%s", zone, lo, diff)
			}
		}
	}
	k, size := &g.plan.kept, 0
	for _, w := range k.zones {
		size += len(w.all) + 1
	}
	if size != k.size || size > keptMax || len(k.zones) == 0 {
		t.Errorf("%d are remembered, counted as %d, want at most %d", size, k.size, keptMax)
	}
}

// brute are the openings as they follow from a calculation without memory.
func brute(g Gate, from, until time.Time, zone *time.Location) []Opening {
	w := windowOf(from, until)
	return w.openings(g.plan.compute(w, zone))
}

func BenchmarkOpenings(b *testing.B) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		b.Fatal(err)
	}
	at := time.Date(2026, 3, 20, 8, 0, 0, 0, time.UTC)
	for _, text := range []string{"09:00-21:00 Mon-Fri recipient", `cron "0 9 * * 1-5" to "0 21 * * *" recipient`, "00:00-24:00 except 12-25 recipient"} {
		g := mustParse(b, text)
		for _, days := range []int{10, 365} {
			b.Run(fmt.Sprintf("%s/%d days", strings.Fields(text)[0], days), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					g.Openings(at, at.Add(time.Duration(days)*day), zone)
				}
			})
		}
		b.Run(strings.Fields(text)[0]+"/10 days anew", func(b *testing.B) {
			b.ReportAllocs()
			w := windowOf(at, at.Add(10*day))
			for b.Loop() {
				g.plan.compute(w, zone)
			}
		})
	}
	gates := []InZone{{Rule: "a", Gate: mustParse(b, exampleText)}, {Rule: "b", Gate: mustParse(b, "08:00-20:00 recipient"), In: zone}}
	b.Run("FirstClosed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			FirstClosed(gates, at)
		}
	})
}
