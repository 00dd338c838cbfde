package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle/gate"
)

// sumUp prints the summary, and returns what went wrong.
func (s *session) sumUp(last batch.Progress) error {
	j := mailtest.Judge(s.server.Arrivals(), mailtest.Rules{
		Provider: s.cfg.rate, PerRecipient: s.cfg.perRecipient(), Gate: s.cfg.gate, Zone: s.clock.Zone,
	})
	if err := s.print(s.env.stdout, last, j); err != nil {
		return err
	}
	return errors.Join(s.wrong(last, j)...)
}

func (s *session) print(out io.Writer, p batch.Progress, j mailtest.Judgement) error {
	var admissions, deferred int64
	for _, r := range s.replicas {
		stats := r.pool.Stats()
		admissions += stats.Admissions
		deferred += stats.Deferred
	}
	var fed []string
	s.mu.Lock()
	for _, f := range s.feeders {
		fed = append(fed, fmt.Sprintf("%s from mail %d", f.r.name, f.from+1))
	}
	s.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, a ...any) { _, _ = fmt.Fprintf(w, name+"\t"+format+"\n", a...) }
	line("batch", "%s, %s: %d mails, %d sent, %d failed, %d refused, %d taken back", p.ID, p.State, len(s.mails), p.Done, p.Failed, p.Refused, p.Dropped)
	line("accepted", "%d by the SMTP server, for %s; %s came twice", j.Accepted, e2e.Count(j.Recipients, "recipient"), e2e.Count(j.Twice, "mail"))
	if j.Accepted > 0 {
		line("hours", "%s to %s by the clock, gate %s: %s sent while it was shut", s.clock.Show(j.FirstAt), s.clock.Show(j.LastAt), gateText(s.cfg.gate), e2e.Count(j.WhileShut, "mail"))
		line("provider", "%d allowed in any %v, %s broken; at most %d arrived in one, such as were long on their way included",
			s.cfg.rate.Permits(), s.cfg.rate.Window(), e2e.Count(j.OverProvider, "time"), j.MostInWindow)
		least := "no recipient got two"
		if j.LeastGap > 0 {
			least = fmt.Sprintf("the least time between two arrivals was %v", j.LeastGap.Round(time.Millisecond))
		}
		line("recipient", "1 allowed in any %v, %s broken; %s", s.cfg.perRecipient(), e2e.Count(j.OverRecipient, "time"), least)
		line("admissions", "%d, %.2f per mail; %d deferred by a worker", admissions, float64(admissions)/float64(j.Accepted), deferred)
	}
	if len(fed) > 0 {
		line("fed by", "%s", strings.Join(fed, ", then "))
	}
	return w.Flush()
}

// wrong is what went wrong, by the batch and by the server.
func (s *session) wrong(p batch.Progress, j mailtest.Judgement) []error {
	var errs []error
	bad := func(n int64, what string) {
		if n != 0 {
			errs = append(errs, fmt.Errorf("%s %s", e2e.Count(int(n), "mail"), what))
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
