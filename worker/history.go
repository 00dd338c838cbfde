package worker

import (
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

// limitText is the limit of a rule as it is in force, for the history; "" for a gate.
func (c *core) limitText(rule string) string {
	if l := c.set.Limiter(rule); l != nil {
		return throttle.ForWorkers.LimitLastKnown(l).String()
	}
	return ""
}

// recordGrant notes in the history what a grant spent, by each of its rules.
func (c *core) recordGrant(p *throttle.Policy, d throttle.Decision) {
	if c.history == nil {
		return
	}
	ref := throttle.ForWorkers.Ref(p, d.Request)
	for i, l := range p.Rules() {
		c.history.Of(l.Rule()).Granted(ref.IDs[i], ref.Costs[i])
	}
}

// recordDeferral notes in the history that a task waits for a rule.
func (c *core) recordDeferral(d *deferral) {
	switch d.reason {
	case event.Booked, event.Gated, event.Asked:
		c.history.Of(d.rule).Deferred(d.key, d.at)
	}
}

// recordWait notes in the history until when a task waits for a rule. what is what it waits
// for, as text.
func (c *core) recordWait(rule, what string, until time.Time) {
	place, ok := luascripts.ParseBookingRef(what)
	if c.history == nil || !ok {
		return
	}
	ids, _, _ := place.Rules.Read()
	if n := slices.Index(strings.Split(place.Rules.Policy(), "+"), rule); n >= 0 && n < len(ids) {
		c.history.Of(rule).Waits(ids[n], until)
	}
}

// keyOf is the key of the rule that holds a task, as it stands in Redis; "" of a gate.
func keyOf(p *throttle.Policy, d throttle.Decision) string {
	if n := slices.IndexFunc(p.Rules(), func(l *throttle.Limiter) bool { return l.Rule() == d.Rule }); n >= 0 {
		return throttle.ForWorkers.Ref(p, d.Request).IDs[n]
	}
	return ""
}
