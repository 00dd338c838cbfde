package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones of the tests do not depend on the machine

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func zoneOf(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// The examples of docs/schedules.md and of [Cron].
var cronExamples = []struct {
	spec  string
	from  string // a local time at which the clock shows it once
	ticks []string
}{
	// Berlin: 2026-03-29 02:00 -> 03:00, 2026-10-25 03:00 -> 02:00
	{"CRON_TZ=Europe/Berlin 30 2 * * *", "2026-03-28 00:00", []string{"28 02:30 CET", "29 03:00 CEST", "30 02:30 CEST"}},
	{"CRON_TZ=Europe/Berlin 30 2 * * *", "2026-10-24 00:00", []string{"24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET"}},
	{"CRON_TZ=Europe/Berlin 30 * * * *", "2026-03-29 01:00", []string{"29 01:30 CET", "29 03:30 CEST"}},
	{"CRON_TZ=Europe/Berlin 30 * * * *", "2026-10-25 01:00", []string{"25 01:30 CEST", "25 02:30 CEST", "25 02:30 CET", "25 03:30 CET"}},
	{"CRON_TZ=Europe/Berlin */20 2 * * *", "2026-03-29 00:00", []string{"29 03:00 CEST", "30 02:00 CEST"}},
	{"CRON_TZ=Europe/Berlin */20 2 * * *", "2026-10-25 00:00", []string{"25 02:00 CEST", "25 02:20 CEST", "25 02:40 CEST", "26 02:00 CET"}},
	{"CRON_TZ=Europe/Berlin 0 2,3 * * *", "2026-03-29 00:00", []string{"29 03:00 CEST", "30 02:00 CEST"}},
	{"CRON_TZ=Europe/Berlin 0 */2 * * *", "2026-03-29 00:00", []string{"29 04:00 CEST", "29 06:00 CEST"}},
	{"CRON_TZ=Europe/Berlin 0 */2 * * *", "2026-10-25 00:00", []string{"25 02:00 CEST", "25 02:00 CET", "25 04:00 CET"}},
	{"CRON_TZ=Europe/Berlin 0 0-5 * * *", "2026-10-25 01:30", []string{"25 02:00 CEST", "25 03:00 CET"}},
	{"CRON_TZ=Europe/Berlin @hourly", "2026-10-25 01:30", []string{"25 02:00 CEST", "25 02:00 CET"}},
	{"CRON_TZ=Europe/Berlin 15 30 2 * * *", "2026-10-25 00:00", []string{"25 02:30 CEST", "26 02:30 CET"}},
	// New York: 2026-03-08 02:00 -> 03:00, 2026-11-01 02:00 -> 01:00
	{"TZ=America/New_York 30 2 * * *", "2026-03-07 12:00", []string{"08 03:00 EDT", "09 02:30 EDT"}},
	{"TZ=America/New_York 30 1 * * *", "2026-10-31 12:00", []string{"01 01:30 EDT", "02 01:30 EST"}},
	{"TZ=America/New_York 15 * * * *", "2026-11-01 00:30", []string{"01 01:15 EDT", "01 01:15 EST", "01 02:15 EST"}},
	// Lord Howe: 2026-04-05 02:00 -> 01:30, 2026-10-04 02:00 -> 02:30
	{"TZ=Australia/Lord_Howe 15 2 * * *", "2026-10-03 12:00", []string{"04 02:30 +11", "05 02:15 +11"}},
	{"TZ=Australia/Lord_Howe 45 1 * * *", "2026-04-04 12:00", []string{"05 01:45 +11", "06 01:45 +1030"}},
	{"TZ=Australia/Lord_Howe 45 * * * *", "2026-04-05 01:00", []string{"05 01:45 +11", "05 01:45 +1030", "05 02:45 +1030"}},
	// midnight does not exist, or comes twice
	{"TZ=America/Sao_Paulo @daily", "2018-11-03 12:00", []string{"04 01:00 -02", "05 00:00 -02"}},
	{"TZ=America/Havana @daily", "2026-10-31 12:00", []string{"01 00:00 CDT", "02 00:00 CST"}},
	// a whole day does not exist
	{"TZ=Pacific/Apia 0 9 * * *", "2011-12-29 00:00", []string{"29 09:00 -10", "31 00:00 +14", "31 09:00 +14"}},
	// what robfig/cron gives up on
	{"0 0 29 2 *", "2096-02-28 00:00", []string{"29 00:00 UTC", "29 00:00 UTC"}},
}

func TestCronWhereTheClockIsChanged(t *testing.T) {
	t.Parallel()
	for _, tt := range cronExamples {
		c, err := ParseCron(tt.spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.ParseInLocation("2006-01-02 15:04", tt.from, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range tt.ticks {
			at = c.Next(at)
			got = append(got, at.Format("02 15:04 MST"))
		}
		if diff := cmp.Diff(tt.ticks, got); diff != "" {
			t.Errorf("ticks of %q after %s, - want + got:\n%s", tt.spec, tt.from, diff)
		}
	}
}

// ruleZone is a zone that follows the rule of Europe/Berlin, as the slim files of the time zone database have
// it for all years to come: a header, an empty part for readers of 32 bits, and the header
// again, with one offset and the rule.
func ruleZone(t *testing.T, name string) *time.Location {
	t.Helper()
	const rule, letters = "CET-1CEST,M3.5.0,M10.5.0/3", "CET\x00"
	header := append([]byte("TZif2"), make([]byte, 15+6*4)...) // all counts are 0
	data := append(slices.Clone(header), header...)
	data[len(data)-5], data[len(data)-1] = 1, byte(len(letters))
	data = append(data, 0, 0, 0x0e, 0x10, 0, 0) // an hour from UTC, no summer time, where its letters begin
	data = append(data, letters+"\n"+rule+"\n"...)
	zone, err := time.LoadLocationFromTZData(name, data)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// Go's time package ends each year of a zone that follows a rule after 365 days. On the
// last day of a leap year, whoever goes from one change of the clock to the next would go
// in circles.
func TestCronOnTheLastDayOfALeapYear(t *testing.T) {
	t.Parallel()
	berlin := ruleZone(t, "Europe/Berlin")
	for _, tt := range []struct {
		spec, from string
		ticks      []string
	}{
		{"@yearly", "2028-12-30 12:00", []string{"2029-01-01 00:00", "2030-01-01 00:00"}},
		{"@yearly", "2028-12-31 12:00", []string{"2029-01-01 00:00"}},
		{"@monthly", "2028-11-30 12:00", []string{"2028-12-01 00:00", "2029-01-01 00:00", "2029-02-01 00:00"}},
		{"0 9 * * *", "2028-12-30 08:00", []string{"2028-12-30 09:00", "2028-12-31 09:00", "2029-01-01 09:00"}},
		{"0 0,1,2 * * *", "2028-12-30 23:30", []string{"2028-12-31 00:00", "2028-12-31 01:00", "2028-12-31 02:00", "2029-01-01 00:00", "2029-01-01 01:00"}},
		{"@hourly", "2028-12-30 23:30", []string{"2028-12-31 00:00", "2028-12-31 01:00", "2028-12-31 02:00"}},
		{"0 * * * *", "2028-12-31 22:30", []string{"2028-12-31 23:00", "2029-01-01 00:00", "2029-01-01 01:00", "2029-01-01 02:00"}},
		{"0 * 31 12 *", "2028-12-31 22:30", []string{"2028-12-31 23:00", "2029-12-31 00:00"}},
		{"0 9 29 2 *", "2028-02-28 12:00", []string{"2028-02-29 09:00", "2032-02-29 09:00"}},
		{"0 */12 29 2 *", "2028-02-29 12:00", []string{"2032-02-29 00:00"}},
		{"30 2 25 3 *", "2028-12-31 12:00", []string{"2029-03-25 03:00"}}, // the clock skips 02:30
	} {
		at, err := time.ParseInLocation("2006-01-02 15:04", tt.from, berlin)
		if err != nil {
			t.Fatal(err)
		}
		found := make(chan []string, 1)
		go func() {
			c := MustCron(tt.spec, berlin)
			var got []string
			for range tt.ticks {
				at = c.Next(at)
				got = append(got, at.Format("2006-01-02 15:04"))
			}
			found <- got
		}()
		select {
		case got := <-found:
			if diff := cmp.Diff(tt.ticks, got); diff != "" {
				t.Errorf("ticks of %q after %s, - want + got:\n%s", tt.spec, tt.from, diff)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("ticks of %q after %s: none within 20 s", tt.spec, tt.from)
		}
	}
}

func TestCronEvery(t *testing.T) {
	t.Parallel()
	c := MustCron("@every 90m", nil)
	// whoever asks, and when: a multiple of 90 minutes since 1970
	for _, from := range []string{"2026-03-29T00:00:00Z", "2026-03-29T00:00:00.5Z", "2026-03-29T01:29:59.999Z"} {
		at, err := time.Parse(time.RFC3339, from)
		if err != nil {
			t.Fatal(err)
		}
		want(t, c.Next(at).Format(time.RFC3339), "2026-03-29T01:30:00Z")
	}
	before := time.Unix(-1, 0)
	want(t, c.Next(before).Unix(), int64(0))
	want(t, (Cron{}).Next(before).IsZero(), true)
}

func TestParseCron(t *testing.T) {
	t.Parallel()
	berlin := zoneOf(t, "Europe/Berlin")
	for _, tt := range []struct {
		spec string
		zone *time.Location
		want string // text, or part of the fault
		ok   bool
	}{
		{"0 9 * * 1-5", nil, "CRON_TZ=UTC 0 9 * * 1-5", true},
		{"  0   9 * * 1-5", berlin, "CRON_TZ=Europe/Berlin 0 9 * * 1-5", true},
		{"TZ=Europe/Berlin @daily", nil, "CRON_TZ=Europe/Berlin @daily", true},
		{"CRON_TZ=Europe/Berlin  5 0 9 * * *", nil, "CRON_TZ=Europe/Berlin 5 0 9 * * *", true},
		{"@every 90s", nil, "@every 1m30s", true},
		{"", nil, "want a cron spec", false},
		{"TZ=Europe/Berlin", nil, "want a cron spec", false},
		{"TZ=Europe/Berlin 0 9 * * *", berlin, "two zones", false},
		{"TZ=Mars/Phobos 0 9 * * *", nil, "the time zone: want a name", false},
		{"TZ= 0 9 * * *", nil, "the time zone: want a name", false},
		{"TZ=Local 0 9 * * *", nil, "differs per machine", false},
		{"TZ=localtime 0 9 * * *", nil, "differs per machine", false},
		{"TZ=posixrules 0 9 * * *", nil, "differs per machine", false},
		{"TZ=posix/Europe/Berlin 0 9 * * *", nil, "only some machines", false},
		{"TZ=right/Europe/Berlin 0 9 * * *", nil, "leap seconds", false},
		{"0 9 * * *", time.Local, "this machine's", false},
		{"0 9 * * *", time.FixedZone("Etc/GMT-1", 3600), "CRON_TZ=Etc/GMT-1 0 9 * * *", true},
		{"0 9 * * *", time.FixedZone("UTC", 0), "CRON_TZ=UTC 0 9 * * *", true},
		{"0 9 * * *", time.FixedZone("CET", 3600), "other offsets", false}, // the zone of that name has summer time
		{"0 9 * * *", time.FixedZone("UTC", 3600), "other offsets", false},
		{"0 9 * * *", time.FixedZone("UTC+1", 3600), "the time zone: want a name", false},
		{"0 9 * * *", time.FixedZone("", 3600), "the time zone: want a name", false},
		{"0 9 * * *", ruleZone(t, "Europe/Berlin"), "CRON_TZ=Europe/Berlin 0 9 * * *", true},
		{"0 9 * * *", ruleZone(t, "Europe/London"), "other offsets", false},
		{"0 9 * * *", ruleZone(t, "Our/Own"), "CRON_TZ=Our/Own 0 9 * * *", true},
		{"0 9 * * *", ruleZone(t, "Our Own"), "the time zone: want a name", false},
		{"TZ=UTC TZ=UTC 0 9 * * *", nil, "want a cron spec", false},
		{"@every 90s", berlin, "follows no clock", false},
		{"TZ=UTC @every 90s", nil, "follows no clock", false},
		{"@every 1500ms", nil, "whole seconds", false},
		{"@every 0s", nil, "whole seconds", false},
		{"@every -5s", nil, "whole seconds", false},
		{"@every", nil, "want a cron spec", false},
		{"@sometimes", nil, "want a cron spec", false},
		{"60 9 * * *", nil, "want a cron spec", false},
		{"0 9 * * 1,,2", nil, "want a cron spec", false},
		{"1 2 3 4 5 6 7", nil, "want a cron spec", false},
		{"0 0 30 2 *", nil, "never comes", false},
	} {
		c, err := ParseCron(tt.spec, tt.zone)
		switch {
		case tt.ok && (err != nil || c.String() != tt.want):
			t.Errorf("ParseCron(%q) = %q, %v, want %q", tt.spec, c, err, tt.want)
		case !tt.ok && (!errors.Is(err, ErrInvalidCron) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("ParseCron(%q) = %q, %v, want a fault with %q", tt.spec, c, err, tt.want)
		}
	}
	if got := fmt.Sprint(panicOf(func() { MustCron("x", nil) })); !strings.HasPrefix(got, `schedule: cron spec "x": `) {
		t.Errorf("MustCron panics with %q", got)
	}
}

// cronModel is a cron that walks minute by minute.
type cronModel struct {
	minutes, hours, days, months, weekdays map[int]bool
	anyDay                                 bool // both a day and a weekday count
	elapsed                                bool
}

func (m cronModel) matches(w time.Time) bool {
	day, weekday := m.days[w.Day()], m.weekdays[int(w.Weekday())]
	fits := day && weekday || m.anyDay && (day || weekday)
	return m.minutes[w.Minute()] && m.hours[w.Hour()] && m.months[int(w.Month())] && fits
}

// ticks are those from the minute after lo to hi. It begins days before, to know
// what the clock had shown.
func (m cronModel) ticks(lo, hi time.Time) []time.Time {
	wall := func(at time.Time) time.Time { // as UTC, so that they compare
		return time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), 0, 0, time.UTC)
	}
	var out []time.Time
	at := lo.AddDate(0, 0, -3)
	shown := wall(at)
	for at = at.Add(time.Minute); !at.After(hi); at = at.Add(time.Minute) {
		w := wall(at)
		tick := m.elapsed && m.matches(w)
		for !m.elapsed && shown.Before(w) {
			shown = shown.Add(time.Minute)
			tick = tick || m.matches(shown)
		}
		if tick && at.After(lo) {
			out = append(out, at)
		}
	}
	return out
}

// drawField draws a field of a spec and the values that it stands for.
func drawField(t *rapid.T, name string, lo, hi int) (text string, values map[int]bool, star, step bool) {
	values = make(map[int]bool)
	add := func(from, to, by int) {
		for i := from; i <= to; i += by {
			values[i] = true
		}
	}
	var items []string
	for range rapid.IntRange(1, 2).Draw(t, name+" items") {
		a := rapid.IntRange(lo, hi).Draw(t, name)
		b := rapid.IntRange(a, hi).Draw(t, name+" to")
		by := rapid.IntRange(2, 7).Draw(t, name+" by")
		switch rapid.IntRange(0, 5).Draw(t, name+" kind") {
		case 0, 1:
			items = append(items, fmt.Sprint(a))
			add(a, a, 1)
		case 2:
			items = append(items, fmt.Sprintf("%d-%d", a, b))
			add(a, b, 1)
		case 3:
			items = append(items, "*")
			add(lo, hi, 1)
			star = true
		case 4:
			items = append(items, fmt.Sprintf("*/%d", by))
			add(lo, hi, by)
			step = true
		default:
			items = append(items, fmt.Sprintf("%d-%d/%d", a, b, by))
			add(a, b, by)
			step = true
		}
	}
	return strings.Join(items, ","), values, star, step
}

// Around each change of a clock in two years, and in zones of all kinds, the
// ticks are those of a cron that walks minute by minute.
func TestCronEqualsTheModel(t *testing.T) {
	t.Parallel()
	zones := []string{
		"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Cairo",
		"Pacific/Apia", "Antarctica/Troll", "Europe/Dublin", "Africa/Casablanca", "America/St_Johns", "Asia/Kolkata",
	}
	rapid.Check(t, func(t *rapid.T) {
		zone, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		m := cronModel{}
		var text [5]string
		var star, step bool
		text[0], m.minutes, _, _ = drawField(t, "minute", 0, 59)
		text[1], m.hours, star, step = drawField(t, "hour", 0, 23)
		m.elapsed = star || step
		text[2], text[3], text[4] = "*", "*", "*"
		m.days, m.months, m.weekdays = all(1, 31), all(1, 12), all(0, 6)
		if rapid.Bool().Draw(t, "by date") {
			var days, weekdays bool
			text[2], m.days, days, _ = drawField(t, "day", 1, 31)
			text[4], m.weekdays, weekdays, _ = drawField(t, "weekday", 0, 6)
			m.anyDay = !days && !weekdays
		}
		c, err := ParseCron(strings.Join(text[:], " "), zone)
		if err != nil {
			t.Skip(err) // a date that never comes
		}
		start := time.Date(rapid.SampledFrom([]int{2011, 2018, 2026}).Draw(t, "year"), 1, 1, 12, 0, 0, 0, zone)
		at := start.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "day of year")) * 24 * time.Hour)
		if _, end := at.ZoneBounds(); !end.IsZero() && rapid.Bool().Draw(t, "at a change") {
			at = end
		}
		lo := at.Add(-26 * time.Hour).Add(time.Duration(rapid.IntRange(0, 52*60).Draw(t, "minute")) * time.Minute).Truncate(time.Minute)
		hi := lo.Add(60 * time.Hour)
		var got []time.Time
		for at := c.Next(lo); !at.IsZero() && !at.After(hi); at = c.Next(at) {
			got = append(got, at)
		}
		want := m.ticks(lo, hi)
		if !cmp.Equal(got, want) {
			t.Fatalf("ticks of %v after %v = %v, want %v", c, lo, got, want)
		}
		n := rapid.IntRange(1, 100).Draw(t, "n")
		if last := want[max(0, len(want)-n):]; !cmp.Equal(c.Latest(lo, hi, n), last) && len(last) > 0 {
			t.Fatalf("the latest %d ticks of %v up to %v = %v, want %v", n, c, hi, c.Latest(lo, hi, n), last)
		}
	})
}

func all(lo, hi int) map[int]bool {
	values := make(map[int]bool)
	for i := lo; i <= hi; i++ {
		values[i] = true
	}
	return values
}

// Ticks grow, each is a tick however it is approached, and a text reads back.
func FuzzCron(f *testing.F) {
	for _, e := range cronExamples {
		f.Add(e.spec, int64(1_774_700_000), uint32(5))
	}
	f.Add("@every 7s", int64(-3), uint32(999_999_999))
	f.Fuzz(func(t *testing.T, spec string, from int64, ns uint32) {
		c, err := ParseCron(spec, nil)
		if err != nil {
			return
		}
		const century = 100 * 366 * 24 * 3600
		at := time.Unix(from%century, int64(ns%1e9))
		first := c.Next(at)
		if again, err := ParseCron(c.String(), nil); err != nil || !again.Next(at).Equal(first) {
			t.Fatalf("%q prints as %q, which ticks at %v, %v; want %v", spec, c, again.Next(at), err, first)
		}
		if first.IsZero() {
			return
		}
		if !first.After(at) || first.Nanosecond() != 0 {
			t.Fatalf("Next(%v) of %v = %v", at, c, first)
		}
		if got := c.Next(first.Add(-1)); !got.Equal(first) {
			t.Fatalf("Next just before %v of %v = %v", first, c, got)
		}
	})
}
