package gate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/civil"
)

// clockGate is a gate as somebody with a clock on the wall and a sheet of
// opening hours would keep it. It knows nothing of instants and zones: a time is
// what the clock shows, as if it were UTC.
type clockGate struct {
	text   string
	opens  func(shown time.Time) bool // is open
	except map[string]bool
}

func (c *clockGate) excepted(date time.Time) bool {
	return c.except[date.Format(time.DateOnly)] || c.except[date.Format("01-02")]
}

// drawExcept draws some dates around the given one.
func (c *clockGate) drawExcept(rt *rapid.T, around time.Time) string {
	c.except = make(map[string]bool)
	var dates []string
	for range rapid.IntRange(0, 3).Draw(rt, "holidays") {
		date := around.AddDate(0, 0, rapid.IntRange(-4, 4).Draw(rt, "holiday")).Format(rapid.SampledFrom([]string{time.DateOnly, "01-02"}).Draw(rt, "form"))
		if !c.except[date] {
			c.except[date] = true
			dates = append(dates, date)
		}
	}
	if len(dates) == 0 {
		return ""
	}
	return " except " + strings.Join(dates, ",")
}

// oddZones have each moved their clocks in another way.
var oddZones = []string{
	"UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "Africa/Cairo", "America/Havana", "America/St_Johns",
	"Asia/Kathmandu", "Pacific/Chatham", "Australia/Lord_Howe", "America/Caracas", "Africa/Monrovia", "Pacific/Apia",
	"Pacific/Kiritimati", "Pacific/Kwajalein", "Asia/Pyongyang", "Africa/Casablanca", "Antarctica/Vostok", "Antarctica/Casey", "Antarctica/Troll",
}

// drawHours draws a gate of hours, with times near those at which clocks are
// changed.
func drawHours(rt *rapid.T, around time.Time) *clockGate {
	type span struct {
		open, close int // minutes
		days        map[time.Weekday]bool
	}
	var spans []span
	var groups []string
	minute := rapid.OneOf(rapid.IntRange(0, 1439), rapid.SampledFrom([]int{0, 60, 90, 120, 135, 150, 180, 1380, 1439}))
	for range rapid.IntRange(1, 3).Draw(rt, "spans") {
		s := span{open: minute.Draw(rt, "open"), days: make(map[time.Weekday]bool)}
		s.close = rapid.OneOf(minute, rapid.Just(1440)).Filter(func(m int) bool { return m != s.open }).Draw(rt, "close")
		text := fmt.Sprintf("%02d:%02d-%02d:%02d", s.open/60, s.open%60, s.close/60, s.close%60)
		if s.close < s.open {
			s.close += 1440
		}
		var names []string
		for _, d := range rapid.SliceOfNDistinct(rapid.IntRange(0, 6), 1, 7, rapid.ID).Draw(rt, "days") {
			s.days[time.Weekday(d)] = true
			names = append(names, time.Weekday(d).String()[:3])
		}
		spans = append(spans, s)
		groups = append(groups, text+" "+strings.Join(names, ","))
	}
	c := &clockGate{}
	c.text = strings.Join(groups, "; ") + c.drawExcept(rt, around)
	c.opens = func(shown time.Time) bool {
		for _, back := range []int{0, 1} {
			y, m, d := shown.Date()
			date := time.Date(y, m, d-back, 0, 0, 0, 0, time.UTC)
			passed := shown.Sub(date)
			for _, s := range spans {
				if s.days[date.Weekday()] && !c.excepted(date) && passed >= time.Duration(s.open)*time.Minute && passed < time.Duration(s.close)*time.Minute {
					return true
				}
			}
		}
		return false
	}
	return c
}

