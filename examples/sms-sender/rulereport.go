package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// RuleReport is what a rule of the policy did in a run.
type RuleReport struct {
	Rule            string   `json:"rule"`
	Is              string   `json:"is"`               // its limit or gate
	Bound           int64    `json:"bound"`            // times that it was the one that refused
	WaitedS         float64  `json:"waited_s"`         // for it, all messages together
	WaitedMeanS     *float64 `json:"waited_mean_s"`    // each time; null if it never refused
	Breaches        *int     `json:"breaches"`         // by the granted instants; null if these do not tell
	GatewayBreaches *int     `json:"gateway_breaches"` // by the gateway's clock; null if that does not tell
	AtOnceMost      *int     `json:"at_once_most"`     // at the gateway, of a rule that limits that; null if it does not tell

	tooMany bool // at once
}

// judge holds a run against each rule of the policy. gateway is nil if it is not ours.
//
// How many ran at once is judged at the gateway, if all messages had one key under the
// rule. A message that gets no answer stays there a moment longer than its sender
// waits, so each of those may be one more.
func judge(p policy, grants []Grant, gateway *GatewayStats, waits []worker.RuleStats) []RuleReport {
	reports := make([]RuleReport, 0, len(p.Rules))
	for _, r := range p.Rules {
		report := RuleReport{Rule: r.Name, Is: ruleText(r)}
		for _, w := range waits {
			if w.Rule == r.Name && w.Bound > 0 {
				report.Bound, report.WaitedS = w.Bound, seconds(w.Waited)
				report.WaitedMeanS = new(seconds(w.Waited / time.Duration(w.Bound)))
			}
		}
		if judged(r) {
			report.Breaches = new(Breaches(grants, r))
		}
		if gateway != nil && atGateway(r) {
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
		if c, ok := chargeOf(g.Charges, rule, g.Key); ok {
			keys[c.Key] = true
		}
	}
	return len(keys) <= 1
}

// ruleText is the text of a rule's limit or gate.
func ruleText(r queue.Rule) string {
	if isGate(r) {
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
