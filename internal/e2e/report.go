package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// phonesShown is how many phones the summary lists.
const phonesShown = 40

// Totals is what the summary needs beside the [Tally].
type Totals struct {
	Deferred   int64
	Admissions int64           // calls of Redis to admit a message, granted or not
	WakeChecks int64           // looks at whether a deferred message is due
	Late       []time.Duration // a sample per send: start of the handler minus the instant it was due
	Breaches   int             // by the granted instants, see Breaches
	Rules      []RuleReport    // with -policy
	Postponed  int64           // times that a Retry-After put a message off
	LeasesLost int64           // leases that ended before their send
	Gateway    *GatewayStats   // nil if the gateway is not ours
	Faults     Faults          // what the gateway was told to do wrong
	Elapsed    time.Duration
}

// Report is a run in numbers: the file that -report writes, with these fields. What
// has no value is null: a lateness without a send, a gap when no phone got two
// messages or the gateway is not ours. Not there at all are gateway_faults without
// -gateway-faults, postponed without that and -policy, rules and leases_lost without
// -policy.
type Report struct {
	Sent         int      `json:"sent"`
	Phones       int      `json:"phones"` // that got at least one message
	Failed       int      `json:"failed"` // for good
	Deferred     int64    `json:"deferred"`
	Admissions   int64    `json:"admissions"`
	WakeChecks   int64    `json:"wake_checks"`
	LateP50Ms    *float64 `json:"late_p50_ms"`
	LateP99Ms    *float64 `json:"late_p99_ms"`
	MinGapMs     *float64 `json:"min_gap_ms"`     // between granted instants
	GatewayGapMs *float64 `json:"gateway_gap_ms"` // between arrivals at the gateway
	Breaches     int      `json:"breaches"`
	ElapsedS     float64  `json:"elapsed_s"`

	Rules         []RuleReport `json:"rules,omitempty"` // in the order of the policy
	Postponed     *int64       `json:"postponed,omitempty"`
	LeasesLost    *int64       `json:"leases_lost,omitempty"`
	GatewayFaults *FaultReport `json:"gateway_faults,omitempty"`

	perPhone []PhoneTally
	minGap   *time.Duration
	gateway  *GatewayStats
}

// FaultReport is what the embedded gateway did wrong because it was told to.
type FaultReport struct {
	Spec          string `json:"spec"`            // as -gateway-faults takes it, with the seed
	TooMany       int    `json:"too_many"`        // see FaultStats
	EarlyAfter429 int    `json:"early_after_429"` // not among too_many
	UnderWay429   int    `json:"under_way_429"`   // nor these, which were granted before the sender could know
	Unavailable   int    `json:"unavailable"`
	TimedOut      int    `json:"timed_out"`
	MostAtOnce    int    `json:"most_at_once"` // messages at the gateway at one instant
}

// SumUp judges the grants of a run, and returns its report and what it broke. Stats are
// those of the pool. Totals need no more than the lateness, the gateway, the faults and the
// time it took.
func SumUp(p Policy, t *Tally, grants []Grant, stats worker.Stats, totals Totals) (Report, []error) {
	totals.Deferred, totals.Admissions, totals.WakeChecks = stats.Deferred, stats.Admissions, stats.WakeChecks
	totals.Postponed, totals.LeasesLost = stats.Postponed, stats.LeasesLost
	rules := JudgeRules(p, grants, totals.Gateway, stats.Rules)
	for _, r := range rules {
		if r.Breaches != nil {
			totals.Breaches += *r.Breaches
		}
	}
	if p.PerRule {
		totals.Rules = rules
	}
	return NewReport(t, totals), Broken(p, rules, totals.Gateway)
}

// NewReport sums up a run that was judged.
func NewReport(t *Tally, totals Totals) Report {
	r := Report{
		Deferred:   totals.Deferred,
		Admissions: totals.Admissions,
		WakeChecks: totals.WakeChecks,
		Breaches:   totals.Breaches,
		ElapsedS:   totals.Elapsed.Round(time.Millisecond).Seconds(),
		perPhone:   t.Phones(),
		gateway:    totals.Gateway,
	}
	r.Sent, r.Failed = t.Counts()
	r.Phones = len(r.perPhone)
	late := slices.Sorted(slices.Values(totals.Late))
	r.LateP50Ms, r.LateP99Ms = millis(percentile(late, 50)), millis(percentile(late, 99))
	var least *time.Duration
	for _, p := range r.perPhone {
		if compareGaps(p.MinGap, least) < 0 {
			least = p.MinGap
		}
	}
	r.minGap, r.MinGapMs = least, millis(least)
	if len(totals.Rules) > 0 {
		r.Rules, r.LeasesLost = totals.Rules, &totals.LeasesLost
	}
	if len(totals.Rules) > 0 || totals.Faults != (Faults{}) {
		r.Postponed = &totals.Postponed
	}
	if r.gateway != nil {
		r.GatewayGapMs = millis(r.gateway.MinGap)
		r.GatewayFaults = newFaultReport(totals.Faults, *r.gateway)
	}
	return r
}

