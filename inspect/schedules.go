package inspect

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/queue/schedule"
)

// Entry is an entry of the schedulers that run.
type Entry struct {
	Entry     string    `json:"entry"`
	Queue     string    `json:"queue"`
	Type      string    `json:"type,omitempty"` // empty where a function makes the tasks
	Spec      string    `json:"spec"`
	Next      time.Time `json:"next,omitzero"`
	Processes int       `json:"processes"` // that run it
	Problem   string    `json:"problem,omitempty"`
}

// Tick is an instant at which an entry comes due.
type Tick struct {
	At    time.Time `json:"at"` // in the zone of the entry's spec
	Entry string    `json:"entry"`
	Queue string    `json:"queue"`
	// Note says that clocks are changed in that zone on the day of the tick; empty for not.
	Note string `json:"note,omitempty"`
}

// Schedules merges what schedulers say that run, and computes the next ticks of all
// entries, most of them at most. An entry that is listed with two specs runs in processes of
// two versions.
func Schedules(running []Process, now time.Time, most int) (entries []Entry, ticks []Tick) {
	index := make(map[[3]string]int)
	for _, p := range running {
		if p.Kind != presence.Scheduler {
			continue
		}
		for _, e := range p.Entries {
			key := [3]string{e.Name, e.Queue, e.Spec}
			n, known := index[key]
			if !known {
				n = len(entries)
				index[key] = n
				entries = append(entries, Entry{Entry: e.Name, Queue: e.Queue, Type: e.Type, Spec: e.Spec})
			}
			entries[n].Processes++
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Entry, b.Entry), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Spec, b.Spec))
	})
	for n := range entries {
		e := &entries[n]
		cron, err := schedule.ParseCron(e.Spec, nil)
		if err != nil {
			e.Problem = "the spec can't be read here"
			continue
		}
		for at, k := cron.Next(now), 0; k < most && !at.IsZero(); at, k = cron.Next(at), k+1 {
			if k == 0 {
				e.Next = at.UTC()
			}
			ticks = append(ticks, Tick{At: at, Entry: e.Entry, Queue: e.Queue, Note: clockNote(at)})
		}
	}
	slices.SortStableFunc(ticks, func(a, b Tick) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Entry, b.Entry)) })
	return entries, ticks[:min(len(ticks), most)]
}

// clockNote says that clocks are changed on the day of an instant, in its zone.
func clockNote(at time.Time) string {
	y, m, d := at.Date()
	begin, end := time.Date(y, m, d, 0, 0, 0, 0, at.Location()), time.Date(y, m, d+1, 0, 0, 0, 0, at.Location())
	_, before := begin.Zone()
	_, after := end.Zone()
	switch {
	case after > before:
		return "clocks go forward that day"
	case after < before:
		return "clocks go back that day"
	}
	return ""
}
