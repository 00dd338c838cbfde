package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

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
	total, waiting := int(s.total.Load()), int(s.left.Load())
	if total >= 0 {
		waiting = min(waiting, max(0, total-sent-failed)) // the look at the queue is older than the counters
	}
	return e2e.Snapshot{Total: total, Sent: sent, Failed: failed, Waiting: waiting, NextIn: s.watch.NextIn(time.Now())}
}

// look counts the messages of our queue that are not done, and all that ever were. A
// queue into which nothing was enqueued yet does not exist.
func look(inspector *asynq.Inspector) (left, done int, exists bool) {
	names, err := inspector.Queues()
	if err != nil || !slices.Contains(names, queueName) {
		return 0, 0, false
	}
	q, err := inspector.GetQueueInfo(queueName)
	if err != nil {
		return 0, 0, false
	}
	return q.Pending + q.Active + q.Scheduled + q.Retry, q.ProcessedTotal, true
}

// wait returns when ctx ends, or with -drain when nothing is left. One look does not
// tell: where another process still enqueues, the queue is empty now and then. So two
// looks in a row must find it empty, and nothing done in between.
func (s *sender) wait(ctx context.Context, inspector *asynq.Inspector) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	empty, before := false, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		left, done, exists := look(inspector)
		s.left.Store(int64(left))
		over := exists && left == 0
		if s.cfg.drain && over && empty && done == before {
			return
		}
		empty, before = over, done
	}
}

// sumUp prints what each phone got, and writes the report. A broken limit is an error.
func (s *sender) sumUp(stats worker.Stats, took time.Duration) error {
	grants, err := s.grants.All()
	errs := []error{err}
	totals := e2e.Totals{
		Deferred: stats.Deferred, Admissions: stats.Admissions, WakeChecks: stats.WakeChecks,
		PutOff: stats.Postponed, LeasesLost: stats.LeasesLost, Late: s.watch.Lateness(), Elapsed: took,
	}
	if s.own != nil {
		seen := s.own.Stats()
		totals.Gateway = &seen
	}
	rules := e2e.JudgeRules(s.cfg.policy, grants, totals.Gateway, stats.Rules)
	for _, r := range rules {
		if r.Breaches != nil {
			totals.Breaches += *r.Breaches
		}
	}
	if s.cfg.policy.PerRule {
		totals.Rules = rules
	}
	report := e2e.NewReport(&s.tally, totals)
	s.say("")
	errs = append(errs, report.Print(s.env.stdout))
	if s.cfg.report != "" {
		errs = append(errs, report.WriteFile(s.cfg.report))
	}
	return errors.Join(append(errs, e2e.Broken(s.cfg.policy, rules, totals.Gateway)...)...)
}

// loadSecret returns the secret that is in Redis, and puts one there first if there is
// none. With another secret all counting would begin anew. So it lives until 30 days and
// the longest window after the last process started.
func loadSecret(ctx context.Context, rdb redis.UniversalClient, window time.Duration) ([]byte, error) {
	const key = "sms-sender:secret"
	life := 30*24*time.Hour + window
	pipe := rdb.TxPipeline()
	pipe.SetNX(ctx, key, rand.Text(), life)
	pipe.PExpire(ctx, key, life)
	got := pipe.Get(ctx, key)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	return []byte(got.Val()), nil
}
