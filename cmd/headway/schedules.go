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

	Last []inspect.PastTick `json:"last"` // the last of each entry
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
	if len(s.Last) == 0 {
		return
	}
	t.line("")
	t.row("LAST TICKS", "ENTRY", "QUEUE", "BECAME")
	for _, tick := range s.Last {
		t.row(when(tick.At, s.Now), tick.Entry, tick.Queue, string(tick.Became))
	}
}

// lastTicks is how many of the last ticks of an entry are listed.
const lastTicks = 5

// schedules are the entries of what runs, and the next ticks.
func schedules(running []inspect.Process, now time.Time, most int) schedulesAnswer {
	got := schedulesAnswer{Now: now.UTC(), Entries: []inspect.Entry{}, Ticks: []inspect.Tick{}, Last: []inspect.PastTick{}}
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
		Use: "schedules", Short: "the entries of the schedulers that run, their next ticks, and what became of the last", Args: cobra.NoArgs,
		Long: `schedules lists the entries that running schedulers say they have, and the next ticks of all
of them. Of each entry it tells what became of the last ticks; see docs/schedules.md for the
words. An entry that is listed with two specs runs in processes of two versions. Instants
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
				got := schedules(running, time.Now(), most)
				last, err := i.LastTicks(ctx, got.Entries, got.Now, lastTicks)
				got.Last = append(got.Last, last...)
				return got, err
			})
		},
	}
	c.Flags().IntVar(&most, "most", most, "list at most `N` ticks, 1 to 1000")
	return c
}