// drawCron draws a gate of expressions that tick at least once a week, and goes
// through all minutes of the weeks around a time.
func drawCron(rt *rapid.T, around time.Time) *clockGate {
	field := func(name string, all ...string) string { return rapid.SampledFrom(all).Draw(rt, name) }
	expression := func(name string) string {
		return rapid.OneOf(rapid.SampledFrom([]string{"@hourly", "@daily", "@weekly"}), rapid.Custom(func(rt *rapid.T) string {
			return strings.Join([]string{
				field(name+" minute", "0", "30", "15,45", "*/20", "*", "59"), field(name+" hour", "0", "2", "1-3", "9", "*", "*/6", "23"),
				field(name+" day", "*", "*", "1,15", "*/2"), "*", field(name+" weekday", "*", "1-5", "sun", "0,3", "?"),
			}, " ")
		})).Draw(rt, name)
	}
	c := &clockGate{}
	opening, closing := expression("opening"), expression("closing")
	c.text = fmt.Sprintf("cron %q to %q", opening, closing) + c.drawExcept(rt, around)
	first := around.Truncate(24*time.Hour).AddDate(0, 0, -40)
	ticks := func(text string) func(time.Time) bool {
		s, err := cron.ParseStandard(text)
		if err != nil {
			rt.Fatal(err)
		}
		next := s.Next(first.Add(-time.Second))
		return func(at time.Time) bool { // is asked for one minute after the other
			ticks := next.Equal(at)
			if ticks {
				next = s.Next(at)
			}
			return ticks
		}
	}
	opens, closes := ticks(opening), ticks(closing)
	states := make(map[time.Time]bool)
	open := false
	for at := first; at.Before(around.AddDate(0, 0, 12)); at = at.Add(time.Minute) {
		switch shut, opened := closes(at), opens(at); {
		case shut:
			open = false
		case opened && !c.excepted(at):
			open = true
		}
		states[at] = open
	}
	c.opens = func(shown time.Time) bool { return states[shown.Truncate(time.Minute)] }
	return c
}

// At every half minute, at and off the changes of the clock, a gate is open if
// and only if the hours say so for what the clock shows.
func testOracle(t *testing.T, draw func(*rapid.T, time.Time) *clockGate) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		zone, err := time.LoadLocation(rapid.SampledFrom(oddZones).Draw(rt, "zone"))
		if err != nil {
			rt.Fatal(err)
		}
		around := time.Unix(rapid.Int64Range(2*365*civil.DaySeconds, 80*365*civil.DaySeconds).Draw(rt, "around"), 0).In(zone)
		if at, _ := around.ZoneBounds(); !at.IsZero() && at.Unix() > 3*365*civil.DaySeconds && rapid.IntRange(0, 3).Draw(rt, "at a change") > 0 {
			around = at.Add(time.Duration(rapid.IntRange(-90000, 90000).Draw(rt, "off")) * time.Second)
		}
		shownAt := func(at time.Time) time.Time {
			_, offset := at.In(zone).Zone()
			return at.Add(time.Duration(offset) * time.Second).UTC()
		}
		c := draw(rt, shownAt(around))
		g, err := Parse(c.text + " recipient")
		if err != nil {
			if strings.HasPrefix(c.text, "cron") { // such as "30 9" to "*"
				rt.Skip(err)
			}
			rt.Fatal(err)
		}
		from := around.Add(-36 * time.Hour).Truncate(time.Minute)
		until := around.Add(36 * time.Hour)
		got := g.Openings(from, until, zone)
		checkOpenings(rt, got, from, until)
		if anew := brute(g, from, until, zone); !slices.Equal(anew, got) {
			rt.Fatalf("%v in %v from %v: %v, and without memory %v", g, zone, from, got, anew)
		}
		i := 0
		for at := from; at.Before(until); at = at.Add(30 * time.Second) {
			for i < len(got) && !got[i].Close.After(at) {
				i++
			}
			open := i < len(got) && !got[i].Open.After(at)
			if want := c.opens(shownAt(at)); open != want {
				rt.Fatalf("%v in %v at %v: open %v, want %v; openings %v", g, zone, at.In(zone), open, want, got)
			}
			_, closed := FirstClosed([]InZone{{Gate: g, In: zone}}, at)
			if closed == open {
				rt.Fatalf("%v in %v at %v: FirstClosed %v, but open %v", g, zone, at.In(zone), closed, open)
			}
		}
		// The ends lie where it opens and closes, also those outside of the window.
		for _, o := range got {
			for _, end := range []struct {
				at   time.Time
				want bool
			}{{o.Open, true}, {o.Open.Add(-1), false}, {o.Close.Add(-1), true}, {o.Close, false}} {
				if end.at.Before(around.AddDate(0, 0, -8)) || end.at.After(around.AddDate(0, 0, 8)) {
					continue
				}
				if c.opens(shownAt(end.at)) != end.want {
					rt.Fatalf("%v in %v: %v is no end of an opening: at %v want open %v", g, zone, o, end.at.In(zone), end.want)
				}
			}
		}
	})
}

