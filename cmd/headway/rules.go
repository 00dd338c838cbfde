package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/throttle"
)

type rulesAnswer struct {
	Rules   []inspect.RuleStatus   `json:"rules"`
	Waiting *inspect.WaitingByRule `json:"waiting,omitempty"`
	Left    int                    `json:"queues_left_out,omitempty"` // queues that Waiting does not count
}

func (r rulesAnswer) table(t *table) {
	rulesTable(t, r.Rules)
	if r.Waiting != nil && len(r.Waiting.Queues) > 0 {
		t.line("")
		r.waiting(t)
	}
}

// waiting shows for which rules tasks wait. A number with a plus is the least.
func (r rulesAnswer) waiting(t *table) {
	w := *r.Waiting
	count := func(n int, exact bool) string { return strconv.Itoa(n) + yes(!exact || r.Left > 0, "+") }
	t.row("WAIT FOR", "WAITING", "<1s", "<1m", "<1h", "NEXT")
	for _, c := range w.Rules {
		t.row(cmp.Or(c.Rule, "(no limit)"), count(c.Waiting, w.Until.IsZero()), count(c.Within1s, w.Counts(time.Second)),
			count(c.Within1m, w.Counts(time.Minute)), count(c.Within1h, w.Counts(time.Hour)), when(c.Next, w.Now))
	}
	for _, q := range w.Queues {
		if q.Looked < q.Waiting {
			t.line("of the %d tasks that wait on queue %s, the %d that start first were looked at", q.Waiting, q.Queue, q.Looked)
		}
	}
	if r.Left > 0 {
		t.line("%s more not looked at", e2e.Count(r.Left, "queue"))
	}
}

