package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/throttle"
)

// queuesMax bounds how many queues an overview has.
const queuesMax = 100

// QueueStatus is what a queue holds. Deferred and booked tasks are not failures: they
// wait for a limit or a gate.
type QueueStatus struct {
	Queue    string `json:"queue"`
	Paused   bool   `json:"paused"`
	Pending  int    `json:"pending"` // can be taken now: a queue with many lacks workers
	Active   int    `json:"active"`
	Waiting  int    `json:"waiting"`   // deferred or booked: they wait for their instants
	Overdue  int    `json:"overdue"`   // of those, whose instants have come
	Within1s int    `json:"within_1s"` // of those that wait, who come due within a second; the overdue ones among them
	Within1m int    `json:"within_1m"`
	Within1h int    `json:"within_1h"`
	// Scheduled and Retrying are asynq's, without those that wait: scheduled by their
	// producers, and tried again after a failure. Each other set also holds tasks
	// that wait, so only their sum is known.
	Other    int       `json:"scheduled_or_retrying"`
	Archived int       `json:"archived"`
	Next     time.Time `json:"next,omitzero"` // the first instant of those that wait
	Now      time.Time `json:"now"`           // Redis' clock
}

// Queues returns what the queues hold, in the order of their names; at most 100 of them.
// Each costs O(log n) in what it holds.
func (i *Inspector) Queues(ctx context.Context) ([]QueueStatus, error) {
	names, err := i.asynq.Queues()
	if err != nil {
		return nil, away("list the queues", err)
	}
	slices.Sort(names)
	names = names[:min(len(names), queuesMax)]
	all := make([]QueueStatus, 0, len(names))
	for _, name := range names {
		n, err := luascripts.CountQueue(ctx, i.rdb, i.keys(name), 0, time.Second, time.Minute, time.Hour)
		if err != nil {
			return nil, away("count a queue", err)
		}
		all = append(all, QueueStatus{
			Queue: name, Paused: n.Paused, Pending: n.Pending, Active: n.Active, Waiting: n.Due,
			Overdue: n.Within[0], Within1s: n.Within[1], Within1m: n.Within[2], Within1h: n.Within[3],
			Other: max(0, n.Scheduled+n.Retried-n.Due), Archived: n.Archived, Next: n.First, Now: n.Now,
		})
	}
	return all, nil
}

// Planned returns how many tasks of a queue start in each of the next 60 minutes, by the
// instants that they were told last; the overdue ones count for the first.
func (i *Inspector) Planned(ctx context.Context, queue string) (minutes [60]int, err error) {
	var spans [60]time.Duration
	for n := range spans {
		spans[n] = time.Duration(n+1) * time.Minute
	}
	n, err := luascripts.CountQueue(ctx, i.rdb, i.keys(queue), spans[:]...)
	if err != nil {
		return minutes, away("count a queue", err)
	}
	before := 0
	for k, until := range n.Within {
		minutes[k], before = until-before, until
	}
	return minutes, nil
}

// RuleStatus is the limit of a rule as it is in force.
type RuleStatus struct {
	Rule    string         `json:"rule"`
	InCode  throttle.Limit `json:"in_code"`         // of the policies here
	Limit   throttle.Limit `json:"limit"`           // that decides
	Stored  bool           `json:"stored"`          // it is stored, and goes before the one in code
	Closed  time.Time      `json:"closed,omitzero"` // until when the rule is closed on all keys
	Problem string         `json:"problem,omitempty"`
}

// Rules returns the limits of all rules of the policies, in the order of their names. It
// asks Redis once.
func (i *Inspector) Rules(ctx context.Context) []RuleStatus {
	limiters := i.set.Limiters()
	slices.SortFunc(limiters, func(a, b *throttle.Limiter) int { return cmp.Compare(a.Rule(), b.Rule()) })
	all := make([]RuleStatus, len(limiters))
	for n, s := range throttle.ForWorkers.LimitStatuses(ctx, limiters) {
		all[n] = RuleStatus{Rule: limiters[n].Rule(), InCode: limiters[n].Limit(), Limit: s.Limit, Stored: s.Stored, Closed: s.Closed}
		if s.Err != nil {
			all[n].Problem = s.Err.Error()
		}
	}
	return all
}

// Process is a process that runs, as it says itself every few seconds.
type Process = presence.Process

// Processes returns the pools, feeders and schedulers that run, at most 500, and how many
// there are. A process that died is listed for up to 20 s.
func (i *Inspector) Processes(ctx context.Context) (running []Process, all int, err error) {
	said, all, err := luascripts.Processes(ctx, i.rdb, i.cfg.Prefix)
	if err != nil {
		return nil, 0, away("list the processes", err)
	}
	for _, text := range said {
		var p Process
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			return nil, 0, fmt.Errorf("inspect: a process of another version: %w", err)
		}
		running = append(running, p)
	}
	slices.SortFunc(running, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID))
	})
	return running, all, nil
}
