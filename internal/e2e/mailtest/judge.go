package mailtest

import (
	"fmt"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// Rules are what a log is held against.
type Rules struct {
	Provider     throttle.Limit // sliding
	PerRecipient time.Duration  // between two mails to one; upper case makes no other recipient
	Gate         gate.Gate
	Zone         *time.Location // of all recipients
}

// Hours is the gate without the word for whose zone it opens by.
func (r Rules) Hours() string { return strings.TrimSuffix(r.Gate.String(), " recipient") }

// Judgement is what the server's log says about a run.
type Judgement struct {
	Accepted, Twice, Recipients int

	MostInWindow    int           // by the provider's rule, by the server's clock
	LeastGap        time.Duration // between two mails to one recipient, likewise; 0 without any
	OverProvider    int           // times that a rule was broken
	OverRecipient   int
	WhileShut       int // mails that were let through while the gate was shut
	Early           int // mails that came before they were let through: two clocks that differ
	FirstAt, LastAt time.Time
}

// Judge holds a log against the rules, by the server's clock: see [judge.Arrivals] for what a rule
// is held against.
func Judge(log []Arrival, r Rules) Judgement {
	j := Judgement{Accepted: len(log)}
	provider := judge.Arrivals{N: r.Provider.Permits(), Window: r.Provider.Window()}
	type account struct {
		last    int64
		arrived judge.Arrivals
	}
	perRecipient, seen := map[string]*account{}, map[string]bool{}
	all := make([]judge.Spent, 0, len(log))
	gates := []gate.InZone{{Rule: "gate", Gate: r.Gate, In: r.Zone}}
	for _, a := range log {
		if seen[a.ID] {
			j.Twice++
		}
		seen[a.ID] = true
		if a.At.Before(a.Granted) {
			j.Early++
		}
		if _, shut := gate.FirstClosed(gates, a.Granted); shut {
			j.WhileShut++
		}
		granted, at := a.Granted.UnixMicro(), a.At.UnixMicro()
		all = append(all, judge.Spent{At: at, Cost: 1})
		if provider.Add(granted, at, 1) {
			j.OverProvider++
		}
		to := strings.ToLower(a.To)
		got := perRecipient[to]
		if got == nil {
			got = &account{last: at, arrived: judge.Arrivals{N: 1, Window: r.PerRecipient}}
			perRecipient[to] = got
		}
		if got.arrived.Add(granted, at, 1) {
			j.OverRecipient++
		}
		if gap := time.Duration(at-got.last) * time.Microsecond; gap > 0 && (j.LeastGap == 0 || gap < j.LeastGap) {
			j.LeastGap = gap
		}
		got.last = at
	}
	j.MostInWindow, j.Recipients = judge.Most(all, r.Provider.Window()), len(perRecipient)
	if len(log) > 0 {
		j.FirstAt, j.LastAt = log[0].At, log[len(log)-1].At
	}
	return j
}

// Print prints what the log says, a line for each rule, by a clock.
func (j Judgement) Print(line func(name, format string, a ...any), r Rules, c Clock) {
	line("accepted", "%d by the SMTP server, for %s; %s came twice", j.Accepted, e2e.Count(j.Recipients, "recipient"), e2e.Count(j.Twice, "mail"))
	if j.Accepted == 0 {
		return
	}
	line("hours", "%s to %s by the clock, gate %s: %s sent while it was shut", c.Show(j.FirstAt), c.Show(j.LastAt), r.Hours(), e2e.Count(j.WhileShut, "mail"))
	line("provider", "%d allowed in any %v, %s broken; at most %d arrived in one, such as were long on their way included",
		r.Provider.Permits(), r.Provider.Window(), e2e.Count(j.OverProvider, "time"), j.MostInWindow)
	least := "no recipient got two"
	if j.LeastGap > 0 {
		least = fmt.Sprintf("the least time between two arrivals was %v", j.LeastGap.Round(time.Millisecond))
	}
	line("recipient", "1 allowed in any %v, %s broken; %s", r.PerRecipient, e2e.Count(j.OverRecipient, "time"), least)
}

// Wrong is what went wrong with so many mails, by the batch and by the server's log.
func (j Judgement) Wrong(p batch.Progress, mails int) []error {
	var errs []error
	bad := func(n int, what string) {
		if n != 0 {
			errs = append(errs, fmt.Errorf("%s %s", e2e.Count(n, "mail"), what))
		}
	}
	failed, refused := int(p.Failed), int(p.Refused)
	bad(failed, "failed for good")
	bad(refused, "could not be enqueued")
	if p.State == batch.Ended {
		bad(mails-(j.Accepted-j.Twice)-failed-refused, "did not reach the server")
	}
	bad(j.Twice, "came twice")
	bad(j.OverProvider, "came faster than the provider allows")
	bad(j.OverRecipient, "came faster than a recipient is to get them")
	bad(j.WhileShut, "went out while the gate was shut")
	bad(j.Early, "came before Redis let it through: the clocks differ, and the judgement is void")
	return errs
}
