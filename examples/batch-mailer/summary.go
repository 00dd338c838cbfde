package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

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

// judge holds a log against the rules, by the server's clock. What a mail was on its
// way counts for it: with 1/5s one that was let through at 0 s and came at 0.2 s may be
// followed by one at 5 s. So an arrival breaks a limit of n when more than n mails that
// arrived so far were let through in the window before it. Delays hide breaches from
// this and never make one up, as long as the clocks agree.
func judge(log []Arrival, cfg config, zone *time.Location) Judgement {
	j := Judgement{Accepted: len(log)}
	provider, perRecipient := window{n: cfg.rate.Permits(), of: cfg.rate.Window()}, map[string]*window{}
	seen := map[string]bool{}
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
		if provider.add(a) {
			j.OverProvider++
		}
		to := Mail{To: a.To}.recipient()
		if perRecipient[to] == nil {
			perRecipient[to] = &window{n: 1, of: cfg.perRecipient()}
		}
		if perRecipient[to].add(a) {
			j.OverRecipient++
		}
	}
	j.MostInWindow, j.Recipients = provider.most, len(perRecipient)
	for _, w := range perRecipient {
		if w.gap > 0 && (j.LeastGap == 0 || w.gap < j.LeastGap) {
			j.LeastGap = w.gap
		}
	}
	if len(log) > 0 {
		j.FirstAt, j.LastAt = log[0].At, log[len(log)-1].At
	}
	return j
}

// window is what a key got, in the order of arrival.
type window struct {
	n    int
	of   time.Duration
	log  []Arrival
	most int           // most arrivals in a window
	gap  time.Duration // least between two
}

// add takes the next arrival, and says whether it breaks the limit.
func (w *window) add(a Arrival) (over bool) {
	if n := len(w.log); n > 0 {
		if gap := a.At.Sub(w.log[n-1].At); w.gap == 0 || gap < w.gap {
			w.gap = gap
		}
	}
	w.log = append(w.log, a)
	from := a.At.Add(-w.of) // half-open: what was that long ago is out
	granted, arrived := 0, 0
	for _, b := range slices.Backward(w.log) {
		if !b.At.After(from) {
			break // and so it was let through before
		}
		arrived++
		if b.Granted.After(from) {
			granted++
		}
	}
	w.most = max(w.most, arrived)
	return granted > w.n
}

// sumUp prints the summary, and returns what went wrong.
func (s *session) sumUp(last batch.Progress) error {
	j := judge(s.server.Arrivals(), s.cfg, s.clock.Zone)
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
