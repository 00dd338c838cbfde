package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle/gate"
)

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

// judgeLog holds a log against the rules, by the server's clock: see [judge.Arrivals] for what a rule
// is held against.
func judgeLog(log []Arrival, cfg config, zone *time.Location) Judgement {
	j := Judgement{Accepted: len(log)}
	provider := judge.Arrivals{N: cfg.rate.Permits(), Window: cfg.rate.Window()}
	type account struct {
		last    int64
		arrived judge.Arrivals
	}
	perRecipient, seen := map[string]*account{}, map[string]bool{}
	all := make([]judge.Spent, 0, len(log))
	gates := []gate.At{{Rule: ruleGate, Gate: cfg.gate, In: zone}}
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
		to := Mail{To: a.To}.recipient()
		got := perRecipient[to]
		if got == nil {
			got = &account{last: at, arrived: judge.Arrivals{N: 1, Window: cfg.perRecipient()}}
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
	j.MostInWindow, j.Recipients = judge.Most(all, cfg.rate.Window()), len(perRecipient)
	if len(log) > 0 {
		j.FirstAt, j.LastAt = log[0].At, log[len(log)-1].At
	}
	return j
}

// sumUp prints the summary, and returns what went wrong.
func (s *session) sumUp(last batch.Progress) error {
	j := judgeLog(s.server.Arrivals(), s.cfg, s.clock.Zone)
	if err := s.print(s.env.stdout, last, j); err != nil {
		return err
	}
	return errors.Join(s.wrong(last, j)...)
}

func (s *session) print(out io.Writer, p batch.Progress, j Judgement) error {
	stats := s.stats()
	var fed []string
	s.mu.Lock()
	for _, f := range s.feeders {
		fed = append(fed, fmt.Sprintf("%s from mail %d", f.r.name, f.from+1))
	}
	s.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, a ...any) { _, _ = fmt.Fprintf(w, name+"\t"+format+"\n", a...) }
	line("batch", "%s, %s: %d mails, %d sent, %d failed, %d refused, %d taken back", p.ID, p.State, len(s.mails), p.Done, p.Failed, p.Refused, p.Dropped)
	line("accepted", "%d by the SMTP server, for %s; %s came twice", j.Accepted, count(j.Recipients, "recipient"), count(j.Twice, "mail"))
	if j.Accepted > 0 {
		line("hours", "%s to %s by the clock, gate %s: %s sent while it was shut", s.clock.Show(j.FirstAt), s.clock.Show(j.LastAt), gateText(s.cfg.gate), count(j.WhileShut, "mail"))
		line("provider", "%d allowed in any %v, %s broken; at most %d arrived in one, such as were long on their way included",
			s.cfg.rate.Permits(), s.cfg.rate.Window(), count(j.OverProvider, "time"), j.MostInWindow)
		least := "no recipient got two"
		if j.LeastGap > 0 {
			least = fmt.Sprintf("the least time between two arrivals was %v", j.LeastGap.Round(time.Millisecond))
		}
		line("recipient", "1 allowed in any %v, %s broken; %s", s.cfg.perRecipient(), count(j.OverRecipient, "time"), least)
		line("admissions", "%d, %.2f per mail; %d deferred by a worker", stats.Admissions, float64(stats.Admissions)/float64(j.Accepted), stats.Deferred)
	}
	if len(fed) > 0 {
		line("fed by", "%s", strings.Join(fed, ", then "))
	}
	return w.Flush()
}

// wrong is what went wrong, by the batch and by the server.
func (s *session) wrong(p batch.Progress, j Judgement) []error {
	var errs []error
	bad := func(n int64, what string) {
		if n != 0 {
			errs = append(errs, fmt.Errorf("%s %s", count(n, "mail"), what))
		}
	}
	bad(p.Failed, "failed for good")
	bad(p.Refused, "could not be enqueued")
	if p.State == batch.Ended {
		bad(int64(len(s.mails)-(j.Accepted-j.Twice))-p.Failed-p.Refused, "did not reach the server")
	}
	bad(int64(j.Twice), "came twice")
	bad(int64(j.OverProvider), "came faster than the provider allows")
	bad(int64(j.OverRecipient), "came faster than a recipient is to get them")
	bad(int64(j.WhileShut), "went out while the gate was shut")
	bad(int64(j.Early), "came before Redis let it through: the clocks differ, and the judgement is void")
	return errs
}

// gateText is the gate without the word for whose zone it opens by.
func gateText(g gate.Gate) string { return strings.TrimSuffix(g.String(), " recipient") }
