package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue/batch"
)

type lineAnswer struct {
	Rule string    `json:"rule"`
	Key  string    `json:"key"`
	All  int       `json:"all"`
	Now  time.Time `json:"now"`
	Jobs []lineJob `json:"jobs"`
	Next string    `json:"next,omitempty"`
	closings
}

type lineJob struct {
	Queue  string    `json:"queue,omitempty"`
	Task   string    `json:"task,omitempty"` // empty for a caller that blocks
	Cost   int       `json:"cost,omitempty"`
	At     time.Time `json:"at"`
	Parked bool      `json:"parked,omitempty"`
	Rules  []string  `json:"rules,omitempty"` // that it needs, of a queue's task
}

// waits is the verb for so many that wait.
func waits(n int) string {
	if n == 1 {
		return "waits"
	}
	return "wait"
}

func (l lineAnswer) table(t *table) {
	t.line("%s %s for %s on %s", e2e.Count(l.All, "job"), waits(l.All), l.Rule, l.Key)
	for _, text := range l.texts(l.Now) {
		t.line("%s", t.bad(text))
	}
	if len(l.Jobs) > 0 {
		t.row("TASK", "QUEUE", "COST", "STARTS", "")
	}
	for _, j := range l.Jobs {
		id := j.Task
		if id == "" {
			id = "(a caller that blocks)"
		}
		t.row(id, j.Queue, j.Cost, when(j.At, l.Now), yes(j.Parked, t.warn("too late")))
	}
	if l.Next != "" {
		t.line("more: --from %s", l.Next)
	}
}

func lineCommand(a *app) *cobra.Command {
	most, from, all := 20, "", false
	c := &cobra.Command{
		Use: "line RULE KEY", Short: "who waits on a key of a rule, in their order", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeRules,
		Long: `line lists the jobs that wait for permits of a rule on a key. A task that has to wait for
another of its rules stands in that rule's line. It says also until when the key is closed,
and its rule, and until when pools hold the key after a failover of Redis.

With --all it lists all tasks of --queue that wait and need permits of the rule on the
key, whichever rule they wait for. It reads all that waits on the queue.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all && from != "" {
				return badUsage("--all has no pages: take --from away, and give a larger --most")
			}
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				if all {
					return onKey(ctx, a, i, args[0], args[1], most)
				}
				page, err := i.LinePage(ctx, args[0], args[1], inspect.Cursor(from), most)
				if err != nil {
					return nil, a.unknownRule(err)
				}
				got := lineAnswer{Rule: args[0], Key: a.key(args[1]), All: page.All, Now: page.Now.UTC(), Jobs: []lineJob{}, Next: string(page.Next)}
				k, err := i.Key(ctx, args[0], args[1])
				if err != nil {
					return nil, err
				}
				got.closings = closingsOf(k.Closed, k.OwnClosed, k.RuleClosed, k.Held, k.HoldUnknown)
				for _, w := range page.Waiting {
					got.Jobs = append(got.Jobs, lineJob{Queue: w.Queue, Task: w.ID, Cost: w.Cost, At: w.At.UTC(), Parked: w.Parked})
				}
				return got, nil
			})
		},
	}
	c.Flags().IntVar(&most, "most", most, "list at most `N` jobs, 1 to 250")
	c.Flags().BoolVar(&all, "all", false, "list also the tasks of --queue that wait for another of their rules")
	c.Flags().StringVar(&from, "from", "", "begin at the `CURSOR` that a page ended with")
	return c
}

type onKeyAnswer struct {
	Rule  string    `json:"rule"`
	Key   string    `json:"key"`
	Queue string    `json:"queue"`
	All   int       `json:"all"`
	Tasks []lineJob `json:"tasks"` // the first of them
}

func (o onKeyAnswer) table(t *table) {
	need := "need"
	if o.All == 1 {
		need = "needs"
	}
	t.line("%s of queue %s %s and %s %s on %s", e2e.Count(o.All, "task"), o.Queue, waits(o.All), need, o.Rule, o.Key)
	if len(o.Tasks) > 0 {
		t.row("TASK", "WOKEN", "RULES")
	}
	for _, j := range o.Tasks {
		t.row(j.Task, j.At.Format("2006-01-02 15:04:05.000Z"), strings.Join(j.Rules, " "))
	}
	if len(o.Tasks) < o.All {
		t.line("... and %d more", o.All-len(o.Tasks))
	}
}

func onKey(ctx context.Context, a *app, i *inspect.Inspector, rule, key string, most int) (answer, error) {
	got := onKeyAnswer{Rule: rule, Key: a.key(key), Queue: a.queue, Tasks: []lineJob{}}
	for w, err := range i.OnKey(ctx, a.queue, rule, key) {
		if err != nil {
			return nil, a.unknownRule(err)
		}
		if got.All++; got.All <= most {
			got.Tasks = append(got.Tasks, lineJob{Queue: w.Queue, Task: w.ID, At: w.At.UTC(), Rules: w.Rules})
		}
	}
	return got, nil
}

type batchesAnswer struct {
	Queue   string           `json:"queue"`
	Batches []batch.Progress `json:"batches"`
	More    bool             `json:"more,omitempty"`
}

func (b batchesAnswer) table(t *table) {
	t.row("BATCH", "TYPE", "STATE", "READ", "OF", "OPEN", "DONE", "FAILED", "REFUSED", "RATE", "ENDS")
	for _, p := range b.Batches {
		state := string(p.State)
		if p.State == batch.Running && !p.Fed {
			state += " " + t.bad("(no feeder)")
		}
		t.row(p.ID, p.Type, state, p.Read, p.Total, p.Open, p.Done, p.Failed, refusedText(p), fmt.Sprintf("%.1f/s", p.Rate), when(p.ExpectedEnd, p.Now))
	}
	if b.More {
		t.line("... and more")
	}
}

// refusedText is how many elements were refused, and why: "3: 2 invalid, 1 too late".
func refusedText(p batch.Progress) string {
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(p.RefusedFor)) {
		reasons = append(reasons, fmt.Sprintf("%d %s", p.RefusedFor[reason], reason))
	}
	if len(reasons) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: %s", p.Refused, strings.Join(reasons, ", "))
}

func batchesCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "batches", Short: "how far the batches of a queue are", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				got := batchesAnswer{Queue: a.queue, Batches: []batch.Progress{}}
				all, more, err := i.Batches(ctx, a.queue)
				if err != nil {
					return nil, err
				}
				for _, p := range all {
					p.Args = a.key(p.Args) // of a source, and may name a person
					got.Batches = append(got.Batches, p)
				}
				got.More = more
				return got, nil
			})
		},
	}
}