func TestHoursAreThoseOfTheClockOnTheWall(t *testing.T) { testOracle(t, drawHours) }

func TestCronIsThatOfTheClockOnTheWall(t *testing.T) { testOracle(t, drawCron) }

// What a window answers is part of what a larger one does, and several gates are
// open when each is.
func TestOpeningsAgree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		around := time.Unix(rapid.Int64Range(2*365*civil.DaySeconds, 80*365*civil.DaySeconds).Draw(rt, "around"), 0)
		var gates []InZone
		for i := range rapid.IntRange(1, 3).Draw(rt, "gates") {
			zone, err := time.LoadLocation(rapid.SampledFrom(oddZones).Draw(rt, "zone"))
			if err != nil {
				rt.Fatal(err)
			}
			g, err := Parse(drawHours(rt, around).text + " recipient")
			if err != nil {
				rt.Fatal(err)
			}
			gates = append(gates, InZone{Rule: fmt.Sprint(i), Gate: g, In: zone})
		}
		from, until := around, around.Add(time.Duration(rapid.Int64Range(1, 4*civil.DaySeconds).Draw(rt, "window"))*time.Second)
		got := Openings(gates, from, until)
		checkOpenings(rt, got, from, until)
		larger := Openings(gates, from.AddDate(0, -2, 0), until.AddDate(2, 0, 0))
		rest := got
		for _, o := range larger {
			if early := from.Add(-Lookahead); o.Open.Before(early) {
				o.Open = early.UTC()
			}
			if late := until.Add(Lookahead); o.Close.After(late) {
				o.Close = late.UTC()
			}
			if o.Open.Before(until) && o.Close.After(from) {
				if len(rest) == 0 || rest[0] != o {
					rt.Fatalf("%v: %v from %v to %v, but %v in a larger window", gates, got, from, until, o)
				}
				rest = rest[1:]
			}
		}
		if len(rest) > 0 {
			rt.Fatalf("%v: %v from %v to %v, but not %v in a larger window", gates, got, from, until, rest)
		}
		for at := from; at.Before(until); at = at.Add(7 * time.Minute) {
			open := false
			for _, o := range got {
				open = open || !at.Before(o.Open) && at.Before(o.Close)
			}
			if rule, closed := FirstClosed(gates, at); closed == open {
				rt.Fatalf("%v at %v: open %v, but %q is closed: %v", gates, at, open, rule, closed)
			}
		}
	})
}

// The ticks of an expression, in both directions, are the library's in a zone
// whose clock is never changed.
func TestTicksAreThoseOfCron(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"0 9 * * 1-5", "*/7 */5 * * *", "59 23 31 * *", "0 0 29 2 *", "30 2 1,15 * sun", "0 0 ? jan-mar mon", "5-10/2 3 */9 * 1",
		"0 0 */2 * 1", "* * * * *", "@weekly", "@yearly", "@hourly", "15 10 28-31/3 2,12 *",
	} {
		spec, wrong := readCronSpec(text)
		if wrong != "" {
			t.Errorf("%q: want %s", text, wrong)
			continue
		}
		c := cronTicks{spec: spec}
		at := time.Date(2027, 12, 30, 23, 58, 30, 0, time.UTC)
		for range 300 {
			next := spec.Next(at)
			if next.IsZero() { // the library looks five years ahead, and 2100 has no February 29th
				break
			}
			if got, ok := tickFrom(at.Unix()+1, at.Unix()+cronReach, c.on); !ok || got != next.Unix() {
				t.Fatalf("%q after %v: %v, want %v", text, at, time.Unix(got, 0).UTC(), next)
			}
			for _, back := range []int64{0, 59, next.Unix() - at.Unix() - 1} {
				want := next.Unix()
				if after := spec.Next(next); after.IsZero() || next.Unix()+back >= after.Unix() {
					continue
				}
				if got := tickUntil(at.Unix()-cronReach, next.Unix()+back, c.on); got != want {
					t.Fatalf("%q until %d s after %v: %v", text, back, next, time.Unix(got, 0).UTC())
				}
			}
			at = next
		}
	}
}
