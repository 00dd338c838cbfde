package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func report(t *testing.T) Report {
	t.Helper()
	var tally Tally
	tally.Sent("+12025550117", 0)
	tally.Sent("+12025550117", 60_001_500)
	tally.Sent("+447700900142", 0)
	tally.Failed()
	var late []time.Duration
	for i := range 200 {
		late = append(late, time.Duration(200-i)*time.Millisecond)
	}
	return NewReport(&tally, Totals{
		Deferred: 1, Admissions: 4, WakeChecks: 2, Late: late, Elapsed: 60_123_456 * time.Microsecond,
		Gateway: &GatewayStats{Messages: 3, Phones: 2, MinGap: new(60 * sec)},
	})
}

func TestReportFile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		report Report
		want   string
	}{
		"full": {report(t), `{
  "sent": 3,
  "phones": 2,
  "failed": 1,
  "deferred": 1,
  "admissions": 4,
  "wake_checks": 2,
  "late_p50_ms": 100,
  "late_p99_ms": 198,
  "min_gap_ms": 60001.5,
  "gateway_gap_ms": 60000,
  "breaches": 0,
  "elapsed_s": 60.123
}
`},
		"nothing sent": {NewReport(&Tally{}, Totals{}), `{
  "sent": 0,
  "phones": 0,
  "failed": 0,
  "deferred": 0,
  "admissions": 0,
  "wake_checks": 0,
  "late_p50_ms": null,
  "late_p99_ms": null,
  "min_gap_ms": null,
  "gateway_gap_ms": null,
  "breaches": 0,
  "elapsed_s": 0
}
`},
	} {
		path := filepath.Join(t.TempDir(), "report.json")
		if err := tt.report.WriteFile(path); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if err := report(t).WriteFile(filepath.Join(t.TempDir(), "no", "report.json")); err == nil {
		t.Error("WriteFile into no folder = nil, want an error")
	}
}

func TestReportPrint(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		report Report
		want   string
	}{
		"full": {report(t), `
phone     sent  smallest gap
+12…0117  2     60.001 s
+44…0142  1     -

sent            3 to 2 phones in 60.1 s
failed          1
deferred        1
admissions      4, 1.33 per message
wake checks     2
lateness        p50 100 ms, p99 198 ms
at the gateway  3, 0 of them again
smallest gap    60.001 s between grants, 60.000 s between arrivals
breaches        0 by the grants, 0 by the gateway's clock
`},
		"nothing sent": {NewReport(&Tally{}, Totals{}), `
sent          0 to 0 phones in 0.0 s
failed        0
deferred      0
admissions    0
wake checks   0
lateness      p50 -, p99 -
smallest gap  - between grants
breaches      0
`},
	} {
		var b strings.Builder
		if err := tt.report.Print(&b); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, "\n"+b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReportPrintListsForty(t *testing.T) {
	t.Parallel()
	var tally Tally
	for i := range 100 {
		tally.Sent(fmt.Sprintf("+1202555%04d", i), 0)
	}
	var b strings.Builder
	if err := NewReport(&tally, Totals{}).Print(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if !strings.HasPrefix(lines[40], "+12…0039") || lines[41] != "and 60 more" {
		t.Errorf("lines 40 and 41 = %q, %q", lines[40], lines[41])
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var late []time.Duration
	for i := range 200 {
		late = append(late, time.Duration(i+1))
	}
	for _, tt := range []struct {
		n, p int
		want time.Duration
	}{
		{200, 50, 100}, {200, 99, 198}, {200, 100, 200}, {1, 50, 1}, {1, 99, 1}, {2, 50, 1}, {2, 99, 2}, {3, 50, 2},
	} {
		if got := *percentile(slices.Clone(late[:tt.n]), tt.p); got != tt.want {
			t.Errorf("percentile(1..%d, %d) = %d, want %d", tt.n, tt.p, got, tt.want)
		}
	}
}
