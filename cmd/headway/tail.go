package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/internal/tail"
	"github.com/headwayq/headway/throttle"
)

func tailCommand(a *app) *cobra.Command {
	var rate, most int
	var rule string
	var d time.Duration
	c := &cobra.Command{
		Use: "tail", Short: "what pools decide, as it happens; a sample", Args: cobra.NoArgs,
		Long: `tail shows what pools decide while it runs: which tasks are granted, deferred, moved,
postponed or refused, by which rule, and until when. Ctrl-C ends it.

A process shows its decisions to 4 tails at the same time; a fifth one is told so. Each
process shows at most --rate decisions in a second, so it is a sample where more
happens: "+312 not shown" counts the others of that process. Without tail nothing is
published, and a lost line is lost: count by the metrics or "headway history".
Keys are never shown. With -o json each line is a JSON object.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			switch {
			case rate < 1 || rate > tail.RateMax:
				return badUsage("--rate is %d, want 1 to %d", rate, tail.RateMax)
			case a.watch != 0:
				return badUsage("tail goes on by itself: take --watch away")
			case d < 0:
				return badUsage("--for is %v, want more than 0, or leave it out", d)
			case most < 0:
				return badUsage("--most is %d, want more than 0, or leave it out", most)
			case d > 0:
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, d)
				defer cancel()
			}
			ask := tail.Ask{Rate: rate, Rule: rule}
			if cmd.Flags().Changed("queue") {
				ask.Queue = a.queue
			}
			warnOfRule(ctx, a, rule)
			return showTail(ctx, a, ask, most)
		},
	}
	c.Flags().IntVar(&rate, "rate", 10, "show at most `N` decisions a second of each process, 1 to 100")
	c.Flags().StringVar(&rule, "rule", "", "show only decisions by a `RULE`")
	c.Flags().DurationVar(&d, "for", 0, "end after a `DURATION` (default at Ctrl-C)")
	c.Flags().IntVar(&most, "most", 0, "end after `N` decisions (default at Ctrl-C)")
	_ = c.RegisterFlagCompletionFunc("rule", func(cmd *cobra.Command, _ []string, part string) ([]string, cobra.ShellCompDirective) {
		return a.completeRules(cmd, nil, part)
	})
	return c
}

// warnOfRule says that no pool and no policy file has a rule, if that is known.
func warnOfRule(ctx context.Context, a *app, rule string) {
	if rule == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := a.inspector(ctx); err != nil {
		return // tail itself will say so
	}
	if a.knows(rule) {
		return
	}
	_, _ = fmt.Fprintf(a.stderr, "headway: no pool that runs, and no policy file, has the rule %q\n", rule)
}

// showTail shows lines until ctx ends, or so many of them; 0 is no bound.
func showTail(ctx context.Context, a *app, ask tail.Ask, most int) error {
	rdb, err := a.open()
	if err != nil {
		return err
	}
	cfg, err := a.config()
	if err != nil {
		return err
	}
	t := &table{colour: a.output.colour}
	alone := func() {
		_, _ = fmt.Fprintln(a.stderr, "headway: no pool listens: none runs, or those that run are of an older version")
	}
	full := make(map[string]struct{}) // processes that have no room
	var printing error
	ctx, end := context.WithCancel(ctx)
	defer end()
	err = tail.Watch(ctx, rdb, throttle.ForWorkers.FillConfig(cfg).Prefix, ask, alone, func(l tail.Line) error {
		if ctx.Err() != nil {
			return nil
		}
		if l.Outcome == tail.Full {
			if _, said := full[l.Process]; !said {
				full[l.Process] = struct{}{}
				_, _ = fmt.Fprintf(a.stderr, "headway: %s has %d tails already, and shows nothing to this one: end one of them\n",
					visible(l.Process), tail.ViewersMax)
			}
			return nil
		}
		if most--; most == 0 {
			defer end()
		}
		if a.output.format == "json" {
			printing = json.NewEncoder(a.stdout).Encode(l)
		} else {
			_, printing = fmt.Fprintln(a.stdout, tailLine(t, l))
		}
		return printing
	})
	if err != nil && printing == nil {
		return errAway(err)
	}
	return err
}

// tailLine is a decision for people.
func tailLine(t *table, l tail.Line) string {
	outcome := fmt.Sprintf("%-10s", l.Outcome)
	switch l.Outcome {
	case tail.Granted:
		outcome = t.good(outcome)
	case tail.Refused, tail.LeaseLost:
		outcome = t.bad(outcome)
	case tail.Deferred, tail.Postponed:
		outcome = t.warn(outcome)
	}
	var notes []string
	add := func(is bool, format string, args ...any) {
		if is {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	add(l.Reason != "" && l.Reason != "booked", "%s", l.Reason)
	add(l.Wait > 0, "in %v", l.Wait.Round(time.Millisecond))
	add(!l.Until.IsZero(), "at %s", l.Until.UTC().Format("15:04:05.000Z"))
	add(l.Late > 0, "%v late", l.Late.Round(100*time.Microsecond))
	add(l.Skipped > 0, "+%d not shown", l.Skipped)
	text := fmt.Sprintf("%s  %s  %s %-10s  %s  %s  %s", l.At.UTC().Format("15:04:05.000Z"), l.Process, outcome,
		l.Queue, cmp.Or(l.Type, "-"), l.Task, cmp.Or(strings.Join(l.Rules, "+"), "-"))
	return shown(strings.TrimRight(text+"  "+strings.Join(notes, ", "), " "))
}
