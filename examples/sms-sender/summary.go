package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/worker"
)

// say writes a line above the progress.
func (s *sender) say(format string, a ...any) { _, _ = fmt.Fprintf(s.progress, format+"\n", a...) }

// announce says what is about to happen.
func (s *sender) announce(msgs []e2e.Message) {
	if s.own != nil {
		s.say("gateway  embedded, sends nothing")
	}
	for _, r := range s.cfg.policy.Rules {
		s.say("rule     %s: %s", r.Name, e2e.RuleText(r))
	}
	if s.cfg.role == roleAll {
		phones := map[string]bool{}
		for _, m := range msgs {
			phones[m.To] = true
		}
		s.say("input    %s to %s: %v at least", e2e.Count(len(msgs), "message"), e2e.Count(len(phones), "phone"), s.cfg.policy.AtLeast(msgs))
	}
}

// snapshot is the present state for the progress.
func (s *sender) snapshot() e2e.Snapshot {
	sent, failed := s.tally.Counts()
	total, waiting := int(s.total.Load()), s.backlog.Left()
	if total >= 0 {
		waiting = min(waiting, max(0, total-sent-failed)) // the look at the queue is older than the counters
	}
	return e2e.Snapshot{Total: total, Sent: sent, Failed: failed, Waiting: waiting, NextIn: s.watch.NextIn(time.Now())}
}

// sumUp prints what each phone got, and writes the report. A broken limit is an error.
func (s *sender) sumUp(stats worker.Stats, took time.Duration) error {
	grants, err := s.grants.All()
	totals := e2e.Totals{Late: s.watch.Lateness(), Elapsed: took}
	if s.own != nil {
		seen := s.own.Stats()
		totals.Gateway = &seen
	}
	report, broken := e2e.SumUp(s.cfg.policy, &s.tally, grants, stats, totals)
	s.say("")
	errs := []error{err, report.Print(s.env.stdout)}
	if s.cfg.report != "" {
		errs = append(errs, report.WriteFile(s.cfg.report))
	}
	return errors.Join(append(errs, broken...)...)
}
