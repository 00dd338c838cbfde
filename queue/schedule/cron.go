package schedule

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/headwayq/headway/internal/civil"
	"github.com/headwayq/headway/internal/cronspec"
	"github.com/headwayq/headway/queue/internal/check"
	"github.com/headwayq/headway/queue/internal/zones"
)

// Cron is when something is to be done, by the clock of a time zone. The zero
// Cron never ticks. A Cron never changes and is safe for concurrent use.
//
// Where the clock is changed, a tick is one instant or none, never two: a time
// that the clock skips is that of the first instant behind the gap, and a time
// that it shows twice is the first of the two. "30 2 * * *" in Berlin ticks at
// 03:00 on the last Sunday of March, when there is no 02:30, and at the first
// 02:30, in summer time, on the last Sunday of October. A spec whose hour has a
// star or a step follows elapsed time instead: it ticks at every instant at which
// the clock shows a time of it, so "30 * * * *" ticks once an hour on both days.
// A range of hours is a list of times: "0 0-23 * * *" is no "0 * * * *".
type Cron struct {
	text    string
	zone    *time.Location     // nil with every
	spec    *cron.SpecSchedule // in UTC: a clock that is never changed
	elapsed bool
	every   int64 // seconds, or 0
}

const cronWant = "a cron spec such as 0 9 * * 1-5, @daily or @every 90s, with or without a zone: CRON_TZ=Europe/Berlin 0 9 * * *"

// ParseCron reads a spec as of robfig/cron: minute, hour, day of month, month and
// weekday, with seconds before them or without; @hourly, @daily, @weekly,
// @monthly, @yearly; or @every and whole seconds as a Go duration, which ticks at
// the multiples of that since 1970, the same for everybody. "CRON_TZ=" or "TZ="
// and a zone may go before it, unless zone is given; with neither it is UTC.
// @every takes no zone. The error is a [*CronError].
//
// Other processes know a zone by its name only. So time.Local is refused, and so are
// names that differ per machine, such as "localtime", a zone with other offsets than the
// one of its name in the time zone database, and a time.FixedZone whose name is not in
// there. A zone of time.LoadLocationFromTZData may have a name that no database has:
// who lists its entry can't tell when that ticks next.
func ParseCron(spec string, zone *time.Location) (Cron, error) {
	fault := func(reason string) (Cron, error) { return Cron{}, &CronError{Spec: spec, Reason: reason} }
	text := strings.Join(strings.Fields(spec), " ")
	given := zone != nil
	if first, rest, _ := strings.Cut(text, " "); strings.HasPrefix(first, "TZ=") || strings.HasPrefix(first, "CRON_TZ=") {
		if given {
			return fault("two zones: one is in the spec")
		}
		_, name, _ := strings.Cut(first, "=")
		loaded, err := zones.Load(name)
		if err != nil {
			return fault("the time zone: " + err.Error())
		}
		text, zone, given = rest, loaded, true
	}
	if period, ok := strings.CutPrefix(text, "@every "); ok {
		if given {
			return fault("@every follows no clock, so it takes no zone")
		}
		return parseEvery(spec, period)
	}
	if zone == nil {
		zone = time.UTC
	}
	if reason := zoneFault(zone); reason != "" {
		return fault(reason)
	}
	parsed, err := cronspec.Parse(text, cronspec.Standard|cron.SecondOptional)
	if err != nil {
		return fault("want " + cronWant + " (" + check.Clip(err.Error()) + ")")
	}
	c := Cron{text: text, zone: zone, spec: parsed, elapsed: followsTime(text)}
	if c.nextLocal(time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return fault("a date that never comes")
	}
	return c, nil
}

// MustCron is [ParseCron] for a spec in the source code: it panics when the spec
// is malformed.
func MustCron(spec string, zone *time.Location) Cron {
	c, err := ParseCron(spec, zone)
	if err != nil {
		panic(err.Error())
	}
	return c
}

// zoneFault is why a zone can't be that of a spec, or "". Others are told a spec with the
// name of its zone. It must be the same zone for them, or none that they know.
func zoneFault(zone *time.Location) string {
	if zone == time.Local {
		return "the zone is this machine's, want one by its name"
	}
	named, err := zones.Load(zone.String())
	switch {
	case err == nil && !sameClock(zone, named):
		return "the time zone has other offsets than that of its name in the time zone database, want one of time.LoadLocation"
	case err != nil && !ownData(zone):
		return "the time zone: " + err.Error()
	}
	return ""
}

// ownData says that a zone was made by time.LoadLocationFromTZData, by a name that no
// database has.
func ownData(zone *time.Location) bool {
	name := zone.String()
	if _, err := time.LoadLocation(name); err == nil || len(strings.Fields(name)) != 1 {
		return false
	}
	s := civil.SegmentAt(zone, 0)
	return s.Start != math.MinInt64 || s.End != math.MaxInt64 // of a time.FixedZone there is one
}