// withWaiting adds for which rules tasks wait, on some queues, or without names on all.
func (r rulesAnswer) withWaiting(ctx context.Context, i *inspect.Inspector, on ...string) (answer, error) {
	var queues []inspect.QueueStatus
	var err error
	left := 0
	if len(on) > 0 {
		queues, err = i.Queues(ctx, on...)
	} else {
		queues, left, err = countQueues(ctx, i)
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, q := range queues {
		if q.Waiting > 0 {
			names = append(names, q.Queue)
		}
	}
	w, err := i.WaitingByRule(ctx, names...)
	if err != nil {
		return nil, err
	}
	r.Waiting, r.Left = &w, left+len(names)-len(w.Queues)
	return r, nil
}

// rules answers about one rule, or about all when the name is empty.
func (a *app) rules(ctx context.Context, rule string) (got rulesAnswer, err error) {
	i, err := a.inspector(ctx)
	if err != nil {
		return got, err
	}
	for _, r := range i.Rules(ctx) {
		if rule == "" || r.Rule == rule {
			got.Rules = append(got.Rules, r)
		}
	}
	switch {
	case ctx.Err() != nil: // a rule that was not asked in time is nothing to tell
		return got, ctx.Err()
	case rule == "":
		return got, nil // the others are told all the same
	case len(got.Rules) == 0:
		return got, a.unknownRule(fmt.Errorf("no policy here has a limit named %q", rule))
	case errors.Is(got.Rules[0].Err, throttle.ErrUnavailable):
		return got, got.Rules[0].Err
	}
	return got, nil
}

// completeRules completes the names of rules.
func (a *app) completeRules(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	i, err := a.inspector(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, r := range i.Rules(cmd.Context()) {
		names = append(names, r.Rule)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func rulesCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "rules", Short: "the limit in force of each rule, and how many tasks wait for it", Args: cobra.NoArgs,
		Long: `rules shows the limit in force of each rule, and how many tasks wait for it.

The tasks are counted by looking at the 1000 of each queue that start first, of 10 queues
at most. Behind a number that is the least, because more tasks may wait, stands a plus.
(no limit) are tasks that a gate, a paused batch or a provider's Retry-After holds.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var on []string
			if cmd.Flags().Changed("queue") {
				on = []string{a.queue}
			}
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				got, err := a.rules(ctx, "")
				if err != nil {
					return nil, err
				}
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				return got.withWaiting(ctx, i, on...)
			})
		},
	}
}

func limitCommand(a *app) *cobra.Command {
	limit := &cobra.Command{
		Use: "limit", Short: "read, store or take away the limit of a rule",
		Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return badUsage("want limit get, limit set or limit unset") },
	}
	get := &cobra.Command{
		Use: "get RULE", Short: "the limit in force", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeRules,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				got, err := a.rules(ctx, args[0])
				if err != nil {
					return nil, err
				}
				return got, nil
			})
		},
	}
	var d time.Duration
	set := &cobra.Command{
		Use: "set RULE LIMIT", Short: `store a limit such as "10/1m", which goes before the one in code`, Args: cobra.ExactArgs(2),
		ValidArgsFunction: a.completeRules,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := throttle.ParseLimit(args[1])
			if err != nil {
				return err
			}
			return a.act(cmd.Context(), args[0], func(ctx context.Context, i *inspect.Inspector, why inspect.Reason) error {
				return i.SetLimit(ctx, args[0], l, d, why)
			})
		},
	}
	set.Flags().DurationVar(&d, "for", 0, "let it count for a `DURATION` (default until it is unset)")
	unset := &cobra.Command{
		Use: "unset RULE", Short: "take the stored limit away: the one in code counts again", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeRules,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.act(cmd.Context(), args[0], func(ctx context.Context, i *inspect.Inspector, why inspect.Reason) error {
				return i.UnsetLimit(ctx, args[0], why)
			})
		},
	}
	limit.AddCommand(get, set, unset)
	return limit
}

// act makes a change and answers with what the rule is then.
func (a *app) act(ctx context.Context, rule string, do func(context.Context, *inspect.Inspector, inspect.Reason) error) error {
	why, err := a.why()
	if err != nil {
		return err
	}
	i, err := a.inspector(ctx)
	if err != nil {
		return err
	}
	if err := do(ctx, i, why); err != nil {
		return a.unknownRule(err)
	}
	if rule == "" {
		return nil
	}
	got, err := a.rules(ctx, rule)
	if err != nil {
		return err
	}
	return a.output.print(a.stdout, got, false)
}

func closeCommand(a *app) *cobra.Command {
	var d time.Duration
	c := &cobra.Command{
		Use: "close RULE [KEY]", Short: "let nothing through on a rule, or on a key of it, for a time", Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeRules,
		RunE: func(cmd *cobra.Command, args []string) error {
			if d <= 0 {
				return usageError{errors.New("give --for DURATION: what is closed opens by itself then")}
			}
			return a.act(cmd.Context(), args[0], func(ctx context.Context, i *inspect.Inspector, why inspect.Reason) error {
				if len(args) == 1 {
					_, err := i.CloseRule(ctx, args[0], d, why)
					return err
				}
				until, err := i.CloseKey(ctx, args[0], args[1], d, why)
				if err == nil && a.output.format == "table" {
					_, err = fmt.Fprintf(a.stdout, "%s is closed on %s until %s\n", args[0], a.key(args[1]), until.UTC().Format(time.RFC3339))
				}
				return err
			})
		},
	}
	c.Flags().DurationVar(&d, "for", 0, "keep it closed for a `DURATION`")
	return c
}

func openCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "open RULE [KEY]", Short: "end a closing before its time", Args: cobra.RangeArgs(1, 2), ValidArgsFunction: a.completeRules,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.act(cmd.Context(), args[0], func(ctx context.Context, i *inspect.Inspector, why inspect.Reason) error {
				if len(args) == 1 {
					return i.OpenRule(ctx, args[0], why)
				}
				if err := i.OpenKey(ctx, args[0], args[1], why); err != nil || a.output.format != "table" {
					return err
				}
				return a.remains(ctx, i, args[0], args[1])
			})
		},
	}
}

// remains prints what still closes a key that was opened.
func (a *app) remains(ctx context.Context, i *inspect.Inspector, rule, key string) error {
	k, err := i.Key(ctx, rule, key)
	if err != nil {
		return nil //nolint:nilerr // the change was made, and this only adds to it
	}
	for _, text := range closingsOf(k.Closed, k.OwnClosed, k.RuleClosed, k.Held, k.HoldUnknown).texts(k.Now) {
		if _, err := fmt.Fprintf(a.stdout, "%s on %s: %s\n", rule, a.key(key), text); err != nil {
			return err
		}
	}
	return nil
}

func pauseCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "pause [RULE KEY]", Short: "let workers take nothing more from --queue, or let nothing through on a key", Args: noneOrTwo,
		ValidArgsFunction: a.completeRules,
		Long: `pause stops a whole queue, or what needs permits of a rule on a key, until resume. A queue
in which nothing was ever enqueued, and that nothing serves, is not found.

A key is paused for a year at most, which is a closing of a year: see "headway close".`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.changeQueue(cmd.Context(), "paused", (*inspect.Inspector).PauseQueue)
			}
			return a.act(cmd.Context(), "", func(ctx context.Context, i *inspect.Inspector, why inspect.Reason) error {
				if err := i.PauseKey(ctx, args[0], args[1], why); err != nil {
					return err
				}
				return a.output.print(a.stdout, keyChanged{args[0], a.key(args[1]), "paused"}, false)
			})
		},
	}
}

func resumeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "resume [RULE KEY]", Short: "end the pause of --queue, or of a key", Args: noneOrTwo, ValidArgsFunction: a.completeRules,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.changeQueue(cmd.Context(), "resumed", (*inspect.Inspector).ResumeQueue)
			}
			return a.act(cmd.Context(), "", func(ctx context.Context, i *inspect.Inspector, why inspect.Reason) error {
				if err := i.OpenKey(ctx, args[0], args[1], why); err != nil {
					return err
				}
				if err := a.output.print(a.stdout, keyChanged{args[0], a.key(args[1]), "open"}, false); err != nil || a.output.format != "table" {
					return err
				}
				return a.remains(ctx, i, args[0], args[1])
			})
		},
	}
}

// changeQueue pauses or resumes --queue, and says so.
func (a *app) changeQueue(ctx context.Context, is string, do func(*inspect.Inspector, context.Context, string, inspect.Reason) error) error {
	if strings.TrimSpace(a.queue) == "" {
		return badUsage("--queue is blank, want the name of a queue")
	}
	return a.act(ctx, "", func(ctx context.Context, i *inspect.Inspector, why inspect.Reason) error {
		if err := a.knowQueue(ctx, i); err != nil {
			return err
		}
		if err := do(i, ctx, a.queue, why); err != nil {
			return err
		}
		return a.output.print(a.stdout, queueChanged{a.queue, is}, false)
	})
}

// knowQueue refuses a --queue that does not exist. Otherwise a name with a typing error would be
// paused, and the queue that was meant would go on. A queue exists when asynq knows it, or when
// something serves it. A queue that is paused counts as well, so that every pause can be ended.
func (a *app) knowQueue(ctx context.Context, i *inspect.Inspector) error {
	there, err := i.HasQueue(ctx, a.queue)
	if err != nil || there {
		return err
	}
	return fmt.Errorf("%w: queue %q: nothing was ever enqueued there, and no pool serves it", errMissing, a.queue)
}

// queueChanged is what a queue is after a change.
type queueChanged struct {
	Queue string `json:"queue"`
	Is    string `json:"is"`
}

func (q queueChanged) table(t *table) { t.line("queue %s is %s", q.Queue, q.Is) }

// keyChanged is what a key is after a change.
type keyChanged struct {
	Rule string `json:"rule"`
	Key  string `json:"key"`
	Is   string `json:"is"`
}

func (k keyChanged) table(t *table) { t.line("%s is %s on %s", k.Rule, k.Is, k.Key) }

// noneOrTwo are a rule and a key, or none.
func noneOrTwo(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return cobra.ExactArgs(2)(cmd, args)
}

// changed is what a change of tasks did.
type changed struct {
	Did   string `json:"did"`
	Tasks int    `json:"tasks"`
}

func (c changed) table(t *table) { t.line("%s %s", e2e.Count(c.Tasks, "task"), c.Did) }

// tasksCommand changes a task, or all that waits on a key.
func (a *app) tasksCommand(use, short, long, did string,
	one func(*inspect.Inspector, context.Context, string, string, inspect.Reason) error,
	all func(*inspect.Inspector, context.Context, string, string, string, inspect.Reason) (int, error),
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			got := changed{Did: did}
			err := a.act(cmd.Context(), "", func(ctx context.Context, i *inspect.Inspector, why inspect.Reason) (err error) {
				if len(args) == 2 {
					got.Tasks, err = all(i, ctx, a.queue, args[0], args[1], why)
				} else if err = one(i, ctx, a.queue, args[0], why); err == nil {
					got.Tasks = 1
				}
				return err
			})
			if errors.Is(err, inspect.ErrNotWaiting) {
				return a.notWaiting(args[0], err)
			}
			if err != nil && got.Tasks == 0 {
				return err
			}
			return errors.Join(err, a.output.print(a.stdout, got, false))
		},
	}
}

// notWaiting says which task it is that does not wait.
func (a *app) notWaiting(id string, err error) error {
	return fmt.Errorf("%w: task %q on queue %q: %w", errMissing, id, a.queue, err)
}

func cancelCommand(a *app) *cobra.Command {
	return a.tasksCommand("cancel TASK | RULE KEY", "delete a task of --queue that waits, or all that waits on a key",
		`cancel deletes a task of a queue that does not run, or all tasks of the queue that wait
and need permits of a rule on a key. Their places are given up, and those behind them
move up. A task that runs is left alone. With a rule and a key, a task is not found while it
has no place: while a closed gate, a paused batch or an outage holds it, or until its ProcessAt.`,
		"cancelled", (*inspect.Inspector).Cancel, (*inspect.Inspector).CancelKey)
}

func frontCommand(a *app) *cobra.Command {
	return a.tasksCommand("front TASK | RULE KEY", "give a task of --queue the first place in its line, or all that waits on a key",
		`front gives a task that waits the first place in the line in which it stands. With a rule
and a key it does so for all tasks of the queue that wait and need permits of the rule on
that key; they keep their order. No limit is broken by that: others come later. A task that has
no place yet, as while a gate is closed, is not found.`,
		"moved to the front", (*inspect.Inspector).Front, (*inspect.Inspector).FrontKey)
}

func runNowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "run-now TASK", Short: "let a task of --queue that waits run now, in spite of its rules", Args: cobra.ExactArgs(1),
		Long: `run-now lets one task that waits run at once, in spite of its limits, its gates and a pause of
its batch. That breaks the limits on purpose: pools count it as forced. It spends no
permits, and those behind it move up. It counts for one attempt.

"headway front" breaks no limit: try that first.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := a.act(cmd.Context(), "", func(ctx context.Context, i *inspect.Inspector, why inspect.Reason) error {
				return i.RunNow(ctx, a.queue, args[0], why)
			})
			if errors.Is(err, inspect.ErrNotWaiting) {
				return a.notWaiting(args[0], err)
			}
			if err != nil {
				return err
			}
			return a.output.print(a.stdout, changed{Did: "let run now", Tasks: 1}, false)
		},
	}
}
