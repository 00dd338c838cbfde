package dashboard

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/civil"
	"github.com/headwayq/headway/throttle/gate"
)

// gatesPage is a week of opening hours.
type gatesPage struct {
	Gates     []gateRow
	Pager     pager
	Zone      string // that gates of the recipient's zone are shown in
	Recipient bool   // some gate opens by the recipient's zone
	Now       time.Time
}

type gateRow struct {
	Rule, Text, Zone string
	Types            []string
	Recipient        bool
	Open, Always     bool
	Changes          time.Time // when it closes or opens next; zero when it does not within a week
	Days             []dayRow

	gate gate.Gate
}

type dayRow struct {
	Name  string
	Date  string
	Note  string // about a change of the clock
	Spans []opening
	Now   float64 // where now is; negative for another day
}

// opening is a part of a day, in the picture and by the clock.
type opening struct {
	X, W     float64
	From, To string
}

// alwaysFrom is a length of an opening that no calendar has: the gate is always open.
const alwaysFrom = 366 * 24 * time.Hour

// dayWidth is the width of a day in the picture.
const dayWidth = 720.0

func loadGates(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	p := gatesPage{Zone: q.Get("zone"), Now: time.Now()}
	if p.Zone == "" {
		p.Zone = "UTC"
	}
	zone, err := time.LoadLocation(p.Zone)
	if err != nil || p.Zone == "Local" || len(p.Zone) > 64 {
		return nil, fmt.Errorf("%w: %q is no time zone; want a name such as Europe/Lisbon", errRequest, clip(p.Zone, 64))
	}
	byName := make(map[string]*gateRow)
	for _, policy := range s.policies {
		for _, r := range policy.Rules {
			if r.Gate.IsZero() {
				continue
			}
			if byName[r.Name] == nil {
				byName[r.Name] = &gateRow{Rule: r.Name, gate: r.Gate, Recipient: r.Gate.Zone() == ""}
			}
			row := byName[r.Name]
			row.Types = append(row.Types, policy.Type)
			p.Recipient = p.Recipient || row.Recipient
		}
	}
	rules, links, err := pageOf(d, q, list{path: "/gates", param: "from", of: "gates"}, slices.Sorted(maps.Keys(byName)))
	if err != nil {
		return nil, err
	}
	p.Pager = links
	for _, rule := range rules {
		row := *byName[rule]
		row.draw(zone, p.Now)
		p.Gates = append(p.Gates, row)
	}
	return p, nil
}

// draw draws seven days of the gate, from today on, by the clock of its zone, which is that of the
// recipient where it names none.
func (row *gateRow) draw(recipient *time.Location, now time.Time) {
	g, zone := row.gate, recipient
	row.Text, row.Zone = g.String(), recipient.String()
	if !row.Recipient {
		row.Zone = g.Zone()
		if z, err := time.LoadLocation(g.Zone()); err == nil {
			zone = z
		}
	}
	y, m, day := now.In(zone).Date()
	openings := g.Openings(dayStart(y, m, day, zone), dayStart(y, m, day+8, zone), zone)
	for _, o := range openings {
		if row.Open = !o.Open.After(now) && o.Close.After(now); row.Open {
			row.Changes, row.Always = o.Close, o.Close.Sub(o.Open) > alwaysFrom
			break
		}
		if o.Open.After(now) {
			row.Changes = o.Open
			break
		}
	}
	for n := range 7 {
		from, to := dayStart(y, m, day+n, zone), dayStart(y, m, day+n+1, zone)
		noon := time.Date(y, m, day+n, 12, 0, 0, 0, zone)
		r := dayRow{Name: noon.Format("Mon"), Date: noon.Format("2 Jan"), Now: -1}
		layout := "15:04"
		if h := to.Sub(from).Hours(); h != 24 {
			r.Note = fmt.Sprintf("clocks are changed: this day has %g hours", h)
			layout = "15:04 MST" // an hour may come twice
		}
		for _, o := range openings {
			for _, part := range parts(later(o.Open, from), earlier(o.Close, to), zone) {
				span := opening{X: dayX(part.Open), W: dayWidth * part.Close.Sub(part.Open).Hours() / 24, From: part.Open.Format(layout), To: part.Close.Format(layout)}
				if part.Close.Equal(to) { // a night is in two days
					span.To = "24:00"
				}
				r.Spans = append(r.Spans, span)
			}
		}
		if !now.Before(from) && now.Before(to) {
			r.Now = dayX(now.In(zone))
		}
		row.Days = append(row.Days, r)
	}
}

// dayStart is the first instant of a day. In some zones clocks go forward at midnight.
func dayStart(y int, m time.Month, day int, zone *time.Location) time.Time {
	at := time.Date(y, m, day, 0, 0, 0, 0, zone)
	if at.Day() != time.Date(y, m, day, 12, 0, 0, 0, zone).Day() {
		_, at = at.ZoneBounds()
	}
	return at
}

// dayX is where an instant stands in the picture of its day, by the clock of its zone.
func dayX(at time.Time) float64 {
	h, m, s := at.Clock()
	return dayWidth * float64(h*3600+m*60+s) / 86_400
}

// parts are the parts of an opening between two changes of the clock. The end of each is by the
// clock of its begin, so that it ends where the picture of it ends.
func parts(from, to time.Time, zone *time.Location) (all []gate.Opening) {
	for from.Before(to) {
		from = from.In(zone)
		end := clockChange(from, to, zone)
		all = append(all, gate.Opening{Open: from, Close: end.In(time.FixedZone(from.Zone()))})
		from = end
	}
	return all
}

// clockChange is the first instant after from at which the clock of a zone is changed, or to
// when that is not before it.
func clockChange(from, to time.Time, zone *time.Location) time.Time {
	s := civil.SegmentAt(zone, from.Unix())
	for s.End < to.Unix() {
		next := civil.SegmentAt(zone, s.End)
		if next.Offset != s.Offset {
			return time.Unix(s.End, 0)
		}
		s = next // a year ends, and no clock is changed
	}
	return to
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
