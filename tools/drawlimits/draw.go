package main

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"
)

// Places in a picture, in its own units.
const (
	width, height = 800.0, 400.0
	left, right   = 78.0, 770.0

	arrivalsY = 112.0 // where arrivals pile up from
	grantsY   = 160.0 // where grants pile down from
	curveTop  = 240.0
	curveY    = 362.0
	step      = 7.0 // between two marks of a pile
)

// style follows the reader's mode. The background is painted, so that a page
// of the other mode does not make the text unreadable. No variables: not every
// viewer of SVG knows them.
const style = `<style>
text { font: 13px system-ui, sans-serif; fill: #656d76 }
.name { font-size: 17px; font-weight: 600; fill: #1f2328 }
.page { fill: #ffffff }
.axis { stroke: #656d76 }
.window { fill: #0969da; fill-opacity: .1; stroke: #0969da; stroke-width: .5 }
.wait { stroke: #afb8c1 }
.arrival { stroke: #1f2328; stroke-width: 2 }
.grant { fill: #0969da }
.curve { fill: none; stroke: #0969da; stroke-width: 2 }
.limit { stroke: #1a7f37; stroke-width: 1.5 }
.bound { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 6 4 }
@media (prefers-color-scheme: dark) {
text { fill: #9198a1 }
.name { fill: #e6edf3 }
.page { fill: #0d1117 }
.axis { stroke: #9198a1 }
.window { fill: #4493f8; stroke: #4493f8 }
.wait { stroke: #484f58 }
.arrival { stroke: #e6edf3 }
.grant { fill: #4493f8 }
.curve { stroke: #4493f8 }
.limit { stroke: #3fb950 }
.bound { stroke: #f85149 }
}
</style>
`

// canvas is a picture while it is drawn.
type canvas struct {
	strings.Builder
	end time.Duration // of the time axis
	top int           // of the curve's axis, in permits
}

// draw makes the SVG of a run; the same run gives the same text.
func draw(p picture, r run) string {
	c := &canvas{end: r.end(), top: max(p.bound(), r.peak(p.limit.Window())) + 1}
	about := r.summary(p.limit.Window())
	c.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="100%%" role="img" aria-labelledby="title desc">`, width, height)
	c.add(`<title id="title">%s</title>`, escape(p.limit.String()))
	c.add(`<desc id="desc">%s. Above: when each job came, and below it when it was let in. Bottom: the permits of the last %s, and the limit, %d.</desc>`,
		about, seconds(p.limit.Window()), p.limit.Permits())
	c.WriteString(style)
	c.add(`<rect class="page" width="%.0f" height="%.0f"/>`, width, height)
	c.windows(p.windows(r))
	c.add(`<text class="name" x="12" y="24">%s</text>`, escape(p.limit.String()))
	c.add(`<text x="%.0f" y="24" text-anchor="end">%s</text>`, right, about)
	c.axes(p)
	c.jobs(r)
	c.curve(r.grants(), p.limit.Window())
	c.add(`</svg>`)
	return c.String()
}

// end is where a run's time axis ends: a second after all is over, and the same
// for all that do not take longer.
func (r run) end() time.Duration {
	const half, usual = time.Second / 2, 8500 * time.Millisecond
	grants := r.grants()
	return max(usual, (grants[len(grants)-1] + time.Second + half - 1).Truncate(half))
}

func (c *canvas) add(format string, args ...any) {
	fmt.Fprintf(c, format, args...)
	c.WriteByte('\n')
}

func (c *canvas) x(at time.Duration) float64 {
	return left + (right-left)*at.Seconds()/c.end.Seconds()
}

func (c *canvas) y(permits int) float64 {
	return curveY - (curveY-curveTop)*float64(permits)/float64(c.top)
}

// windows shades what the limit counts by. An edge outside is not drawn.
func (c *canvas) windows(all []span) {
	for _, w := range all {
		from, to := c.x(max(w.from, 0)), c.x(min(w.to, c.end))
		c.add(`<rect class="window" x="%.1f" y="40" width="%.1f" height="%.0f"/>`, from, to-from, curveY-40)
	}
}

func (c *canvas) axes(p picture) {
	c.add(`<text x="12" y="%.0f">jobs</text><text x="12" y="%.0f">let in</text>`, arrivalsY, grantsY+5)
	c.add(`<text x="12" y="%.0f">in the</text><text x="12" y="%.0f">last %s</text>`, curveTop+12, curveTop+28, seconds(p.limit.Window()))
	c.level("limit", p.limit.Permits(), "n = ")
	if p.over > 0 {
		c.level("bound", p.bound(), "never over ")
	}
	c.add(`<path class="axis" d="M%.1f %.1fH%.1f"/>`, left, curveY, right)
	for at := time.Duration(0); at <= c.end; at += time.Second {
		x := c.x(at)
		c.add(`<path class="axis" d="M%.1f %.1fv5"/><text x="%.1f" y="%.0f" text-anchor="middle">%s</text>`, x, curveY, x, curveY+20, seconds(at))
	}
}

// level is a line at so many permits, with its name at the right end.
func (c *canvas) level(class string, permits int, name string) {
	y := c.y(permits)
	c.add(`<path class="%s" d="M%.1f %.1fH%.1f"/><text x="%.1f" y="%.1f" text-anchor="end">%s%d</text>`, class, left, y, right, right, y-4, name, permits)
}

// jobs draws when each came and went. Marks of the same moment make a pile.
func (c *canvas) jobs(r run) {
	var came, went pile
	var marks strings.Builder
	for _, j := range r.jobs {
		x1, x2 := c.x(j.arrival), c.x(j.grant)
		y1, y2 := arrivalsY-step*came.put(x1), grantsY+step*went.put(x2)
		c.add(`<path class="wait" d="M%.1f %.1fL%.1f %.1f"/>`, x1, y1, x2, y2)
		fmt.Fprintf(&marks, `<path class="arrival" d="M%.1f %.1fv-5"/><circle class="grant" cx="%.1f" cy="%.1f" r="3"/>`+"\n", x1, y1, x2, y2)
	}
	c.WriteString(marks.String()) // over the lines
}

// pile is where the marks of each height end.
type pile []float64

// put finds the lowest height at which x is free.
func (p *pile) put(x float64) float64 {
	for i, last := range *p {
		if x-last >= step {
			(*p)[i] = x
			return float64(i)
		}
	}
	*p = append(*p, x)
	return float64(len(*p) - 1)
}

// curve is how many permits went in the window that ends at each moment. Steps
// that are nearer to each other than the line is wide are one.
func (c *canvas) curve(grants []time.Duration, window time.Duration) {
	const wide = 2.0
	fmt.Fprintf(c, `<path class="curve" d="M%.1f %.1f`, left, c.y(0))
	// An end comes before a grant of the same instant: windows are half open.
	for from, to := 0, 0; from < len(grants); {
		x := c.x(nextStep(grants, window, from, to))
		for from < len(grants) {
			at := nextStep(grants, window, from, to)
			if c.x(at)-x > wide {
				break
			}
			if at == grants[from]+window {
				from++
			} else {
				to++
			}
		}
		if x > right {
			break
		}
		fmt.Fprintf(c, "H%.1fV%.1f", x, c.y(to-from))
	}
	c.add(`H%.1f"/>`, right)
}

// nextStep is when the window loses its oldest permit, or gets another.
func nextStep(grants []time.Duration, window time.Duration, from, to int) time.Duration {
	at := grants[from] + window
	if to < len(grants) {
		at = min(at, grants[to])
	}
	return at
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
