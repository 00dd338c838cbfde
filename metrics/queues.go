package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/throttle"
)

// scrapeTimeout bounds what a scrape waits for Redis.
const scrapeTimeout = 3 * time.Second

var (
	scrapeUp  = desc("headway_scrape_up", "1 when Redis answered this scrape. When it is 0, the figures of queues, rules and processes are missing.")
	runnable  = desc("headway_runnable", "Tasks that a worker may run now: pending ones, and those that waited and whose instants have come.", "queue")
	active    = desc("headway_active", "Tasks that run.", "queue")
	deferred  = desc("headway_deferred", "Tasks that wait for instants that are still to come, deferred or booked. They need no worker before.", "queue")
	due       = desc("headway_due", "Of the deferred tasks, those that come due within this time.", "queue", "within")
	next      = desc("headway_next_release_timestamp_seconds", "The first instant of the tasks that wait; missing when none waits.", "queue")
	archived  = desc("headway_archived", "Tasks that failed for good.", "queue")
	paused    = desc("headway_queue_paused", "1 while the queue is paused.", "queue")
	closed    = desc("headway_rule_closed_until_timestamp_seconds", "Until when the rule is closed on all keys; only of rules that are closed.", "rule")
	stored    = desc("headway_rule_limit_stored", "1 when a stored limit goes before the one in code.", "rule")
	unusable  = desc("headway_rule_limit_unreadable", "1 when the stored limit can't be read: nothing is granted then.", "rule")
	processes = desc("headway_processes", "Processes that run, as they say themselves every few seconds.", "kind")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// RegisterQueues registers gauges of what stands in Redis: the tasks of each queue, the rules
// of the inspector's policies, batches, and the processes that run. A scrape asks Redis: about three
// calls, three for a queue and two for a rule, of at most 100 queues, 50 rules, 200 batches and 500
// processes, and five more for the first 1000 tasks that wait on each of 10 queues. It waits at most 3 s for that. When
// Redis does not answer, headway_scrape_up is 0 and the other gauges are missing.
//
// Each process that registers them reports the same figures, so one is enough. Where several
// do, take the maximum and not the sum.
func RegisterQueues(to prometheus.Registerer, inspector *inspect.Inspector) error {
	if inspector == nil {
		return errors.New("metrics: the inspector of the queues is nil")
	}
	if err := to.Register(&queues{inspector, make(chan struct{}, 1)}); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// queues asks Redis at each scrape.
type queues struct {
	*inspect.Inspector
	asking chan struct{} // has room for the one scrape that asks
}

// figures is what one scrape has asked for.
type figures struct {
	queues    []inspect.QueueStatus
	rules     []inspect.RuleStatus
	processes []inspect.Process
	detail    detail
}

func (*queues) Describe(to chan<- *prometheus.Desc) {
	for _, d := range append([]*prometheus.Desc{scrapeUp, runnable, active, deferred, due, next, archived, paused, closed, stored, unusable, processes}, more...) {
		to <- d
	}
}

func (q *queues) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	got, ok := q.ask()
	gauge(scrapeUp, flag(ok))
	for _, s := range got.queues {
		s.Queue = strings.ToValidUTF8(s.Queue, "?") // a label has to be
		gauge(runnable, float64(s.Pending+s.Overdue), s.Queue)
		gauge(active, float64(s.Active), s.Queue)
		gauge(deferred, float64(s.Waiting-s.Overdue), s.Queue)
		gauge(due, float64(s.Within1s-s.Overdue), s.Queue, "1s")
		gauge(due, float64(s.Within1m-s.Overdue), s.Queue, "1m")
		gauge(due, float64(s.Within1h-s.Overdue), s.Queue, "1h")
		gauge(archived, float64(s.Archived), s.Queue)
		gauge(paused, flag(s.Paused), s.Queue)
		if !s.Next.IsZero() {
			gauge(next, seconds(s.Next), s.Queue)
		}
	}
	for _, r := range got.rules {
		gauge(stored, flag(r.Stored), r.Rule)
		gauge(unusable, flag(r.Err != nil), r.Rule)
		if !r.Closed.IsZero() {
			gauge(closed, seconds(r.Closed), r.Rule)
		}
	}
	kinds := make(map[string]int)
	for _, p := range got.processes {
		kinds[p.Kind]++
	}
	for kind, n := range kinds {
		gauge(processes, float64(n), kind)
	}
	got.detail.collect(gauge, got.rules)
}

// ask asks Redis, and answers false when that takes too long. A client of Redis heeds no context while it waits for an
// answer, so it may go on for longer than this: the next scrape does not ask before it has ended.
func (q *queues) ask() (figures, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	select {
	case q.asking <- struct{}{}:
	case <-ctx.Done():
		return figures{}, false
	}
	answer := make(chan figures, 1)
	go func() {
		defer func() { <-q.asking }()
		defer close(answer)
		var f figures
		var err error
		if f.queues, err = q.Queues(ctx); err != nil {
			return
		}
		// One that speaks as another version does must not hide the queues.
		if f.processes, _, err = q.Processes(ctx); errors.Is(err, throttle.ErrUnavailable) {
			return
		}
		f.rules = q.Rules(ctx)
		for _, r := range f.rules {
			if r.Err != nil && !errors.Is(r.Err, throttle.ErrStoredLimit) {
				return
			}
		}
		if f.detail, err = q.detail(ctx, f); err != nil {
			return
		}
		answer <- f
	}()
	select {
	case f, ok := <-answer:
		return f, ok
	case <-ctx.Done():
		return figures{}, false
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
