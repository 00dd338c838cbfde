package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
)

// explainAnswer is an explanation as JSON has it.
type explainAnswer struct {
	Queue    string    `json:"queue"`
	Task     string    `json:"task"`
	State    string    `json:"state"`
	Says     string    `json:"says"`
	Rule     string    `json:"rule,omitempty"`
	At       time.Time `json:"at,omitzero"`
	Now      time.Time `json:"now"`
	Jobs     int       `json:"jobs_ahead"`
	Permits  int       `json:"permits_ahead"`
	Closed   time.Time `json:"closed,omitzero"`
	Booked   bool      `json:"booked"`
	Parked   bool      `json:"parked"`
	Deadline time.Time `json:"deadline,omitzero"`
}

func explained(q, id string, e inspect.Explanation) explainAnswer {
	return explainAnswer{
		Queue: q, Task: id, State: e.State.String(), Says: says(e), Rule: e.Rule, At: e.At.UTC(), Now: e.Now.UTC(), Jobs: e.Jobs, Permits: e.Permits,
		Closed: e.Closed.UTC(), Booked: e.Booked, Parked: e.Parked, Deadline: e.Deadline.UTC(),
	}
}

// says answers what an operator asks: is something wrong, does it end by itself, and what
// can be done.
func says(e inspect.Explanation) string {
	switch e.State {
	case inspect.StateLimit:
		if e.Parked {
			return "it did not come at its instant, so others pass it; it goes first when it comes: look whether a pool serves its queue"
		}
		return "a limit holds it, and it starts by itself: a higher limit would let it start earlier"
	case inspect.StateSlot:
		return "all slots are taken, and it starts when one is released"
	case inspect.StateClosed:
		return "its rule or key is closed; it starts by itself then: \"headway open\" ends that early"
	case inspect.StateGate:
		return "a gate is shut, and it starts by itself when that opens"
	case inspect.StateNoPlace:
		return "it has no place in a line yet, and asks for its permits at its instant"
	case inspect.StatePending:
		return "a free worker takes it: if it stays so, workers are missing or the queue is paused"
	case inspect.StateActive:
		return "a worker has it"
	case inspect.StateScheduled:
		return "its producer chose when it starts"
	case inspect.StateRetry:
		return "it failed, and asynq tries it again"
	case inspect.StateGroup:
		return "asynq gathers its group"
	case inspect.StateEnded:
		return "it was completed or archived"
	default:
		return "it was never enqueued, or it is done and deleted"
	}
}

func (e explainAnswer) table(t *table) {
	t.row("task", e.Task+" on queue "+e.Queue)
	t.row("state", e.State)
	if e.Rule != "" {
		t.row("rule", e.Rule)
	}
	if !e.At.IsZero() {
		t.row("starts", when(e.At, e.Now))
	}
	if !e.Closed.IsZero() {
		t.row("closed until", t.bad(when(e.Closed, e.Now)))
	}
	if e.Rule != "" {
		t.row("ahead of it", fmt.Sprintf("%d jobs, %d permits", e.Jobs, e.Permits))
	}
	if !e.Deadline.IsZero() {
		t.row("deadline", when(e.Deadline, e.Now))
	}
	if e.Booked {
		t.row("booked", "when it was enqueued")
	}
	t.line("%s", e.Says)
}

func explainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "explain TASK", Short: "why a task does not run, until when, and behind how many", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				e, err := i.Explain(ctx, a.queue, args[0])
				if err != nil {
					return nil, err
				}
				got := explained(a.queue, args[0], e)
				if e.State == inspect.StateMissing {
					return got, fmt.Errorf("task %q on queue %q: %w", args[0], a.queue, errMissing)
				}
				return got, nil
			})
		},
	}
}

type lineAnswer struct {
	Rule string    `json:"rule"`
	Key  string    `json:"key"`
	All  int       `json:"all"`
	Now  time.Time `json:"now"`
	Jobs []lineJob `json:"jobs"`
	Next string    `json:"next,omitempty"`
}

type lineJob struct {
	Queue  string    `json:"queue,omitempty"`
	Task   string    `json:"task,omitempty"` // empty for a caller that blocks
	Cost   int       `json:"cost"`
	At     time.Time `json:"at"`
	Parked bool      `json:"parked,omitempty"`
}

func (l lineAnswer) table(t *table) {
	t.line("%d jobs wait for %s on %s", l.All, l.Rule, l.Key)
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
	most, from := 20, ""
	c := &cobra.Command{
		Use: "line RULE KEY", Short: "who waits on a key of a rule, in their order", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				page, err := i.LinePage(ctx, args[0], args[1], inspect.Cursor(from), most)
				if err != nil {
					return nil, a.unknownRule(err)
				}
				got := lineAnswer{Rule: args[0], Key: a.key(args[1]), All: page.All, Now: page.Now.UTC(), Jobs: []lineJob{}, Next: string(page.Next)}
				for _, w := range page.Waiting {
					got.Jobs = append(got.Jobs, lineJob{Queue: w.Queue, Task: w.ID, Cost: w.Cost, At: w.At.UTC(), Parked: w.Parked})
				}
				return got, nil
			})
		},
	}
	c.Flags().IntVar(&most, "most", most, "list at most `N` jobs, 1 to 250")
	c.Flags().StringVar(&from, "from", "", "begin at the `CURSOR` that a page ended with")
	return c
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
		t.row(p.ID, p.Type, state, p.Read, p.Total, p.Open, p.Done, p.Failed, p.Refused, fmt.Sprintf("%.1f/s", p.Rate), when(p.ExpectedEnd, p.Now))
	}
	if b.More {
		t.line("... and more")
	}
}

// batchesMax bounds how many batches are listed.
const batchesMax = 200

func batchesCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "batches", Short: "how far the batches of a queue are", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				rdb, err := a.open()
				if err != nil {
					return nil, err
				}
				cfg, err := a.config()
				if err != nil {
					return nil, err
				}
				client, err := queue.NewClient(rdb, queue.ClientConfig{Throttle: cfg})
				if err != nil {
					return nil, err
				}
				got := batchesAnswer{Queue: a.queue, Batches: []batch.Progress{}}
				for p, err := range batch.NewControl(client).All(ctx, a.queue) {
					if err != nil {
						return nil, err
					}
					if got.More = len(got.Batches) == batchesMax; got.More {
						break
					}
					got.Batches = append(got.Batches, p)
				}
				return got, nil
			})
		},
	}
}
