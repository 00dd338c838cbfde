package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue/schedule"
)

type schedulesAnswer struct {
	Now     time.Time     `json:"now"` // of this machine
	Entries []entryAnswer `json:"entries"`
	Ticks   []tickAnswer  `json:"ticks"` // the next of all entries
}

type entryAnswer struct {
	Entry     string    `json:"entry"`
	Queue     string    `json:"queue"`
	Type      string    `json:"type,omitempty"` // empty where a function makes the tasks
	Spec      string    `json:"spec"`
	Next      time.Time `json:"next,omitzero"`
	Processes int       `json:"processes"` // that run it
	Problem   string    `json:"problem,omitempty"`
}

type tickAnswer struct {
	At    time.Time `json:"at"`
	Entry string    `json:"entry"`
	Queue string    `json:"queue"`
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

// schedules merges what the schedulers say, and computes the next ticks.
func schedules(running []inspect.Process, now time.Time, most int) schedulesAnswer {
	got := schedulesAnswer{Now: now.UTC(), Entries: []entryAnswer{}, Ticks: []tickAnswer{}}
	index := make(map[[3]string]int)
	for _, p := range running {
		if p.Kind != "scheduler" {
			continue
		}
		for _, e := range p.Entries {
			key := [3]string{e.Name, e.Queue, e.Spec}
			n, known := index[key]
			if !known {
				n = len(got.Entries)
				index[key] = n
				got.Entries = append(got.Entries, entryAnswer{Entry: e.Name, Queue: e.Queue, Type: e.Type, Spec: e.Spec})
			}
			got.Entries[n].Processes++
		}
	}
	slices.SortFunc(got.Entries, func(a, b entryAnswer) int {
		return cmp.Or(cmp.Compare(a.Entry, b.Entry), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Spec, b.Spec))
	})
	for n := range got.Entries {
		e := &got.Entries[n]
		cron, err := schedule.ParseCron(e.Spec, nil)
		if err != nil {
			e.Problem = "the spec can't be read here"
			continue
		}
		for at, k := cron.Next(now), 0; k < most && !at.IsZero(); at, k = cron.Next(at), k+1 {
			if k == 0 {
				e.Next = at.UTC()
			}
			got.Ticks = append(got.Ticks, tickAnswer{at.UTC(), e.Entry, e.Queue})
		}
	}
	slices.SortStableFunc(got.Ticks, func(a, b tickAnswer) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Entry, b.Entry)) })
	got.Ticks = got.Ticks[:min(len(got.Ticks), most)]
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