// sameClock says whether two zones have the same offsets from 2026 to 2037, after which
// a database holds no more than the rule of its last year. The years are fixed: the
// answer for a zone never changes while a program runs.
func sameClock(a, b *time.Location) bool {
	if a == b {
		return true
	}
	end := time.Date(2038, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	for at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Unix(); at < end; {
		inA, inB := civil.SegmentAt(a, at), civil.SegmentAt(b, at)
		if inA.Offset != inB.Offset {
			return false
		}
		at = min(inA.End, inB.End)
	}
	return true
}

func parseEvery(spec, period string) (Cron, error) {
	d, err := time.ParseDuration(period)
	if err != nil || d < time.Second || d%time.Second != 0 {
		return Cron{}, &CronError{Spec: spec, Reason: "@every wants whole seconds, such as 90s or 12h, at least one"}
	}
	return Cron{text: "@every " + d.String(), every: int64(d / time.Second)}, nil
}

// followsTime says whether the hour of an expression has a star or a step.
func followsTime(text string) bool {
	if strings.HasPrefix(text, "@") {
		return text == "@hourly"
	}
	fields := strings.Fields(text)
	return strings.ContainsAny(fields[len(fields)-4], "*?/")
}

// String returns a text that [ParseCron] reads as the same ticks.
func (c Cron) String() string {
	if c.zone == nil {
		return c.text
	}
	return fmt.Sprintf("CRON_TZ=%s %s", c.zone, c.text)
}

// Next returns the first tick after t, in the zone of the spec, or the zero time
// when there is none.
func (c Cron) Next(t time.Time) time.Time {
	switch {
	case c.every > 0:
		s := t.Unix()
		return time.Unix(s-mod(s, c.every)+c.every, 0).UTC()
	case c.spec == nil:
		return time.Time{}
	case c.elapsed:
		return c.nextElapsed(t)
	}
	// Those times have had their tick that the clock has shown, or gone past.
	local := c.nextLocal(c.shown(t))
	if local.IsZero() {
		return local
	}
	for s := c.segment(t); ; s = c.segment(s.end) {
		at := local.Add(-s.offset).In(c.zone)
		if at.Before(s.start) {
			at = s.start // the clock skipped it
		}
		if s.holds(at) {
			return at
		}
	}
}

// nextElapsed is the first instant after t at which the clock shows a time of
// the spec.
func (c Cron) nextElapsed(t time.Time) time.Time {
	last := t.AddDate(cronYears, 0, 0)
	for s := c.segment(t); s.start.Before(last); s = c.segment(s.end) {
		if t.Before(s.start) {
			t = s.start.Add(-time.Second)
		}
		local := c.nextLocal(s.clock(t))
		if local.IsZero() {
			return local
		}
		if at := local.Add(-s.offset).In(c.zone); s.holds(at) {
			return at
		}
	}
	return time.Time{}
}

// cronYears is longer than from any time of a spec to the next: a February 29th
// comes after 8 years at the latest, in 2104.
const cronYears = 9

// nextLocal is the first time of the spec after a time, both as UTC. The library
// gives up after 5 years.
func (c Cron) nextLocal(local time.Time) time.Time {
	next := c.spec.Next(local)
	if next.IsZero() {
		next = c.spec.Next(local.AddDate(4, 0, 0))
	}
	return next
}

// shown is the latest time that the clock has shown up to t: not that of t when
// it was put back lately.
func (c Cron) shown(t time.Time) time.Time {
	const lately = 48 * time.Hour // no clock was ever put back by more than a day
	s := c.segment(t)
	latest := s.clock(t)
	for since := t.Add(-lately); s.start.After(since); {
		before := s.start.Add(-time.Second)
		s = c.segment(before)
		if shown := s.clock(before); shown.After(latest) {
			latest = shown
		}
	}
	return latest
}

// zoneSegment is a time in which a clock is not changed.
type zoneSegment struct {
	start, end time.Time // start is zero in the first one, end in the last
	offset     time.Duration
}

func (c Cron) segment(t time.Time) zoneSegment {
	in := civil.SegmentAt(c.zone, t.Unix())
	s := zoneSegment{offset: time.Duration(in.Offset) * time.Second}
	if in.Start != math.MinInt64 {
		s.start = time.Unix(in.Start, 0).In(c.zone)
	}
	if in.End != math.MaxInt64 {
		s.end = time.Unix(in.End, 0).In(c.zone)
	}
	return s
}

func (s zoneSegment) holds(t time.Time) bool { return s.end.IsZero() || t.Before(s.end) }

// clock is what the clock shows at t, as UTC and in whole seconds.
func (s zoneSegment) clock(t time.Time) time.Time {
	return t.UTC().Add(s.offset).Truncate(time.Second)
}

// Latest returns the last n ticks, or fewer, after from and up to until. It looks
// at no more than a few times as many.
func (c Cron) Latest(from, until time.Time, n int) []time.Time {
	for span := time.Duration(n) * time.Second; ; span *= 2 {
		lo := until.Add(-span)
		if !lo.After(from) {
			lo = from
		}
		ticks := c.between(lo, until)
		if len(ticks) >= n || lo.Equal(from) {
			return ticks[max(0, len(ticks)-n):]
		}
	}
}

// between are the ticks after from and up to until.
func (c Cron) between(from, until time.Time) []time.Time {
	var ticks []time.Time
	for at := c.Next(from); !at.IsZero() && !at.After(until); at = c.Next(at) {
		ticks = append(ticks, at)
	}
	return ticks
}

// mod is never negative.
func mod(a, b int64) int64 { return (a%b + b) % b }
