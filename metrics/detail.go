package metrics

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// Bounds of a scrape. What is beyond them has no series.
const (
	batchesMax = 200 // batches that are added up
	usedMax    = 50  // rules whose share of the limit is read
	entriesMax = 200 // entries of schedules
)

var (
	ruleNext = desc("headway_rule_next_release_timestamp_seconds", "The first instant of the tasks that wait for the rule, among those of each "+
		"queue that start first.", "rule")
	oldest = desc("headway_oldest_wait_seconds", "How long the task has waited that has waited longest for the rule, among those of each "+
		"queue that start first.", "rule")
	ruleDue = desc("headway_rule_due", "Tasks that wait for the rule and come due within this time. Missing when that is not known exactly.", "rule", "within")
	used    = desc("headway_limit_used_ratio", "The share of the limit that the busiest key of the rule got in the last whole minute.", "rule")

	batches  = desc("headway_batches", "Batches of the queue by state. One that ended is counted for a day.", "queue", "state")
	fed      = desc("headway_batch_fed", "Elements of batches that were enqueued.", "queue")
	open     = desc("headway_batch_open", "Elements of batches that were enqueued and have not ended.", "queue")
	outcomes = desc("headway_batch_ended", "Elements of batches that are done, failed for good, or were dropped.", "queue", "outcome")
	refused  = desc("headway_batch_refused", "Elements of batches that were never enqueued.", "queue", "reason")
	left     = desc("headway_batch_remaining", "Elements that have not ended, of batches that run or are paused and have a known total.", "queue")
	rate     = desc("headway_batch_rate", "Elements that end each second, over the last 10 to 20 s, of the batches that run.", "queue")
	pace     = desc("headway_batch_pace", "Elements each second that the paces of the running batches allow. Missing while one of them has no pace.", "queue")
	unfed    = desc("headway_batches_without_feeder", "Running batches that no feeder has, though not all of their elements were enqueued.", "queue")

	nextTick = desc("headway_schedule_next_tick_timestamp_seconds", "The next tick of an entry of the schedulers that run.", "entry", "queue")
)

// more are the descriptions of what a [detail] has.
var more = []*prometheus.Desc{ruleNext, oldest, ruleDue, used, batches, fed, open, outcomes, refused, left, rate, pace, unfed, nextTick}

// detail is what a scrape asks for besides the counts of the queues.
type detail struct {
	waiting inspect.WaitingByRule
	partial bool // queues were left out of waiting
	used    map[string]float64
	batches map[string][]batch.Progress // by queue
	entries []inspect.Entry
}

// detail asks for what there is by rule, and for batches. What another version has written and
// this one can't read is missing; the error is of a Redis that does not answer.
func (q *queues) detail(ctx context.Context, f figures) (detail, error) {
	d := detail{used: make(map[string]float64), batches: make(map[string][]batch.Progress)}
	var waiting []string
	for _, s := range f.queues {
		if s.Waiting > 0 {
			waiting = append(waiting, s.Queue)
		}
	}
	var err error
	if d.waiting, err = q.WaitingByRule(ctx, waiting...); err != nil {
		return d, err
	}
	d.partial = len(d.waiting.Queues) < len(waiting)
	for _, r := range f.rules[:min(len(f.rules), usedMax)] {
		h, err := q.History(ctx, r.Rule, 2*time.Minute)
		if err != nil {
			return d, err
		}
		if p := h.Points[0]; p.Limit != "" && !r.Limit.IsConcurrent() && !h.PerKey {
			d.used[r.Rule] = p.Used
		}
	}
	read := 0
	for _, queue := range f.served() {
		if read >= batchesMax {
			break
		}
		all, _, err := q.Batches(ctx, queue)
		if errors.Is(err, throttle.ErrUnavailable) {
			return d, err
		}
		all = all[:min(len(all), batchesMax-read)]
		read += len(all)
		d.batches[queue] = all
	}
	d.entries, _ = inspect.Schedules(f.processes, time.Now(), 1)
	d.entries = d.entries[:min(len(d.entries), entriesMax)]
	return d, nil
}

