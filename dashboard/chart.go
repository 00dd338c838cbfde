package dashboard

import (
	"fmt"
	"time"

	"github.com/headwayq/headway/inspect"
)

// chart are bars, in the units of its picture.
type chart struct {
	Bars   []bar
	Ticks  []tick // below the bars
	Max    int
	Sum    int
	Empty  bool
	Points []point // of a timeline
	Now    float64
}

type bar struct {
	X, Y, W, H float64
	N          int
	Minute     int // or the tasks that were granted
	Percent    int // of a limit that was used
	From, To   time.Time
}

type tick struct {
	X    float64
	Text string
	End  bool // it stands at the right edge
}

const (
	chartWidth  = 720.0
	chartHeight = 120.0
)

// barsOf draws the planned starts of the next minutes.
func barsOf(minutes []int, now time.Time) chart {
	c := chart{}
	for _, n := range minutes {
		c.Max = max(c.Max, n)
		c.Sum += n
	}
	c.Empty = c.Sum == 0
	step := chartWidth / float64(len(minutes))
	for i, n := range minutes {
		h := 0.0
		if n > 0 {
			h = max(2, chartHeight*float64(n)/float64(c.Max))
		}
		c.Bars = append(c.Bars, bar{
			X: float64(i)*step + 1, Y: chartHeight - h, W: step - 2, H: h, N: n, Minute: i,
			From: now.Add(time.Duration(i) * time.Minute), To: now.Add(time.Duration(i+1) * time.Minute),
		})
	}
	for i := 0; i <= len(minutes); i += 15 {
		text := fmt.Sprintf("+%d min", i)
		if i == 0 {
			text = "now"
		}
		c.Ticks = append(c.Ticks, tick{X: float64(i) * step, Text: text, End: i == len(minutes)})
	}
	return c
}

// dayBars is how many bars a day has: each is a quarter of an hour.
const dayBars = 96

// dayOf draws how much of a limit its busiest key used, and what was held up, over a day.
func dayOf(h inspect.History) chart {
	c := chart{Empty: true}
	if len(h.Points) == 0 {
		return c
	}
	per := max(1, (len(h.Points)+dayBars-1)/dayBars)
	step := chartWidth / float64(dayBars)
	for from := 0; from < len(h.Points); from += per {
		var used float64
		n, granted := 0, 0
		for _, p := range h.Points[from:min(len(h.Points), from+per)] {
			used = max(used, p.Used)
			n += int(p.Deferred)
			granted += int(p.Granted)
		}
		height := 0.0
		if granted+n > 0 {
			c.Empty = false
			height = max(2, chartHeight*min(1, used))
		}
		c.Sum += n
		c.Bars = append(c.Bars, bar{
			X: float64(from/per)*step + .5, Y: chartHeight - height, W: step - 1, H: height, N: n, Minute: granted,
			From: h.Points[from].At, Percent: int(100*used + .5),
		})
	}
	for i := 0; i <= 24; i += 6 {
		text := fmt.Sprintf("−%d h", 24-i)
		if i == 24 {
			text = "now"
		}
		c.Ticks = append(c.Ticks, tick{X: chartWidth * float64(i) / 24, Text: text, End: i == 24})
	}
	return c
}

// point is one instant on a timeline.
type point struct {
	X     float64
	Spent bool // it was granted; else it is planned
	Late  bool
	Label string
	At    time.Time
}

// timeline draws what was spent on a key and what is planned on it.
func timeline(spent []inspect.Spent, line []inspect.WaitingTask, now time.Time, concurrent bool) chart {
	c := chart{Empty: len(spent)+len(line) == 0}
	if c.Empty {
		return c
	}
	from, to := now, now
	widen := func(at time.Time) {
		if at.Before(from) {
			from = at
		}
		if at.After(to) {
			to = at
		}
	}
	for _, s := range spent {
		widen(s.At)
	}
	for _, w := range line {
		if !w.Parked {
			widen(w.At)
		}
	}
	length := max(to.Sub(from), time.Second)
	x := func(at time.Time) float64 {
		return 8 + (chartWidth-16)*float64(max(0, at.Sub(from)))/float64(length)
	}
	c.Now = x(now)
	for _, s := range spent {
		label := plural(s.Permits, "permit") + " spent"
		if concurrent {
			label = "a lease ends"
		}
		c.Points = append(c.Points, point{X: x(s.At), Spent: true, Label: label, At: s.At})
	}
	for _, w := range line {
		p := point{X: x(w.At), Label: safeIn(w.ID, 60), At: w.At}
		if w.Parked {
			p.X, p.Late = c.Now, true
		}
		c.Points = append(c.Points, p)
	}
	c.Ticks = []tick{{X: 8, Text: relative(from, now)}, {X: chartWidth - 8, Text: relative(to, now), End: true}}
	return c
}
