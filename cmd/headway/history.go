package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/throttle"
)

type historyAnswer struct {
	inspect.History
	all bool
}

// usedOf is the share of a limit that was used. Of slots it is not known, nor where keys have
// limits of their own.
func usedOf(p inspect.Point, perKey bool) string {
	if l, err := throttle.ParseLimit(p.Limit); err != nil || l.IsConcurrent() || perKey {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*p.Used)
}

func (h historyAnswer) table(t *table) {
	layout := "01-02 15:04"
	t.row("SINCE", "GRANTED", "PERMITS", "REFUSED", "DEFERRED", "WAITED P50", "P99", "LATE P99", "USED", "LIMIT")
	row := func(name string, p inspect.Point) {
		t.row(name, p.Granted, p.Permits, p.Refused, p.Deferred, short(p.WaitedP50), short(p.WaitedP99), short(p.LateP99), usedOf(p, h.PerKey), orDash(p.Limit))
	}
	for _, p := range h.Points {
		if h.all || p.Granted+p.Refused+p.Deferred > 0 {
			row(p.At.UTC().Format(layout), p)
		}
	}
	row("in all", h.Total)
}

func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func historyCommand(a *app) *cobra.Command {
	var span time.Duration
	var all bool
	c := &cobra.Command{
		Use: "history RULE", Short: "what happened by a rule: by minute for a day, by hour for a month", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeRules,
		Long: `history shows what pools saw of a rule: tasks that got its permits, tasks that can never
run because of it, and how often it made a task wait. WAITED is how long tasks waited for
the rule, LATE how long after their instants they started. USED is the share that the
busiest key got of what the limit gives in that time. It is not known of slots, and where keys
have limits of their own.

Up to 24h each line is a minute, else an hour. Lines in which nothing happened are left out.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				h, err := i.History(ctx, args[0], span)
				if err != nil {
					return nil, err
				}
				if h.Total == (inspect.Point{At: h.Total.At}) && !a.knows(args[0]) {
					return nil, a.unknownRule(fmt.Errorf("no policy here has a limit named %q", args[0]))
				}
				return historyAnswer{h, all}, nil
			})
		},
	}
	c.Flags().DurationVar(&span, "for", time.Hour, "the last `DURATION`, up to 720h")
	c.Flags().BoolVar(&all, "all", false, "also the minutes or hours in which nothing happened")
	return c
}

type keysAnswer struct {
	Keys []inspect.KeyStatus `json:"keys"`
}

func (k keysAnswer) table(t *table) {
	t.row("KEY", "WAITING", "A NEW JOB STARTS", "CLOSED UNTIL", "PERMITS")
	for _, s := range k.Keys {
		next := "now"
		if s.Next.After(s.Now) {
			next = when(s.Next, s.Now)
		}
		closed := "-"
		if !s.Closed.IsZero() {
			closed = t.bad(when(s.Closed, s.Now))
		}
		if first := earlier(s.OwnClosed, s.RuleClosed); !first.IsZero() {
			closed += fmt.Sprintf(" (%s until %s)", whose(first.Equal(s.OwnClosed)), when(first, s.Now))
		}
		if !s.Held.IsZero() {
			closed = strings.TrimPrefix(closed+", "+t.bad("held until "+when(s.Held, s.Now)), "-, ")
		}
		if s.HoldUnknown {
			closed = strings.TrimPrefix(closed+", "+t.warn("held?"), "-, ")
		}
		if s.Problem != "" {
			t.row(s.Key, "-", "not known", closed, s.Permits, t.bad(s.Problem))
			continue
		}
		t.row(s.Key, s.Waiting, next, closed, s.Permits)
	}
}

func keysCommand(a *app) *cobra.Command {
	var by string
	c := &cobra.Command{
		Use: "keys RULE", Short: "the keys of a rule on which jobs wait longest, or that are busiest", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeRules,
		Long: `keys lists at most 20 keys of a rule: those on which jobs wait longest, or with
--by permits those that got most permits in this hour and the one before. Pools remember
some hundred keys of a rule, so a key that is not busy may be missing.

Of a key that is closed, and whose rule is closed on all keys, too, CLOSED UNTIL has the later
instant, and in brackets the other. "held until" is a hold of pools with HoldAfterFailover: Redis
was promoted or began again, and may have forgotten grants. "held?" says that it is not known.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			order, ok := map[string]inspect.KeyOrder{"wait": inspect.ByWait, "permits": inspect.ByPermits}[by]
			if !ok {
				return badUsage("--by is %q, want wait or permits", by)
			}
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				keys, err := i.Keys(ctx, args[0], order)
				for n := range keys {
					keys[n].Key = a.key(keys[n].Key)
				}
				if err != nil {
					return nil, a.unknownRule(err)
				}
				return keysAnswer{keys}, nil
			})
		},
	}
	c.Flags().StringVar(&by, "by", "wait", "`ORDER` of the keys: wait or permits")
	_ = c.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"wait", "permits"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}
