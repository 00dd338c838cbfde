package dashboard

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

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
	byName := make(map[string]int)
	for _, policy := range s.policies {
		for _, r := range policy.Rules {
			if r.Gate.IsZero() {
				continue
			}
			n, ok := byName[r.Name]
			if !ok {
				n = len(p.Gates)
				byName[r.Name] = n
				p.Gates = append(p.Gates, week(r.Name, r.Gate, zone, p.Now))
				p.Recipient = p.Recipient || p.Gates[n].Recipient
			}
			p.Gates[n].Types = append(p.Gates[n].Types, policy.Type)
		}
	}
	slices.SortFunc(p.Gates, func(a, b gateRow) int {
		if a.Rule < b.Rule {
			return -1
		}
		return 1
	})
	p.Gates, p.Pager, err = pageOf(d, "/gates", q, "from", p.Gates)
	return p, err
}

// week draws seven days of a gate, from today on, by the clock of its zone.
func week(rule string, g gate.Gate, recipient *time.Location, now time.Time) gateRow {
	row := gateRow{Rule: rule, Text: g.String(), Zone: g.Zone(), Recipient: g.Zone() == ""}
	zone := recipient
	if !row.Recipient {
		if z, err := time.LoadLocation(g.Zone()); err == nil {
			zone = z
		}
	} else {
		row.Zone = recipient.String()
	}
	y, m, day := now.In(zone).Date()
	begin := time.Date(y, m, day, 0, 0, 0, 0, zone)
	openings := g.Openings(begin, begin.AddDate(0, 0, 8), zone)
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
		from, to := time.Date(y, m, day+n, 0, 0, 0, 0, zone), time.Date(y, m, day+n+1, 0, 0, 0, 0, zone)
		r := dayRow{Name: from.Format("Mon"), Date: from.Format("2 Jan"), Now: -1}
		if h := to.Sub(from).Hours(); h != 24 {
			r.Note = fmt.Sprintf("clocks are changed: this day has %g hours", h)
		}
		x := func(at time.Time) float64 { // by the clock of the zone, as the hours below the picture
			switch {
			case !at.After(from):
				return 0
			case !at.Before(to):
				return dayWidth
			}
			h, m, s := at.In(zone).Clock()
			return dayWidth * float64(h*3600+m*60+s) / 86_400
		}
		for _, o := range openings {
			if a, b := x(o.Open), x(o.Close); b > a {
				span := opening{X: a, W: b - a, From: "00:00", To: "24:00"} // a night is in two days
				if o.Open.After(from) {
					span.From = o.Open.In(zone).Format("15:04")
				}
				if o.Close.Before(to) {
					span.To = o.Close.In(zone).Format("15:04")
				}
				r.Spans = append(r.Spans, span)
			}
		}
		if !now.Before(from) && now.Before(to) {
			r.Now = x(now)
		}
		row.Days = append(row.Days, r)
	}
	return row
}
