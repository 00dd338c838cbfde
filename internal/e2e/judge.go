package e2e

import (
	"cmp"
	"slices"
	"strings"
	"time"

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
	byKey := map[string][]spending{}
	for _, g := range grants {
		if c, ok := ChargeOf(g.Charges, r.Name, g.Key); ok {
			byKey[c.Key] = append(byKey[c.Key], spending{at: g.GrantedUs, cost: c.Cost, unused: g.Unused})
		}
	}
	over := 0
	for _, spent := range byKey {
		over += breachesOf(r.Limit, spent)
	}
	return over
}

// Judged says whether [Breaches] can tell anything about a rule.
func Judged(r queue.Rule) bool { return !r.Limit.IsConcurrent() }

// spending is a grant as it counts for one key.
type spending struct {
	at     int64 // µs
	cost   int
	unused bool
}

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
func breachesOf(limit throttle.Limit, spent []spending) int {
	slices.SortFunc(spent, func(a, b spending) int { return cmp.Compare(a.at, b.at) })
	returned := slices.ContainsFunc(spent, func(s spending) bool { return s.unused })
	spent = slices.DeleteFunc(spent, func(s spending) bool { return s.unused })
	n, window := limit.Permits(), limit.Window()
	switch limit.Kind() {
	case "sliding":
		return overWindows(spent, n, window)
	case "fixed":
		if returned { // it may have begun a window
			return overWindows(spent, 2*n, window)
		}
		return overFixed(spent, n, window)
	case "calendar":
		return overLabels(spent, n, civilLabel(limit))
	case "bucket", "gcra":
		burst := limit.Burst()
		if strings.HasSuffix(limit.String(), " step") {
			burst += n
		}
		return overRate(spent, float64(window.Microseconds())/float64(n), burst, true)
	default: // leaky, smooth, warmup
		return overRate(spent, float64(window.Microseconds())/float64(n), limit.Burst(), false)
	}
}

// overWindows counts the grants with which a half-open window holds more than n:
// with 1/60s a gap of 60 s is fine, one of 59.999999 s is not.
func overWindows(spent []spending, n int, window time.Duration) int {
	over, sum, from := 0, 0, 0
	for _, s := range spent {
		for spent[from].at <= s.at-window.Microseconds() {
			sum -= spent[from].cost
			from++
		}
		if sum += s.cost; sum > n {
			over++
		}
	}
	return over
}

func overFixed(spent []spending, n int, window time.Duration) int {
	over, sum := 0, 0
	for i, start := 0, int64(0); i < len(spent); i++ {
		if i == 0 || spent[i].at >= start+window.Microseconds() {
			start, sum = spent[i].at, 0
		}
		if sum += spent[i].cost; sum > n {
			over++
		}
	}
	return over
}

func overLabels(spent []spending, n int, label func(us int64) string) int {
	over, sums := 0, map[string]int{}
	for _, s := range spent {
		l := label(s.at)
		if sums[l] += s.cost; sums[l] > n {
			over++
		}
	}
	return over
}

// overRate follows the instant at which all is paid for, one permit each step µs,
// and how far it lies ahead: by burst permits at most, with the grant's own if
// ahead is true.
func overRate(spent []spending, step float64, burst int, ahead bool) int {
	if len(spent) == 0 {
		return 0
	}
	over, paid, start := 0, 0.0, spent[0].at
	most := float64(burst)*step + float64(slack.Microseconds())
	for _, s := range spent {
		at := float64(s.at - start) // small numbers, for a float's precision
		lead := paid - at
		paid = max(paid, at) + float64(s.cost)*step
		if ahead {
			lead = paid - at
		}
		if lead > most {
			over++
		}
	}
	return over
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
