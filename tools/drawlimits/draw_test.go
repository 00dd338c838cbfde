package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/throttle"
)

const ms = time.Millisecond

// noon is an instant at which a minute begins.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// around is a run of five jobs under fixed 2/1s.
func around() (picture, run) {
	return picture{"fixed", throttle.Fixed(2, time.Second), 1},
		run{began: noon, jobs: []job{{0, 0}, {900 * ms, 900 * ms}, {900 * ms, time.Second}, {900 * ms, time.Second}, {3 * time.Second, 3 * time.Second}}}
}

// elements counts what an SVG is made of, by class or else by name.
func elements(t *testing.T, svg string) map[string]int {
	t.Helper()
	count := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return count
		}
		if err != nil {
			t.Fatalf("not well-formed: %v\n%s", err, svg)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		name := start.Name.Local
		for _, a := range start.Attr {
			if a.Name.Local == "class" {
				name = a.Value
			}
		}
		count[name]++
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	p, r := around()
	svg := draw(p, r)
	got := elements(t, svg)
	want := map[string]int{
		"svg": 1, "title": 1, "desc": 1, "style": 1, "page": 1, "name": 1,
		"window": 3, "wait": 5, "arrival": 5, "grant": 5, "limit": 1, "bound": 1, "curve": 1,
		"axis": 10, // the line, and 0 s to 8 s
		"text": got["text"],
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("elements (-want +got):\n%s", diff)
	}
	for _, text := range []string{
		`<title id="title">fixed 2/1s</title>`,
		"5 jobs, longest wait 0.10 s, fullest 1 s: 3 permits",
		">n = 2</text>", ">never over 3</text>", ">0 s</text>", ">8 s</text>", "prefers-color-scheme: dark",
	} {
		if !strings.Contains(svg, text) {
			t.Errorf("the picture is without %q:\n%s", text, svg)
		}
	}
	if again := draw(around()); again != svg {
		t.Errorf("drawn twice (-first +second):\n%s", cmp.Diff(svg, again))
	}
}

// TestDrawWithoutBound: where nothing is promised beyond n there is one line.
func TestDrawWithoutBound(t *testing.T) {
	t.Parallel()
	_, r := around()
	got := elements(t, draw(picture{"leaky", throttle.Leaky(5, time.Second), 0}, r))
	if got["bound"] != 0 || got["window"] != 0 || got["limit"] != 1 {
		t.Errorf("%d bounds, %d windows, %d limits, want 0, 0, 1", got["bound"], got["window"], got["limit"])
	}
}

// TestCurve: 173 units a second, 30.5 a permit. At 1 s two permits leave the
// window as the third comes, and the curve goes down only.
func TestCurve(t *testing.T) {
	t.Parallel()
	c := &canvas{end: 4 * time.Second, top: 4}
	c.curve([]time.Duration{0, 0, time.Second}, time.Second)
	const want = `<path class="curve" d="M78.0 362.0H78.0V301.0H251.0V331.5H424.0V362.0H770.0"/>` + "\n"
	if got := c.String(); got != want {
		t.Errorf("curve = %s, want %s", got, want)
	}
}

func TestPeak(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		grants []time.Duration
		want   int
	}{
		{[]time.Duration{0}, 1},
		{[]time.Duration{0, 500 * ms, time.Second}, 2}, // half open
		{[]time.Duration{0, 500 * ms, 999 * ms}, 3},
		{[]time.Duration{999 * ms, 500 * ms, 0}, 3},
		{[]time.Duration{0, 900 * ms, 950 * ms, 1800 * ms, 5 * time.Second}, 3},
	} {
		var r run
		for _, at := range tc.grants {
			r.jobs = append(r.jobs, job{grant: at})
		}
		if got := r.peak(time.Second); got != tc.want {
			t.Errorf("peak(%v) = %d, want %d", tc.grants, got, tc.want)
		}
	}
}

func TestWindows(t *testing.T) {
	t.Parallel()
	fixed, r := around()
	want := []span{{0, time.Second}, {time.Second, 2 * time.Second}, {3 * time.Second, 4 * time.Second}}
	if got := fixed.windows(r); !cmp.Equal(got, want, cmp.AllowUnexported(span{})) {
		t.Errorf("windows of fixed = %v, want %v", got, want)
	}
	minute := picture{"calendar", throttle.Calendar(3, throttle.Minute, "UTC"), 3}
	r.began = noon.Add(-2 * time.Second)
	want = []span{{-58 * time.Second, 2 * time.Second}, {2 * time.Second, 62 * time.Second}}
	if got := minute.windows(r); !cmp.Equal(got, want, cmp.AllowUnexported(span{})) {
		t.Errorf("windows of calendar = %v, want %v", got, want)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	p, r := around()
	if err := r.check(p); err != nil {
		t.Errorf("check = %v, want nil", err)
	}
	p.over = 0
	if err := r.check(p); err == nil || !strings.Contains(err.Error(), "3 permits in 1s, want at most 2") {
		t.Errorf("check of a run over its bound = %v", err)
	}
	early := run{jobs: []job{{arrival: time.Second, grant: 999 * ms}}}
	if err := early.check(p); err == nil {
		t.Error("check of a grant before its job came = nil, want an error")
	}
}

// TestDelay: the edge of a minute falls three seconds into the calendar's run.
func TestDelay(t *testing.T) {
	t.Parallel()
	minute := picture{"calendar", throttle.Calendar(12, throttle.Minute, "UTC"), 12}
	for _, tc := range []struct{ after, want time.Duration }{
		{0, 57 * time.Second}, {57 * time.Second, 0}, {57*time.Second + ms, 60*time.Second - ms}, {59 * time.Second, 58 * time.Second},
	} {
		if got := minute.delay(noon.Add(tc.after)); got != tc.want {
			t.Errorf("delay %v after the minute = %v, want %v", tc.after, got, tc.want)
		}
	}
	if got := pictures[0].delay(noon); got != 0 {
		t.Errorf("delay of %s = %v, want 0", pictures[0].name, got)
	}
}
