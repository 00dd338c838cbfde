package gate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/headwayq/headway/internal/civil"
	"github.com/headwayq/headway/throttle/internal/errtext"
)

// weekHours are opening hours by weekday.
type weekHours struct {
	groups []hoursGroup
	week   [7][]stretch // from Monday; seconds of the day, sorted
	except *holidays
}

// hoursGroup are the same hours on some weekdays.
type hoursGroup struct {
	spans []stretch // in minutes of the day, sorted
	days  weekdays
}

const minutesOfDay = 24 * 60

// readHours reads the groups; nil is an end.
func (p *parser) readHours() schedule {
	h := &weekHours{except: p.except}
	spans := 0
	for {
		g := hoursGroup{days: everyDay}
		const want = "HH:MM-HH:MM, from 00:00 to 24:00, in a list without spaces"
		if len(p.words) > 0 && strings.IndexAny(p.words[0].text, "0123456789") != 0 {
			p.faults.add("hours", errtext.Quote(p.words[0].text), want)
			return nil
		}
		if !p.list("hours", want, g.add) {
			return nil
		}
		if p.atWeekdays() {
			g.days = 0
			p.list("weekday", "Mon, Tue, Wed, Thu, Fri, Sat, Sun, or from one to another such as Sat-Mon", g.days.add)
		}
		g.faults(&p.faults)
		spans += len(g.spans)
		h.groups = append(h.groups, g)
		if !p.skip(";") {
			break
		}
	}
	if spans > SpansMax {
		p.faults.add("hours", fmt.Sprintf("of %d spans", spans), fmt.Sprintf("at most %d", SpansMax))
	}
	h.index()
	return h
}

// atWeekdays says that the next word stands where weekdays do: a last word is
// the zone, unless weekdays are all that it can be.
func (p *parser) atWeekdays() bool {
	if len(p.words) == 0 || p.words[0].is(";") || p.words[0].is("except") {
		return false
	}
	if len(p.words) > 1 {
		return !strings.Contains(p.words[0].text, "/") && !p.words[0].quoted
	}
	var days weekdays
	for item := range strings.SplitSeq(p.words[0].text, ",") {
		if !days.add(item) {
			return false
		}
	}
	return true
}

// add reads HH:MM-HH:MM.
func (g *hoursGroup) add(text string) bool {
	from, to, _ := strings.Cut(text, "-")
	open, ok := minuteOfDay(from)
	if !ok || open == minutesOfDay {
		return false
	}
	till, ok := minuteOfDay(to)
	if !ok {
		return false
	}
	if till < open {
		till += minutesOfDay
	}
	g.spans = append(g.spans, stretch{open, till})
	slices.SortFunc(g.spans, byOpening)
	return true
}

func (g *hoursGroup) faults(f *faultList) {
	for i, s := range g.spans {
		if s.open == s.close {
			f.add("hours", errtext.Quote(s.clock()), "two different times; the whole day is 00:00-24:00")
		}
		if i > 0 && s == g.spans[i-1] { // 22:00-00:00,22:00-24:00
			f.add("hours", errtext.Quote(s.clock()), "it once")
		}
	}
}

func byOpening(a, b stretch) int { return int(a.open - b.open) }

func minuteOfDay(s string) (int64, bool) {
	if len(s) != len("09:00") || s[2] != ':' {
		return 0, false
	}
	for _, i := range []int{0, 1, 3, 4} {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	hour, minute := int64(s[0]-'0')*10+int64(s[1]-'0'), int64(s[3]-'0')*10+int64(s[4]-'0')
	at := hour*60 + minute
	return at, minute < 60 && at <= minutesOfDay
}

// clock is a span of minutes as it is in a text.
func (s stretch) clock() string {
	till := s.close
	if till > minutesOfDay {
		till -= minutesOfDay
	}
	return fmt.Sprintf("%02d:%02d-%02d:%02d", s.open/60, s.open%60, till/60, till%60)
}

func (h *weekHours) String() string {
	var groups []string
	for _, g := range h.groups {
		var spans []string
		for _, s := range g.spans {
			spans = append(spans, s.clock())
		}
		text := strings.Join(spans, ",")
		if g.days != everyDay {
			text += " " + g.days.String()
		}
		groups = append(groups, text)
	}
	return strings.Join(groups, "; ")
}

func (h *weekHours) index() {
	for _, g := range h.groups {
		for d := range h.week {
			if g.days&(1<<d) == 0 {
				continue
			}
			for _, s := range g.spans {
				h.week[d] = append(h.week[d], stretch{s.open * 60, s.close * 60})
			}
		}
	}
	for d := range h.week {
		slices.SortFunc(h.week[d], byOpening)
	}
}

// on are the hours that open on a date.
func (h *weekHours) on(date int64) []stretch {
	if h.except.has(date) {
		return nil
	}
	return h.week[civil.Mod(date+3, 7)] // 1970-01-01 was a Thursday
}

func (h *weekHours) stretches(lo, hi int64) []stretch {
	var out []stretch
	for date := h.start(lo); ; date++ {
		at := date * civil.DaySeconds
		if at >= hi {
			goesOn := len(out) > 0 && out[len(out)-1].close >= at
			if !goesOn || at > hi+scanReach {
				break
			}
		}
		for _, s := range h.on(date) {
			out = join(out, stretch{at + s.open, at + s.close})
		}
		if len(out) > stretchesMax {
			out = out[:stretchesMax]
			break
		}
	}
	return overlapping(out, lo, hi)
}

// start is the first date whose hours matter at lo or run on to it. Those of a
// date end before the end of the next.
func (h *weekHours) start(lo int64) int64 {
	date := (lo - civil.Mod(lo, civil.DaySeconds)) / civil.DaySeconds
	for earliest := date - scanReach/civil.DaySeconds; date > earliest; date-- {
		runsOn := slices.ContainsFunc(h.on(date-1), func(s stretch) bool { return s.close >= civil.DaySeconds })
		if !runsOn {
			break
		}
	}
	return date
}

// weekdays is a set of them, bit 0 for Monday.
type weekdays uint8

const everyDay weekdays = 1<<7 - 1

var weekdayNames = []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}

// add reads a weekday, or from one to another.
func (w *weekdays) add(text string) bool {
	from, to, ranged := strings.Cut(text, "-")
	if !ranged {
		to = from
	}
	first, last := slices.Index(weekdayNames, from), slices.Index(weekdayNames, to)
	if first < 0 || last < 0 || ranged && first == last {
		return false
	}
	for d := first; ; d = (d + 1) % 7 {
		*w |= 1 << d
		if d == last {
			return true
		}
	}
}

func (w weekdays) has(d int) bool { return w&(1<<((d+7)%7)) != 0 }

// String returns the set as a list; three in a row are from one to another.
func (w weekdays) String() string {
	if w == everyDay {
		return "Mon-Sun"
	}
	var items []string
	for d := range 7 {
		if !w.has(d) || w.has(d-1) {
			continue
		}
		last := d
		for w.has(last + 1) {
			last++
		}
		switch name := weekdayNames[last%7]; last - d {
		case 0:
			items = append(items, name)
		case 1:
			items = append(items, weekdayNames[d], name)
		default:
			items = append(items, weekdayNames[d]+"-"+name)
		}
	}
	return strings.Join(items, ",")
}
