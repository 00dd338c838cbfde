package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
)

type schedulesAnswer struct {
	Now     time.Time       `json:"now"` // of this machine
	Entries []inspect.Entry `json:"entries"`
	Ticks   []inspect.Tick  `json:"ticks"` // the next of all entries
}

func (s schedulesAnswer) table(t *table) {
	if len(s.Entries) == 0 {
		t.line("no scheduler runs")
		return
	}
	t.row("ENTRY", "QUEUE", "TYPE", "SPEC", "PROCESSES", "NEXT")
	for _, e := range s.Entries {
		next := when(e.Next, s.Now)
		if e.Problem != "" {
			next = t.bad(e.Problem)
		}
		t.row(e.Entry, e.Queue, cmp.Or(e.Type, "-"), e.Spec, e.Processes, next)
	}
	t.line("")
	t.row("NEXT TICKS", "ENTRY", "QUEUE")
	for _, tick := range s.Ticks {
		t.row(when(tick.At, s.Now), tick.Entry, tick.Queue)
	}
}

// schedules are the entries of what runs, and the next ticks.
func schedules(running []inspect.Process, now time.Time, most int) schedulesAnswer {
	got := schedulesAnswer{Now: now.UTC(), Entries: []inspect.Entry{}, Ticks: []inspect.Tick{}}
	entries, ticks := inspect.Schedules(running, now, most)
	got.Entries = append(got.Entries, entries...)
	for _, t := range ticks {
		t.At = t.At.UTC()
		got.Ticks = append(got.Ticks, t)
	}
	return got
}

func schedulesCommand(a *app) *cobra.Command {
	most := 10
	c := &cobra.Command{
		Use: "schedules", Short: "the entries of the schedulers that run, and their next ticks", Args: cobra.NoArgs,
		Long: `schedules lists the entries that running schedulers say they have, and the next ticks of all
of them. An entry that is listed with two specs runs in processes of two versions. Instants
are seen from the clock of this machine.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most < 1 || most > 1000 {
				return usageError{fmt.Errorf("--most is %d, want 1 to 1000", most)}
			}
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				running, _, err := i.Processes(ctx)
				if err != nil {
					return nil, err
				}
				return schedules(running, time.Now(), most), nil
			})
		},
	}
	c.Flags().IntVar(&most, "most", most, "list at most `N` ticks, 1 to 1000")
	return c
}
