package e2e

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// slack is how far a granted instant, which is rounded up to a microsecond, may seem
// to be from an exact one.
const slack = 2 * time.Microsecond

// Breaches counts the grants that broke a rule: of a limit those that are too many
// for their key, of a gate those while it was shut. They may come in any order.
// What was given back counts for nothing. Limits that say how many run at once are
// not judged: a grant does not tell when its message was sent.
func Breaches(grants []Grant, r queue.Rule) int {
	if IsGate(r) {
		return whileShut(grants, r)
	}
	byKey, returned := map[string][]judge.Spent{}, map[string]bool{}
	for _, g := range grants {
		c, ok := ChargeOf(g.Charges, r.Name, g.Key)
		switch {
		case ok && g.Unused:
			returned[c.Key] = true
		case ok:
			byKey[c.Key] = append(byKey[c.Key], judge.Spent{At: g.GrantedUs, Cost: c.Cost})
		}
	}
	over := 0
	for key, spent := range byKey {
		slices.SortFunc(spent, func(a, b judge.Spent) int { return cmp.Compare(a.At, b.At) })
		over += breachesOf(r.Limit, spent, returned[key])
	}
	return over
}

// Judged says whether [Breaches] can tell anything about a rule.
func Judged(r queue.Rule) bool { return !r.Limit.IsConcurrent() }

// breachesOf counts the grants of one key that its limit does not allow:
//
//	sliding             more than n in a window that ends with it
//	fixed               more than n in the window that the first one outside of any began
//	calendar            more than n in the window of the civil calendar
//	bucket, gcra        more than burst + rate·t in a time t that ends with it; stepped: a step more
//	leaky, smooth,      it before all that came before in a time t was paid for at the rate,
//	warmup              but for what is stored
//
// These are what the limits promise. That of a stepped bucket and of a warm-up say a
// little less than the limit does.
func breachesOf(limit throttle.Limit, spent []judge.Spent, returned bool) int {
	n, window := limit.Permits(), limit.Window()
	rate := judge.Rate{N: n, Window: window, Burst: limit.Burst(), Slack: slack}
	switch limit.Kind() {
	case "sliding":
		return len(judge.Windows(spent, n, window))
	case "fixed":
		if returned { // it may have begun a window
			return len(judge.Windows(spent, 2*n, window))
		}
		return len(judge.FixedWindows(spent, n, window))
	case "calendar":
		return len(judge.NamedWindows(spent, n, civilLabel(limit)))
	case "bucket", "gcra":
		if strings.HasSuffix(limit.String(), " step") {
			rate.Burst += n
		}
	default: // leaky, smooth, warmup
		rate.PaidBefore = true
	}
	return len(rate.Breaches(spent))
}

// civilLabel names the window of a calendar limit in which an instant lies. An
// hour that comes twice has two names.
func civilLabel(limit throttle.Limit) func(us int64) string {
	_, rest, _ := strings.Cut(limit.String(), "/") // "day Asia/Shanghai"
	unit, name, _ := strings.Cut(rest, " ")
	zone, err := time.LoadLocation(name)
	if err != nil {
		zone = time.UTC // a limit with such a zone is refused
	}
	layout := map[string]string{
		"minute": "2006-01-02 15:04 -07:00:00", "hour": "2006-01-02 15 -07:00:00", "day": time.DateOnly, "month": "2006-01",
	}[unit]
	return func(us int64) string {
		at := time.UnixMicro(us).In(zone)
		if unit == "week" {
			at, layout = at.AddDate(0, 0, -(int(at.Weekday())+6)%7), time.DateOnly // its Monday
		}
		return at.Format(layout)
	}
}

// whileShut counts the grants while a gate was shut, in the recipient's zone if that
// is what it opens by.
func whileShut(grants []Grant, r queue.Rule) int {
	shut := 0
	zones := map[string]*time.Location{"": nil}
	for _, g := range grants {
		c, ok := ChargeOf(g.Charges, r.Name, g.Key)
		if !ok {
			continue
		}
		zone, known := zones[c.Zone]
		if !known {
			zone, _ = time.LoadLocation(c.Zone) // nil is shut: what can't be proved is a breach
			zones[c.Zone] = zone
		}
		if _, closed := gate.FirstClosed([]gate.At{{Rule: r.Name, Gate: r.Gate, In: zone}}, time.UnixMicro(g.GrantedUs)); closed {
			shut++
		}
	}
	return shut
}
