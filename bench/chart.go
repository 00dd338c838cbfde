package main

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// chart is a picture of bars, all in one unit.
type chart struct {
	file        string // without .svg, once in the whole document
	title, unit string
	wins        better
	bars        []bar
}

// bar is one contender. Ours is painted in another colour.
type bar struct {
	label string
	value float64
	ours  bool
}

// Places in a chart, in its own units.
const (
	chartWidth = 800.0
	barLeft    = 230.0
	barRight   = 660.0 // of the longest; its figure stands behind it
	barTop     = 64.0
	barStep    = 30.0
	barHeight  = 20.0
)

// chartStyle follows the reader's mode, as in the pictures of the algorithms.
// The background is painted, so that a page of the other mode does not make the
// text unreadable.
const chartStyle = `<style>
text { font: 13px system-ui, sans-serif; fill: #656d76 }
.name { font-size: 17px; font-weight: 600; fill: #1f2328 }
.page { fill: #ffffff }
.axis { stroke: #656d76 }
.ours { fill: #0969da }
.theirs { fill: #afb8c1 }
@media (prefers-color-scheme: dark) {
text { fill: #9198a1 }
.name { fill: #e6edf3 }
.page { fill: #0d1117 }
.axis { stroke: #9198a1 }
.ours { fill: #4493f8 }
.theirs { fill: #484f58 }
}
</style>
`

// svg draws the chart. Bars start at 0.
func (c chart) svg() string {
	longest := 0.0
	for _, b := range c.bars {
		longest = max(longest, b.value)
	}
	height := barTop + barStep*float64(len(c.bars)) + 10
	hint := "more is better"
	if c.wins == lower {
		hint = "less is better"
	}
	var s strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="100%%" role="img" aria-labelledby="title">`, chartWidth, height)
	add(`<title id="title">%s</title>`, escape(c.title))
	s.WriteString(chartStyle)
	add(`<rect class="page" width="%.0f" height="%.0f"/>`, chartWidth, height)
	add(`<text class="name" x="12" y="26">%s</text>`, escape(c.title))
	add(`<text x="12" y="47">%s, %s</text>`, escape(c.unit), hint)
	for i, b := range c.bars {
		y, class, length := barTop+barStep*float64(i), "theirs", 0.0
		if b.ours {
			class = "ours"
		}
		if longest > 0 {
			length = (barRight - barLeft) * max(b.value, 0) / longest
		}
		add(`<text x="%.0f" y="%.0f" text-anchor="end">%s</text>`, barLeft-10, y+15, escape(b.label))
		add(`<rect class="%s" x="%.0f" y="%.0f" width="%.1f" height="%.0f"/>`, class, barLeft, y, length, barHeight)
		add(`<text x="%.1f" y="%.0f">%s</text>`, barLeft+length+8, y+15, number(b.value))
	}
	add(`<path class="axis" d="M%.0f %.0fV%.0f"/>`, barLeft, barTop-5, height-8)
	add(`</svg>`)
	return s.String()
}

func escape(text string) string {
	var s strings.Builder
	_ = xml.EscapeText(&s, []byte(text)) // a Builder takes everything
	return s.String()
}