// served are the queues that there are, and those that pools serve and that have had no task,
// together at most 100.
func (f figures) served() []string {
	const most = 100
	var all []string
	add := func(queue string) {
		if len(all) < most && !slices.Contains(all, queue) {
			all = append(all, queue)
		}
	}
	for _, s := range f.queues {
		add(s.Queue)
	}
	for _, p := range f.processes {
		for _, queue := range slices.Sorted(maps.Keys(p.Queues)) {
			add(queue)
		}
	}
	return all
}

// collect hands out what was learned. Rules are those that the inspector knows.
func (d detail) collect(gauge func(d *prometheus.Desc, value float64, labels ...string), rules []inspect.RuleStatus) {
	waiting := make(map[string]inspect.RuleCount)
	for _, c := range d.waiting.Rules {
		waiting[c.Rule] = c
	}
	for _, r := range rules {
		c := waiting[r.Rule]
		c.Rule = r.Rule
		if !c.Next.IsZero() {
			gauge(ruleNext, seconds(c.Next), c.Rule)
		}
		if !c.Since.IsZero() {
			gauge(oldest, max(0, d.waiting.Now.Sub(c.Since).Seconds()), c.Rule)
		}
		for _, n := range []struct {
			text   string
			within time.Duration
			count  int
		}{{"1s", time.Second, c.Within1s}, {"1m", time.Minute, c.Within1m}, {"1h", time.Hour, c.Within1h}} {
			if !d.partial && d.waiting.Counts(n.within) {
				gauge(ruleDue, float64(n.count), c.Rule, n.text)
			}
		}
	}
	for rule, share := range d.used {
		gauge(used, share, rule)
	}
	for queue, all := range d.batches {
		if len(all) > 0 && utf8.ValidString(queue) {
			sum(all).collect(gauge, queue)
		}
	}
	seen := make(map[[2]string]bool) // an entry may run with two specs
	for _, e := range d.entries {
		if at := [2]string{strings.ToValidUTF8(e.Entry, "?"), strings.ToValidUTF8(e.Queue, "?")}; !e.Next.IsZero() && !seen[at] {
			seen[at] = true
			gauge(nextTick, seconds(e.Next), at[0], at[1])
		}
	}
}

// batchSums are the batches of a queue together.
type batchSums struct {
	states                           map[batch.State]int
	enqueued, open                   int64
	done, failed, dropped, remaining int64
	refused                          map[string]int64
	rate, pace                       float64
	unfed                            int
	unpaced                          bool // a running batch has no pace
}

func sum(all []batch.Progress) batchSums {
	s := batchSums{states: make(map[batch.State]int), refused: make(map[string]int64)}
	for _, p := range all {
		s.states[p.State]++
		s.enqueued += p.Enqueued
		s.open += p.Open
		s.done += p.Done
		s.failed += p.Failed
		s.dropped += p.Dropped
		for reason, n := range p.RefusedFor {
			s.refused[string(reason)] += n
		}
		if p.State != batch.Running && p.State != batch.Paused {
			continue
		}
		s.remaining += max(0, p.Total-p.Done-p.Failed-p.Refused-p.Dropped)
		if p.State == batch.Paused {
			continue
		}
		s.rate += p.Rate
		if p.Pace.N == 0 {
			s.unpaced = true
		} else {
			s.pace += float64(p.Pace.N) / p.Pace.Per.Seconds()
		}
		if !p.Fed && (p.Total == 0 || p.Read < p.Total) {
			s.unfed++
		}
	}
	return s
}

func (s batchSums) collect(gauge func(d *prometheus.Desc, value float64, labels ...string), queue string) {
	for _, state := range []batch.State{batch.Running, batch.Paused, batch.Cancelled, batch.Ended, batch.Unreadable} {
		gauge(batches, float64(s.states[state]), queue, string(state))
	}
	gauge(fed, float64(s.enqueued), queue)
	gauge(open, float64(s.open), queue)
	gauge(outcomes, float64(s.done), queue, "done")
	gauge(outcomes, float64(s.failed), queue, "failed")
	gauge(outcomes, float64(s.dropped), queue, "dropped")
	for reason, n := range s.refused {
		gauge(refused, float64(n), queue, reason)
	}
	gauge(left, float64(s.remaining), queue)
	gauge(rate, s.rate, queue)
	if s.states[batch.Running] > 0 && !s.unpaced {
		gauge(pace, s.pace, queue)
	}
	gauge(unfed, float64(s.unfed), queue)
}
