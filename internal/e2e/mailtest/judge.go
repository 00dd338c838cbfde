package mailtest

import (
	"strings"
	"time"

	"github.com/headwayq/headway/internal/judge"
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
	gates := []gate.At{{Rule: "gate", Gate: r.Gate, In: r.Zone}}
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
