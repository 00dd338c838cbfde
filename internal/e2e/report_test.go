package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
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

// faulty is the same with a gateway that was told to fail.
func faulty(t *testing.T) Report {
	t.Helper()
	var tally Tally
	tally.Sent("+12025550117", 0)
	return NewReport(&tally, Totals{
		Admissions: 5, Elapsed: sec, Postponed: 7, LeasesLost: 9,
		Faults: Faults{TooMany: 50_000, After: 2 * sec, Timeout: 5000, Seed: 7},
		Gateway: &GatewayStats{
			Messages: 5, Duplicates: 4, Phones: 1, MostAtOnce: 6, MinGap: new(60 * sec),
			Faults: &FaultStats{TooMany: 1, EarlyAfter429: 2, UnderWay429: 1, Unavailable: 3, TimedOut: 4},
		},
	})
}

// underPolicy is the same under a policy from a file.
func underPolicy(t *testing.T) Report {
	t.Helper()
	p, err := ReadPolicy("../../examples/sms-sender/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	gateway := &GatewayStats{Messages: 1, Phones: 1, MostAtOnce: 51, Breaches: 2, BrokenBy: map[string]int{"phone-day": 2}}
	grants := []Grant{
		{GrantedUs: 1, Charges: []Charge{{Rule: "phone-minute", Key: "k", Cost: 1}, {Rule: "provider-slots", Key: "p", Cost: 1}}},
		{GrantedUs: 2, Charges: []Charge{{Rule: "phone-minute", Key: "k", Cost: 1}, {Rule: "provider-slots", Key: "p", Cost: 1}}},
	}
	rules := JudgeRules(p, grants, gateway, []worker.RuleStats{{Rule: "phone-minute", Bound: 4, Waits: 4, Waited: 90 * sec}, {Rule: "unheard-of", Bound: 1}})
	var tally Tally
	tally.Sent("+12025550117", 0)
	return NewReport(&tally, Totals{Elapsed: sec, Rules: rules, Breaches: 1, Postponed: 3, LeasesLost: 2, Gateway: gateway})
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
		"faults": {faulty(t), `{
  "sent": 1,
  "phones": 1,
  "failed": 0,
  "deferred": 0,
  "admissions": 5,
  "wake_checks": 0,
  "late_p50_ms": null,
  "late_p99_ms": null,
  "min_gap_ms": null,
  "gateway_gap_ms": 60000,
  "breaches": 0,
  "elapsed_s": 1,
  "postponed": 7,
  "gateway_faults": {
    "spec": "429=5%,after=2s,timeout=0.5%,seed=7",
    "too_many": 1,
    "early_after_429": 2,
    "under_way_429": 1,
    "unavailable": 3,
    "timed_out": 4,
    "most_at_once": 6
  }
}
`},
		"rules": {underPolicy(t), `{
  "sent": 1,
  "phones": 1,
  "failed": 0,
  "deferred": 0,
  "admissions": 0,
  "wake_checks": 0,
  "late_p50_ms": null,
  "late_p99_ms": null,
  "min_gap_ms": null,
  "gateway_gap_ms": null,
  "breaches": 1,
  "elapsed_s": 1,
  "rules": [
    {
      "rule": "daytime",
      "is": "gate 08:00-21:00 recipient",
      "bound": 0,
      "waited_s": 0,
      "waited_mean_s": null,
      "breaches": 0,
      "gateway_breaches": null,
      "at_once_most": null
    },
    {
      "rule": "phone-minute",
      "is": "sliding 1/1m",
      "bound": 4,
      "waited_s": 90,
      "waited_mean_s": 22.5,
      "breaches": 1,
      "gateway_breaches": 0,
      "at_once_most": null
    },
    {
      "rule": "phone-day",
      "is": "sliding 10/1d",
      "bound": 0,
      "waited_s": 0,
      "waited_mean_s": null,
      "breaches": 0,
      "gateway_breaches": 2,
      "at_once_most": null
    },
    {
      "rule": "provider-second",
      "is": "gcra 100/1s burst 20",
      "bound": 0,
      "waited_s": 0,
      "waited_mean_s": null,
      "breaches": 0,
      "gateway_breaches": null,
      "at_once_most": null
    },
    {
      "rule": "provider-slots",
      "is": "concurrent 50 lease 30s",
      "bound": 0,
      "waited_s": 0,
      "waited_mean_s": null,
      "breaches": null,
      "gateway_breaches": null,
      "at_once_most": 51
    }
  ],
  "postponed": 3,
  "leases_lost": 2
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
		"faults": {faulty(t), `
phone     sent  smallest gap
+12…0117  1     -

sent             1 to 1 phones in 1.0 s
failed           0
deferred         0
postponed        7 by the provider
admissions       5, 5.00 per message
wake checks      0
lateness         p50 -, p99 -
at the gateway   5, 4 of them again
most at once     6
faults           1 × 429, 3 × 503, 4 without an answer
early after 429  2, 1 were under way
smallest gap     - between grants, 60.000 s between arrivals
breaches         0 by the grants, 0 by the gateway's clock
`},
		"rules": {underPolicy(t), `
phone     sent  smallest gap
+12…0117  1     -

rule             limit or gate            bound  waited  each    broken
daytime          08:00-21:00 recipient    0      0.0 s   -       0
phone-minute     sliding 1/1m             4      90.0 s  22.5 s  1
phone-day        sliding 10/1d            0      0.0 s   -       0, 2 at the gateway
provider-second  gcra 100/1s burst 20     0      0.0 s   -       0
provider-slots   concurrent 50 lease 30s  0      0.0 s   -       51 at once

sent            1 to 1 phones in 1.0 s
failed          0
deferred        0
postponed       3 by the provider
leases lost     2
admissions      0, 0.00 per message
wake checks     0
lateness        p50 -, p99 -
at the gateway  1, 0 of them again
most at once    51
smallest gap    - between grants, - between arrivals
breaches        1 by the grants, 2 by the gateway's clock
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

// A rule on how many run at once is judged at the gateway.
func TestJudgeAtOnce(t *testing.T) {
	t.Parallel()
	p := Policy{PerRule: true}
	p.Rules = []queue.Rule{{Name: "slots", Limit: throttle.Concurrent(2, 30*time.Second)}}
	grant := func(key string) Grant {
		return Grant{Charges: []Charge{{Rule: "slots", Key: key, Cost: 1}}}
	}
	for _, tt := range []struct {
		name    string
		grants  []Grant
		gateway *GatewayStats
		verdict string
		errors  int
	}{
		{"as many as it allows", []Grant{grant("a"), grant("a")}, &GatewayStats{MostAtOnce: 2}, "0", 0},
		{"one more", []Grant{grant("a"), grant("a")}, &GatewayStats{MostAtOnce: 3}, "3 at once", 1},
		{"one more, which had no answer", []Grant{grant("a")}, &GatewayStats{MostAtOnce: 3, Faults: &FaultStats{TimedOut: 1}}, "0", 0},
		{"two keys", []Grant{grant("a"), grant("b")}, &GatewayStats{MostAtOnce: 3}, "not judged", 0},
		{"another gateway", []Grant{grant("a")}, nil, "not judged", 0},
		{"early", nil, &GatewayStats{Faults: &FaultStats{EarlyAfter429: 1}}, "0", 1},
	} {
		rules := JudgeRules(p, tt.grants, tt.gateway, nil)
		if got := rules[0].verdict(); got != tt.verdict {
			t.Errorf("%s: verdict %q, want %q", tt.name, got, tt.verdict)
		}
		if errs := Broken(p, rules, tt.gateway); len(errs) != tt.errors {
			t.Errorf("%s: errors %v, want %d", tt.name, errs, tt.errors)
		}
	}
}
