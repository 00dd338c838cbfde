package main

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestNumber(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		x    float64
		want string
	}{
		{0, "0"},
		{1, "1"},
		{1.234, "1.23"},
		{12.34, "12.3"},
		{123.4, "123"},
		{999.6, "1,000"},
		{1234.5, "1,234"},
		{100_000, "100,000"},
		{1_234_567.8, "1,234,568"},
		{-1234, "-1,234"},
		{-123, "-123"},
		{math.NaN(), "-"},
		{math.Inf(1), "-"},
	} {
		if got := number(c.x); got != c.want {
			t.Errorf("number(%v) = %q, want %q", c.x, got, c.want)
		}
	}
}

func TestRatio(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r    row
		want string
	}{
		{row{Ratio: 2}, ""},
		{row{Rival: "other", Ratio: 2, Low: 1.5, High: 2.25}, "2.00 (1.50 to 2.25)"},
		{row{Rival: "other", Ratio: 2, Low: 2.001, High: 2.004}, "2.00"},
		{row{Rival: "other", Ratio: 2, Low: 2, High: 2.1}, "2.00 (2.00 to 2.10)"},
	} {
		if got := c.r.ratio(); got != c.want {
			t.Errorf("ratio of %+v = %q, want %q", c.r, got, c.want)
		}
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	r := against("acquires", "/s", higher, "other", []float64{150_000}, []float64{60_000}).holding("≥ 2.5 x", true)
	if got, want := r.line(), "acquires: 150,000 /s, other 60,000, ratio 2.50, target ≥ 2.5 x: yes"; got != want {
		t.Errorf("line = %q, want %q", got, want)
	}
	if got, want := alone("a key", "bytes", lower, []float64{104}).line(), "a key: 104 bytes"; got != want {
		t.Errorf("line = %q, want %q", got, want)
	}
}

func TestPrintTable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := sample(&out)
	out.Reset()
	b.printTable()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "what") {
		t.Fatalf("table =\n%s\nwant a head and two rows", out.String())
	}
	for _, cell := range []string{"acquires", "100 /s", "other", "50 /s", "2.00", "≥ 2.5 x", "no"} {
		if !strings.Contains(lines[1], cell) {
			t.Errorf("row %q is without %q", lines[1], cell)
		}
	}
}

func TestInfoField(t *testing.T) {
	t.Parallel()
	info := "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"
	if got := infoField(info, "redis_version"); got != "7.0.15" {
		t.Errorf("redis_version = %q", got)
	}
	if got := infoField(info, "version"); got != "" {
		t.Errorf("version = %q, want none", got)
	}
}

func TestCommandStats(t *testing.T) {
	t.Parallel()
	const info = "# Commandstats\r\n" +
		"cmdstat_get:calls=2,usec=11,usec_per_call=5.50,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_config|resetstat:calls=1,usec=90,usec_per_call=90.00,rejected_calls=0,failed_calls=0\r\n"
	got, err := parseCommandStats(info)
	if err != nil || len(got) != 2 || got["get"] != (commandStat{2, 11}) || got["config|resetstat"] != (commandStat{1, 90}) {
		t.Errorf("parseCommandStats = %v, %v", got, err)
	}
	for _, bad := range []string{"cmdstat_get:calls=2\r\n", "cmdstat_get:calls=two,usec=1\r\n", "cmdstat_get\r\n"} {
		if got, err := parseCommandStats(bad); err == nil {
			t.Errorf("parseCommandStats(%q) = %v, want an error", bad, got)
		}
	}
}

// sample is a bench that has run.
func sample(out *bytes.Buffer) *bench {
	b := &bench{rounds: 5, out: out, redis: "7.0.15", parts: []*part{{name: "acquire", title: "Acquires a second"}}}
	b.row(against("acquires", "/s", higher, "other", []float64{100}, []float64{50}).holding("≥ 2.5 x", false))
	b.row(alone("a | key", "bytes", lower, []float64{104}))
	b.say("%s", strings.Repeat(fmt.Sprintf("Word %d. ", 1), 40))
	b.draw(chart{file: "acquire-hot", title: "Acquires a second", unit: "/s", bars: []bar{{"Headway", 100, true}, {"other", 50, false}}})
	return b
}
