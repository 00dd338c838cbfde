package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/e2e"
)

type statusAnswer struct {
	Queues []inspect.QueueStatus `json:"queues"`
	Left   int                   `json:"queues_left_out,omitempty"`
	Rules  []inspect.RuleStatus  `json:"rules"`
	Pools  int                   `json:"processes"`
}

func (a statusAnswer) table(t *table) {
	t.row("QUEUE", "PENDING", "ACTIVE", "WAITING", "OVERDUE", "<1s", "<1m", "<1h", "OTHER", "ARCHIVED", "NEXT")
	for _, q := range a.Queues {
		name := q.Queue
		if q.Paused {
			name += " " + t.warn("(paused)")
		}
		t.row(name, q.Pending, q.Active, q.Waiting, q.Overdue, q.Within1s, q.Within1m, q.Within1h, q.Other, q.Archived, when(q.Next, q.Now))
	}
	if a.Left > 0 {
		t.line("%s more not looked at", e2e.Count(a.Left, "queue"))
	}
	t.line("")
	rulesTable(t, a.Rules)
	t.line("")
	t.line("%s", counted(a.Pools, "process runs", "processes run"))
}

// countQueues returns what queues hold, the first 100 of them by name, and how many there are
// besides.
func countQueues(ctx context.Context, i *inspect.Inspector) (counts []inspect.QueueStatus, left int, err error) {
	names, err := i.QueueNames(ctx)
	if err != nil || len(names) == 0 {
		return []inspect.QueueStatus{}, 0, err
	}
	counts, err = i.Queues(ctx, names...)
	return counts, len(names) - len(counts), err
}

func rulesTable(t *table, rules []inspect.RuleStatus) {
	t.row("RULE", "LIMIT", "", "CLOSED UNTIL")
	for _, r := range rules {
		note := ""
		switch {
		case r.File && r.InCode != r.Limit:
			note = t.warn("of a policy file that was edited, in code " + r.InCode.String())
		case r.Stored && !r.File:
			note = t.warn("stored, in code " + r.InCode.String())
		}
		if r.Problem != "" {
			note = t.bad(r.Problem)
		}
		closed := "-"
		if !r.Closed.IsZero() {
			closed = t.bad(r.Closed.UTC().Format(time.RFC3339))
		}
		t.row(r.Rule, r.Limit.String(), note, closed)
	}
}

func statusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "queues, limits and processes at one look", Args: cobra.NoArgs,
		Long: `status counts the tasks of each queue.

WAITING are deferred and booked tasks: a limit or a gate holds them, and they start at
their instants. They are not failures. OVERDUE, <1s, <1m and <1h are those of them that
come due until then. OTHER are scheduled by their producers, or tried again after a
failure. Many PENDING tasks mean that workers are missing. Of more than 100 queues the
first 100 by name are counted.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				got := statusAnswer{Rules: i.Rules(ctx)}
				if got.Queues, got.Left, err = countQueues(ctx, i); err != nil {
					return nil, err
				}
				_, got.Pools, err = i.Processes(ctx)
				return got, err
			})
		},
	}
}

type drainAnswer struct {
	Queue string `json:"queue"`
	Left  int    `json:"left"`
}

func (d drainAnswer) table(t *table) {
	if d.Left == 0 {
		t.line("queue %s is empty", d.Queue)
		return
	}
	t.line("queue %s is not empty: left are %s", d.Queue, e2e.Count(d.Left, "task"))
}

// drainEvery is how often drain looks.
const drainEvery = time.Second

func drainCommand(a *app) *cobra.Command {
	var d time.Duration
	c := &cobra.Command{
		Use: "drain", Short: "wait until nothing is left in --queue", Args: cobra.NoArgs,
		Long: `drain waits until no task of the queue is pending, active, waiting, scheduled or tried again,
and exits with 0. It changes nothing: pools have to run the tasks, and producers to stop.
Archived tasks do not count.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			switch {
			case d < 0:
				return badUsage("--for is %v, want more than 0, or leave it out", d)
			case d > 0:
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, d)
				defer cancel()
			}
			for {
				i, err := a.inspector(cmd.Context())
				if err != nil {
					return err
				}
				left, err := i.Left(cmd.Context(), a.queue)
				if err != nil {
					return err
				}
				if err := cmd.Context().Err(); err != nil && left > 0 {
					return err // Ctrl-C, and not the end of --for
				}
				if left == 0 || ctx.Err() != nil {
					if err := a.output.print(a.stdout, drainAnswer{a.queue, left}, false); err != nil || left == 0 {
						return err
					}
					return errNotWell
				}
				select {
				case <-ctx.Done():
				case <-time.After(drainEvery):
				}
			}
		},
	}
	c.Flags().DurationVar(&d, "for", 0, "wait at most a `DURATION`, and exit with 1 when tasks are left (default without end)")
	return c
}

