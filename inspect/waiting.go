package inspect

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/queuescripts"
)

// WaitingByRuleMax is how many tasks of a queue [Inspector.WaitingByRule] looks at: 1000.
const WaitingByRuleMax = 4 * pageMax

// WaitingByRule says for which rules tasks wait, of those that start next. It is a sample
// from the front: Redis keeps what waits by queue and by key, and no count by rule.
type WaitingByRule struct {
	Rules []RuleCount `json:"rules"` // in the order of their names
	// Until is up to which instant every task was counted. It is zero when all were. A
	// count of tasks that come due before it is exact, any other one is the least.
	Until  time.Time      `json:"until,omitzero"`
	Queues []SampledQueue `json:"queues"`
	Now    time.Time      `json:"now,omitzero"` // Redis' clock
}

// RuleCount is how many tasks wait for a rule, of those that were looked at. A task counts
// for the one rule that holds it. Rule is empty for tasks that wait for something else, such
// as a gate, a paused batch or a provider's Retry-After.
type RuleCount struct {
	Rule     string    `json:"rule"`
	Waiting  int       `json:"waiting"`
	Within1s int       `json:"within_1s"` // tasks of Waiting that come due within a second, with the overdue ones
	Within1m int       `json:"within_1m"`
	Within1h int       `json:"within_1h"`
	Next     time.Time `json:"next"`           // the first instant of them
	Since    time.Time `json:"since,omitzero"` // since when the one of them waits that waits longest
}

// SampledQueue is a queue of a [WaitingByRule].
type SampledQueue struct {
	Queue   string `json:"queue"`
	Waiting int    `json:"waiting"` // all that wait
	Looked  int    `json:"looked"`  // how many of them were looked at, those that start first
}

// Counts says whether every task was counted that comes due within a time.
func (w WaitingByRule) Counts(within time.Duration) bool {
	return w.Until.IsZero() || w.Until.After(w.Now.Add(within))
}

// waitingByRule is behind [Inspector.WaitingByRule].
func waitingByRule(ctx context.Context, i *Inspector, queues []string) (WaitingByRule, error) {
	var w WaitingByRule
	byRule := make(map[string]*RuleCount)
	for _, q := range queues[:min(len(queues), queuesLooked)] {
		n, err := queuescripts.Count(ctx, i.rdb, i.keys(q))
		if err != nil {
			return w, away("count a queue", err)
		}
		tasks, all, err := firstDeferred(ctx, i, q)
		if err != nil {
			return w, err
		}
		w.Now = n.Now
		w.Queues = append(w.Queues, SampledQueue{q, max(n.Waiting, len(tasks)), len(tasks)})
		if !all {
			if last := tasks[len(tasks)-1].At; w.Until.IsZero() || last.Before(w.Until) {
				w.Until = last
			}
		}
		for _, t := range tasks {
			if t.State == "" {
				continue // somebody deleted it: a pool will find that out
			}
			rule := holder(t)
			if byRule[rule] == nil {
				byRule[rule] = &RuleCount{Rule: rule, Next: t.At}
			}
			byRule[rule].add(t, n.Now)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(byRule)) {
		w.Rules = append(w.Rules, *byRule[rule])
	}
	return w, nil
}

// firstDeferred are the tasks of a queue that start first, up to [WaitingByRuleMax], and
// whether that is all of them.
func firstDeferred(ctx context.Context, i *Inspector, queue string) (tasks []queuescripts.DueTask, all bool, err error) {
	from, skip := time.Time{}, 0
	seen := make(map[string]bool, WaitingByRuleMax)
	for range WaitingByRuleMax / pageMax {
		r, err := queuescripts.ScanDeferredWithStates(ctx, i.rdb, i.keys(queue), from, skip, pageMax)
		if err != nil {
			return nil, false, away("list what waits", err)
		}
		for _, t := range r.Tasks {
			if !t.At.Equal(from) {
				from, skip = t.At, 0
			}
			skip++
			if !seen[t.ID] { // it may have moved behind the portion before
				seen[t.ID] = true
				tasks = append(tasks, t)
			}
		}
		if len(r.Tasks) < pageMax {
			return tasks, true, nil
		}
	}
	return tasks, false, nil
}

// add counts a task.
func (c *RuleCount) add(t queuescripts.DueTask, now time.Time) {
	c.Waiting++
	for _, n := range []struct {
		within time.Duration
		count  *int
	}{{time.Second, &c.Within1s}, {time.Minute, &c.Within1m}, {time.Hour, &c.Within1h}} {
		if !t.At.After(now.Add(n.within)) {
			*n.count++
		}
	}
	if t.At.Before(c.Next) {
		c.Next = t.At
	}
	if since := t.Wait.Since; !since.IsZero() && (c.Since.IsZero() || since.Before(c.Since)) {
		c.Since = since
	}
}

// holder is the rule that a task waits for, as it was written when its instant was set; ""
// when it waits for none.
func holder(t queuescripts.DueTask) string {
	record, ok := queuescripts.ParseWaitRecord(t.Record)
	if !ok {
		return ""
	}
	return t.Wait.RuleOf(record.Booking)
}
