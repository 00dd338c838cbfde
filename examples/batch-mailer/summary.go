package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/queue/batch"
)

// rules are what the server's log is held against.
func (s *session) rules() mailtest.Rules {
	return mailtest.Rules{Provider: s.cfg.rate, PerRecipient: s.cfg.perRecipient(), Gate: s.cfg.gate, Zone: s.clock.Zone}
}

// sumUp prints the summary, and returns what went wrong.
func (s *session) sumUp(last batch.Progress) error {
	j := mailtest.Judge(s.server.Arrivals(), s.rules())
	if err := s.print(s.env.stdout, last, j); err != nil {
		return err
	}
	return errors.Join(j.Wrong(last, len(s.mails))...)
}

func (s *session) print(out io.Writer, p batch.Progress, j mailtest.Judgement) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, a ...any) { _, _ = fmt.Fprintf(w, name+"\t"+format+"\n", a...) }
	line("batch", "%s, %s: %d mails, %d sent, %d failed, %d refused, %d taken back", p.ID, p.State, len(s.mails), p.Done, p.Failed, p.Refused, p.Dropped)
	j.Print(line, s.rules(), s.clock)
	if j.Accepted > 0 {
		var admissions, deferred int64
		for _, r := range s.replicas {
			stats := r.pool.Stats()
			admissions += stats.Admissions
			deferred += stats.Deferred
		}
		line("admissions", "%d, %.2f per mail; %d deferred by a worker", admissions, float64(admissions)/float64(j.Accepted), deferred)
	}
	if fed := s.watch.FedBy(); fed != "" {
		line("fed by", "%s", fed)
	}
	return w.Flush()
}