type poolsAnswer struct {
	Processes   []inspect.Process    `json:"processes"`
	All         int                  `json:"all"`
	Differences []inspect.Difference `json:"differences,omitempty"`
}

// runsMax is how many policies, sources or entries of a process the table names.
const runsMax = 5

func (a poolsAnswer) table(t *table) {
	t.row("KIND", "HOST", "PID", "VERSION", "SINCE", "SERVERS", "BUSY", "CONNS", "CLOCK", "QUEUES", "RUNS")
	for _, p := range a.Processes {
		var runs []string // the policies of a pool, the sources of a feeder, the entries of a scheduler
		for _, policy := range p.Policies {
			runs = append(runs, policy.Type)
		}
		for _, e := range p.Entries {
			runs = append(runs, e.Name)
		}
		t.row(p.Kind, p.Host, p.PID, p.Version, p.Since.UTC().Format(time.RFC3339), p.Servers, fmt.Sprintf("%d/%d", p.Busy, p.Workers), p.Connections, clockOf(p),
			strings.Join(slices.Sorted(maps.Keys(p.Queues)), ","), strings.Join(runs[:min(len(runs), runsMax)], ","))
	}
	if len(a.Processes) < a.All {
		t.line("... and %d more", a.All-len(a.Processes))
	}
	if len(a.Differences) > 0 {
		t.line("")
		differencesTable(t, a.Differences)
	}
}

// clockOf is how far the clock of a process is ahead of Redis', and how exact that is.
func clockOf(p inspect.Process) string {
	if p.ClockWithin == 0 {
		return "-"
	}
	return fmt.Sprintf("%+dms ±%dms", p.ClockAhead.Round(time.Millisecond).Milliseconds(), (p.ClockWithin+time.Millisecond-1)/time.Millisecond)
}

func differencesTable(t *table, all []inspect.Difference) {
	t.row("POOL", "RULE", "RUNS WITH", "WANT")
	for _, d := range all {
		t.row(cmp.Or(d.Pool, "-"), cmp.Or(d.Rule, "policy of "+d.Type), t.bad(d.Got), cmp.Or(d.Want, "(no policy)"))
	}
}

func poolsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "pools", Short: "the pools, feeders and schedulers that run, and which pool has other numbers", Args: cobra.NoArgs,
		Long: `pools lists the processes that said within 20 seconds that they run: pools with their
policies, feeders with their sources, schedulers with their entries. Of rules that run with
several numbers it shows the pools that differ from most.

CLOCK is how far the clock of the process is ahead of Redis', and how exact that is.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				running, all, err := i.Processes(ctx)
				a.maskConstants(running)
				return poolsAnswer{running, all, inspect.Differences(nil, running)}, err
			})
		},
	}
}

// maskConstants masks the keys that processes say of their rules.
func (a *app) maskConstants(running []inspect.Process) {
	for _, p := range running {
		for _, policy := range p.Policies {
			for n := range policy.Rules {
				policy.Rules[n].Constant = a.key(policy.Rules[n].Constant)
			}
		}
	}
}

type auditAnswer struct {
	Changes []inspect.Change `json:"changes"`
}

func (a auditAnswer) table(t *table) {
	t.row("AT", "WHO", "ACTION", "ON", "VALUE", "UNTIL", "WAS", "WHY", "")
	for _, c := range a.Changes {
		on := slices.DeleteFunc([]string{c.Rule, c.Key, c.Queue, c.Task, c.Batch}, func(name string) bool { return name == "" })
		until := func(at time.Time) string {
			if at.IsZero() {
				return ""
			}
			return at.UTC().Format(time.RFC3339)
		}
		was := c.Before
		if end := until(c.BeforeUntil); end != "" {
			was = cmp.Or(was, "closed") + " until " + end
		}
		t.row(cmp.Or(until(c.At), "-"), c.Who, string(c.Action), strings.Join(on, " "),
			cmp.Or(c.Value, "-"), cmp.Or(until(c.Until), "-"), cmp.Or(was, "-"), c.Why, t.bad(c.Failed))
	}
}

func auditCommand(a *app) *cobra.Command {
	most, skip := 20, 0
	c := &cobra.Command{
		Use: "audit", Short: "who changed what, when and why", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				changes, err := i.Audit(ctx, skip, most)
				for n := range changes {
					changes[n].Key = a.key(changes[n].Key)
				}
				return auditAnswer{changes}, err
			})
		},
	}
	c.Flags().IntVar(&most, "most", most, "list at most `N` changes, 1 to 250")
	c.Flags().IntVar(&skip, "skip", skip, "leave out the last `N` changes")
	return c
}
