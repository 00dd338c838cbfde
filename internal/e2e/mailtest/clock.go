package mailtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle/gate"
)

// Bounds of a [Clock].
const (
	ScaleMax = 1440 // a day in a minute
	stepsMax = 255  // Go reads so many changes of a zone, and no more

	// offsetMax keeps the clock near enough to UTC: gates look two days around.
	offsetMax = 44 * time.Hour
)

// Clock is a clock that runs scale times as fast as ours. Gates are by the time that the
// clock shows in a zone, and by the clock of Redis, so nothing can make it 09:00 in 12
// seconds but a zone. A Clock is a time zone, made at the start of the run, in which the
// clock is put forward each second: gates and schedules take any zone, and know nothing of
// a demonstration. Within a second it goes on as any clock does, so its times are good to
// one of our seconds.
//
// With a scale of 720 it is put forward by 11 min 59 s each second: 12 h pass in one
// of our minutes. After Until, 255 s at most, it goes on at the usual pace.
type Clock struct {
	Zone  *time.Location
	Begin time.Time // full second; what it showed there was chosen
	Opens time.Time // when the gate opens first
	Until time.Time
}

// ErrGateDaily is about a gate that the clock can't be set by.
var ErrGateDaily = errors.New("want hours that open once a day, such as 09:00-21:00")

// NewClock returns a clock that is set so that hours, which are by the
// recipient's zone, begin lead seconds after now, and not before.
func NewClock(now time.Time, hours gate.Gate, scale, lead int) (Clock, error) {
	// Of yesterday by UTC, or the day before: then it is as far ahead of it in the end.
	from, until := now.Add(-36*time.Hour), now.Add(-12*time.Hour)
	before := time.Duration(lead*scale) * time.Second
	var shut time.Time // since when it is
	for _, o := range hours.Openings(from.Add(-before), until, time.UTC) {
		show := o.Open.Add(-before)
		if !o.Open.Before(from) && !show.Before(shut) {
			return newClock(now.Truncate(time.Second), show, scale, lead), nil
		}
		shut = o.Close
	}
	return Clock{}, fmt.Errorf("%w, and are shut for %v before", ErrGateDaily, before)
}

// newClock shows at begin what UTC shows at show.
func newClock(begin, show time.Time, scale, lead int) Clock {
	offset := show.Unix() - begin.Unix()
	steps := stepsMax
	if scale > 1 {
		steps = min(steps, int((int64(offsetMax/time.Second)-offset)/int64(scale-1)))
	}
	return Clock{
		Zone:  zoneOf(begin.Unix(), offset, int64(scale-1), steps),
		Begin: begin,
		Opens: begin.Add(time.Duration(lead) * time.Second),
		Until: begin.Add(time.Duration(steps) * time.Second),
	}
}

// zoneOf is a zone that is offset seconds ahead of UTC, and from at on forward
// seconds more after each second, steps times. It is written as a file of the time
// zone database, for that is what Go can read: a header, an empty part for readers
// of 32 bits, and the header again, with the changes and what holds from each.
func zoneOf(at, offset, forward int64, steps int) *time.Location {
	const name = "DEMO"
	header := func(b []byte, changes, offsets, letters int) []byte {
		b = append(b, "TZif2"...)
		b = append(b, make([]byte, 15+3*4)...) // reserved, and three counts of 0
		for _, n := range []int{changes, offsets, letters} {
			b = binary.BigEndian.AppendUint32(b, uint32(n))
		}
		return b
	}
	b := header(nil, 0, 0, 0)
	b = header(b, steps, steps+1, len(name)+1)
	for i := range steps {
		b = binary.BigEndian.AppendUint64(b, uint64(at+int64(i)+1))
	}
	for i := range steps {
		b = append(b, byte(i+1))
	}
	for i := range steps + 1 {
		b = binary.BigEndian.AppendUint32(b, uint32(offset+int64(i)*forward))
		b = append(b, 0, 0) // no summer time; where its name begins
	}
	b = append(b, name+"\x00\n\n"...)
	zone, err := time.LoadLocationFromTZData(name, b)
	if err != nil {
		panic("mailtest: " + err.Error()) // whatever the arguments are, the form is right
	}
	return zone
}

// Show is what the clock shows at an instant.
func (c Clock) Show(at time.Time) string { return at.In(c.Zone).Format("15:04") }

// ShowFrom is what it shows at an instant, with the day when that is another than now's.
func (c Clock) ShowFrom(now, at time.Time) string {
	if now, at := now.In(c.Zone), at.In(c.Zone); now.YearDay() != at.YearDay() || now.Year() != at.Year() {
		return at.Format("Jan 2 15:04")
	}
	return c.Show(at)
}

// OpenFor is how long a gate is open while the clock runs at its scale.
func (c Clock) OpenFor(hours gate.Gate) time.Duration {
	var sum time.Duration
	for _, o := range hours.Openings(c.Begin, c.Until, c.Zone) {
		if o.Close.After(c.Until) {
			o.Close = c.Until
		}
		sum += o.Close.Sub(o.Open)
	}
	return sum
}
