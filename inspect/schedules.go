package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/schedulescripts"
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

// Became is what became of a tick.
type Became string

// What may become of a tick. Of one that was enqueued it is where its task is now.
const (
	TickPending   Became = "pending"                               // a free worker may take its task
	TickWaiting   Became = "waiting"                               // its task waits for its limits or a gate
	TickRunning   Became = "running"                               // a worker has its task
	TickRetry     Became = "to be tried again"                     // its task failed, and asynq tries it again
	TickDone      Became = "done"                                  // its task is kept as completed
	TickFailed    Became = "failed"                                // its task is archived
	TickDeleted   Became = "ended, and deleted"                    // its task is gone: it was done without retention, or somebody deleted it
	TickSkipped   Became = "skipped: an earlier one had not ended" // see schedule.OverlapSkip
	TickHeld      Became = "held until an earlier one has ended"   // see schedule.OverlapQueueOne
	TickGivenUp   Became = "given up: it had no task that could run"
	TickMissed    Became = "missed"          // no process came to it in time; see schedule.Missed
	TickUndecided Became = "not decided yet" // no process has come to it: it is late, or was missed
	TickUnknown   Became = "not known"       // a newer version decided it, or asynq has a state that is not known here
)

// LastTicksMax is how many ticks of an entry [Inspector.LastTicks] tells of at most.
const LastTicksMax = 10

// PastTick is a tick that has come, and what became of it.
type PastTick struct {
	Entry  string    `json:"entry"`
	Queue  string    `json:"queue"`
	At     time.Time `json:"at"`
	Became Became    `json:"became"`
	Task   string    `json:"task,omitempty"` // its id, where the tick was enqueued
}

// tickReader reads what became of ticks.
type tickReader struct {
	rdb  redis.UniversalClient
	keys func(queue string) queuescripts.QueueKeys
}

// last is [Inspector.LastTicks].
func (r tickReader) last(ctx context.Context, entries []Entry, now time.Time, most int) ([]PastTick, error) {
	most = max(1, min(most, LastTicksMax))
	type place struct{ entry, queue string }
	var places []place // in the order of entries
	specs := make(map[place][]string)
	byQueue := make(map[string][]string)
	for _, e := range entries {
		at := place{e.Entry, e.Queue}
		if specs[at] == nil {
			places = append(places, at)
			byQueue[e.Queue] = append(byQueue[e.Queue], e.Entry)
		}
		specs[at] = append(specs[at], e.Spec)
	}
	told := make(map[place][]PastTick)
	for name, names := range byQueue {
		records, err := schedulescripts.ReadTicks(ctx, r.rdb, r.keys(name), names)
		if err != nil {
			return nil, away("read the last ticks", err)
		}
		var all []*PastTick
		for n, entry := range names {
			at := place{entry, name}
			told[at] = pastTicks(entry, name, specs[at], records[n], now, most)
			for k := range told[at] {
				all = append(all, &told[at][k])
			}
		}
		if err := r.becameOf(ctx, name, all); err != nil {
			return nil, err
		}
	}
	var ticks []PastTick
	for _, at := range places {
		ticks = append(ticks, told[at]...)
	}
	return ticks, nil
}

// tickEnqueued is what became of a tick before it is known where its task is.
const tickEnqueued Became = "enqueued"

// decidedAs are the codes of ticks that were decided.
var decidedAs = map[int64]Became{
	schedulescripts.TickEnqueued: tickEnqueued, schedulescripts.TickSkipped: TickSkipped,
	schedulescripts.TickHeld: TickHeld, schedulescripts.TickGivenUp: TickGivenUp,
}

// pastTicks are the last ticks of an entry, the newest first.
func pastTicks(entry, queue string, specs []string, r schedulescripts.TickRecord, now time.Time, most int) []PastTick {
	became := make(map[int64]Became) // by instant, in seconds
	add := func(at time.Time, b Became) {
		if _, known := became[at.Unix()]; !known {
			became[at.Unix()] = b
		}
	}
	for _, d := range r.Ticks {
		add(d.At, cmp.Or(decidedAs[d.Code], TickUnknown))
	}
	for _, spec := range specs {
		cron, err := schedule.ParseCron(spec, nil)
		since, known := r.Since[schedulescripts.TickSpec(spec)]
		if err != nil || !known {
			continue
		}
		if len(r.Ticks) > 0 {
			for _, at := range cron.Latest(latest(since, r.Ticks[len(r.Ticks)-1].At), r.Last, most) {
				add(at, TickMissed)
			}
		}
		for _, at := range cron.Latest(latest(since, r.Last), now, most) {
			add(at, TickUndecided)
		}
	}
	ticks := make([]PastTick, 0, len(became))
	for at, b := range became {
		ticks = append(ticks, PastTick{Entry: entry, Queue: queue, At: time.Unix(at, 0).UTC(), Became: b})
	}
	slices.SortFunc(ticks, func(a, b PastTick) int { return b.At.Compare(a.At) })
	ticks = ticks[:min(len(ticks), most)]
	if !r.Held.IsZero() && !slices.ContainsFunc(ticks, func(t PastTick) bool { return t.At.Equal(r.Held) }) {
		ticks = append(ticks, PastTick{Entry: entry, Queue: queue, At: r.Held.UTC(), Became: TickHeld})
	}
	return ticks
}

// becameOf finds where the tasks of ticks are that were enqueued. An older version enqueues
// ticks and does not keep them, so it is looked for those that seem to be missed, too.
func (r tickReader) becameOf(ctx context.Context, queue string, ticks []*PastTick) error {
	var ids, waits []string
	var enqueued, waiting []*PastTick
	for _, t := range ticks {
		if t.Became == tickEnqueued || t.Became == TickMissed {
			enqueued, ids = append(enqueued, t), append(ids, t.Entry+"@"+t.At.Format(time.RFC3339)) // as schedule.ParseTaskID has it
		}
	}
	states, err := queuescripts.TaskStates(ctx, r.rdb, r.keys(queue), ids)
	if err != nil {
		return away("read the tasks of ticks", err)
	}
	for n, t := range enqueued {
		if t.Became == TickMissed && states[n] == "" {
			continue
		}
		t.Task = ids[n]
		switch states[n] {
		case "pending":
			t.Became = TickPending
		case "active":
			t.Became = TickRunning
		case "completed":
			t.Became = TickDone
		case "archived":
			t.Became = TickFailed
		case "":
			t.Became = TickDeleted
		case "retry", "scheduled":
			t.Became = TickRetry
			waiting, waits = append(waiting, t), append(waits, ids[n])
		default:
			t.Became = TickUnknown
		}
	}
	found, err := queuescripts.GetTasks(ctx, r.rdb, r.keys(queue), waits)
	if err != nil {
		return away("read the tasks of ticks", err)
	}
	for n, t := range waiting {
		if found[n].PoolsWake {
			t.Became = TickWaiting
		}
	}
	return nil
}