func newFaultReport(f Faults, g GatewayStats) *FaultReport {
	if g.Faults == nil {
		return nil
	}
	return &FaultReport{
		Spec:    f.String(),
		TooMany: g.Faults.TooMany, EarlyAfter429: g.Faults.EarlyAfter429, UnderWay429: g.Faults.UnderWay429,
		Unavailable: g.Faults.Unavailable, TimedOut: g.Faults.TimedOut,
		MostAtOnce: g.MostAtOnce,
	}
}

// WriteFile writes r as JSON.
func (r Report) WriteFile(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Print writes the summary for people: up to 40 phones, then the totals.
func (r Report) Print(w io.Writer) error {
	var b strings.Builder
	if len(r.perPhone) > 0 {
		b.WriteString("phone\tsent\tsmallest gap\n")
	}
	for i, p := range r.perPhone {
		if i == phonesShown {
			fmt.Fprintf(&b, "and %d more\n", len(r.perPhone)-i)
			break
		}
		fmt.Fprintf(&b, "%s\t%d\t%s\n", p.Phone, p.Sent, gap(p.MinGap))
	}
	// A line without a cell ends the columns: the totals have their own.
	if len(r.perPhone) > 0 {
		b.WriteString("\n")
	}
	if len(r.Rules) > 0 {
		printRules(&b, r.Rules)
		b.WriteString("\n")
	}
	r.printTotals(&b)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err := io.WriteString(tw, b.String())
	if err = errors.Join(err, tw.Flush()); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (r Report) printTotals(b *strings.Builder) {
	fmt.Fprintf(b, "sent\t%d to %d phones in %.1f s\n", r.Sent, r.Phones, r.ElapsedS)
	fmt.Fprintf(b, "failed\t%d\n", r.Failed)
	fmt.Fprintf(b, "deferred\t%d\n", r.Deferred)
	if r.Postponed != nil {
		fmt.Fprintf(b, "postponed\t%d by the provider\n", *r.Postponed)
	}
	if r.LeasesLost != nil {
		fmt.Fprintf(b, "leases lost\t%d\n", *r.LeasesLost)
	}
	fmt.Fprintf(b, "admissions\t%d%s\n", r.Admissions, r.perMessage())
	fmt.Fprintf(b, "wake checks\t%d\n", r.WakeChecks)
	fmt.Fprintf(b, "lateness\tp50 %s, p99 %s\n", ms(r.LateP50Ms), ms(r.LateP99Ms))
	g := r.gateway
	if g == nil {
		fmt.Fprintf(b, "smallest gap\t%s between grants\n", gap(r.minGap))
		fmt.Fprintf(b, "breaches\t%d\n", r.Breaches)
		return
	}
	fmt.Fprintf(b, "at the gateway\t%d, %d of them again\n", g.Messages, g.Duplicates)
	if r.GatewayFaults != nil || len(r.Rules) > 0 {
		fmt.Fprintf(b, "most at once\t%d\n", g.MostAtOnce)
	}
	if f := r.GatewayFaults; f != nil {
		fmt.Fprintf(b, "faults\t%d × 429, %d × 503, %d without an answer\n", f.TooMany, f.Unavailable, f.TimedOut)
		fmt.Fprintf(b, "early after 429\t%d, %d were under way\n", f.EarlyAfter429, f.UnderWay429)
	}
	fmt.Fprintf(b, "smallest gap\t%s between grants, %s between arrivals\n", gap(r.minGap), gap(g.MinGap))
	fmt.Fprintf(b, "breaches\t%d by the grants, %d by the gateway's clock\n", r.Breaches, g.Breaches)
}

func (r Report) perMessage() string {
	if r.Sent == 0 {
		return ""
	}
	return fmt.Sprintf(", %.2f per message", float64(r.Admissions)/float64(r.Sent))
}

// percentile returns the smallest value of sorted that at least p percent do not
// exceed (nearest rank): of 200 values p99 is the 198th.
func percentile(sorted []time.Duration, p int) *time.Duration {
	if len(sorted) == 0 {
		return nil
	}
	rank := (len(sorted)*p + 99) / 100
	return &sorted[max(rank, 1)-1]
}

// millis returns d in ms to the microsecond, which is what Redis counts in.
func millis(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	return new(float64(d.Microseconds()) / 1000)
}

func ms(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'f', -1, 64) + " ms"
}

// gap cuts to whole milliseconds: 59.9999 s must not look like a minute.
func gap(d *time.Duration) string {
	if d == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f s", d.Truncate(time.Millisecond).Seconds())
}

// RuleReport is what a rule of the policy did in a run.
type RuleReport struct {
	Rule            string   `json:"rule"`
	Is              string   `json:"is"`               // its limit or gate
	Bound           int64    `json:"bound"`            // times that it made a message wait
	WaitedS         float64  `json:"waited_s"`         // for it, all messages together
	WaitedMeanS     *float64 `json:"waited_mean_s"`    // of the waits that are over; null if there were none
	Breaches        *int     `json:"breaches"`         // by the granted instants; null if these do not tell
	GatewayBreaches *int     `json:"gateway_breaches"` // by the gateway's clock; null if that does not tell
	AtOnceMost      *int     `json:"at_once_most"`     // at the gateway, of a rule that limits that; null if it does not tell

	tooMany bool // at once
}

// JudgeRules holds a run against each rule of the policy. gateway is nil if it is not ours.
//
// How many ran at once is judged at the gateway, if all messages had one key under the
// rule. A message that gets no answer stays there a moment longer than its sender
// waits, so each of those may be one more.
func JudgeRules(p Policy, grants []Grant, gateway *GatewayStats, waits []worker.RuleStats) []RuleReport {
	reports := make([]RuleReport, 0, len(p.Rules))
	for _, r := range p.Rules {
		report := RuleReport{Rule: r.Name, Is: RuleText(r)}
		for _, w := range waits {
			if w.Rule == r.Name && w.Bound > 0 {
				report.Bound, report.WaitedS = w.Bound, seconds(w.Waited)
				report.WaitedMeanS = new(seconds(w.Waited / time.Duration(max(1, w.Waits))))
			}
		}
		if Judged(r) {
			report.Breaches = new(Breaches(grants, r))
		}
		if gateway != nil && AtGateway(r) {
			report.GatewayBreaches = new(gateway.BrokenBy[r.Name])
		}
		if gateway != nil && r.Limit.IsConcurrent() && oneKey(grants, r.Name) {
			most := r.Limit.Permits()
			if gateway.Faults != nil {
				most += gateway.Faults.TimedOut
			}
			report.AtOnceMost, report.tooMany = &gateway.MostAtOnce, gateway.MostAtOnce > most
		}
		reports = append(reports, report)
	}
	return reports
}

// oneKey says whether all grants have one key under a rule.
func oneKey(grants []Grant, rule string) bool {
	keys := map[string]bool{}
	for _, g := range grants {
		if c, ok := ChargeOf(g.Charges, rule, g.Key); ok {
			keys[c.Key] = true
		}
	}
	return len(keys) <= 1
}

// RuleText is the text of a rule's limit or gate.
func RuleText(r queue.Rule) string {
	if IsGate(r) {
		return "gate " + r.Gate.String()
	}
	return r.Limit.String()
}

// seconds are to the millisecond.
func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// printRules writes the table of the rules.
func printRules(b *strings.Builder, rules []RuleReport) {
	b.WriteString("rule\tlimit or gate\tbound\twaited\teach\tbroken\n")
	for _, r := range rules {
		mean := "-"
		if r.WaitedMeanS != nil {
			mean = fmt.Sprintf("%.1f s", *r.WaitedMeanS)
		}
		fmt.Fprintf(b, "%s\t%s\t%d\t%.1f s\t%s\t%s\n", r.Rule, strings.TrimPrefix(r.Is, "gate "), r.Bound, r.WaitedS, mean, r.verdict())
	}
}

// verdict says how often the rule was broken, or that nothing here can tell.
func (r RuleReport) verdict() string {
	switch {
	case r.AtOnceMost != nil && r.tooMany:
		return strconv.Itoa(*r.AtOnceMost) + " at once"
	case r.AtOnceMost != nil:
		return "0"
	case r.Breaches == nil:
		return "not judged"
	case r.GatewayBreaches != nil && *r.GatewayBreaches > *r.Breaches:
		return fmt.Sprintf("%d, %d at the gateway", *r.Breaches, *r.GatewayBreaches)
	}
	return strconv.Itoa(*r.Breaches)
}

// Broken is what went wrong by the judges of a run.
func Broken(p Policy, rules []RuleReport, gateway *GatewayStats) []error {
	var errs []error
	for _, r := range rules {
		what := "the limit"
		if p.PerRule {
			what = fmt.Sprintf("rule %q", r.Rule)
		}
		if n := r.Breaches; n != nil && *n > 0 {
			errs = append(errs, fmt.Errorf("%s was broken: %s by the granted instants", what, Count(*n, "time")))
		}
		if n := r.GatewayBreaches; n != nil && *n > 0 {
			errs = append(errs, fmt.Errorf("%s was broken: %s by the gateway's clock", what, Count(*n, "time")))
		}
		if r.tooMany {
			errs = append(errs, fmt.Errorf("%s was broken: %d at once at the gateway", what, gateway.MostAtOnce))
		}
	}
	if gateway != nil && gateway.Faults != nil && gateway.Faults.EarlyAfter429 > 0 {
		errs = append(errs, fmt.Errorf("a Retry-After was not heeded: %s came before it had passed", Count(gateway.Faults.EarlyAfter429, "message")))
	}
	return errs
}

// Count prints a number with its noun: "1 message", "2 messages".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
