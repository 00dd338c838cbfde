package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
)

func TestChart(t *testing.T) {
	t.Parallel()
	c := chart{title: "Acquires <a second>", unit: "/s", bars: []bar{{"Headway", 120_000, true}, {"one & other", 30_000, false}, {"none", 0, false}}}
	svg := c.svg()
	widths := bars(t, svg)
	if len(widths) != 3 {
		t.Fatalf("%d bars, want 3", len(widths))
	}
	if widths[0] != barRight-barLeft || widths[1] != widths[0]/4 || widths[2] != 0 {
		t.Errorf("bars are %v wide, want %v, a quarter of it, and 0", widths, barRight-barLeft)
	}
	for _, part := range []string{`class="ours"`, ">120,000<", ">30,000<", "more is better", "one &amp; other", "Acquires &lt;a second&gt;"} {
		if !strings.Contains(svg, part) {
			t.Errorf("the chart is without %q", part)
		}
	}
	c.wins = lower
	if !strings.Contains(c.svg(), "less is better") {
		t.Error("a chart of times does not say that less is better")
	}
	if got := bars(t, chart{bars: []bar{{"none", 0, true}}}.svg()); got[0] != 0 {
		t.Errorf("a bar of 0 is %v wide", got[0])
	}
}

// bars reads an SVG as XML and returns how wide its bars are.
func bars(t *testing.T, svg string) []float64 {
	t.Helper()
	var widths []float64
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return widths
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		e, ok := token.(xml.StartElement)
		if !ok || e.Name.Local != "rect" {
			continue
		}
		attrs := map[string]string{}
		for _, a := range e.Attr {
			attrs[a.Name.Local] = a.Value
		}
		if attrs["class"] == "page" {
			continue
		}
		w, err := strconv.ParseFloat(attrs["width"], 64)
		if err != nil {
			t.Fatal(err)
		}
		widths = append(widths, w)
	}
}
