package dashboard

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/inspect"
)

// verdict is what an operator wants to know first: is something wrong, what shows it, and
// what is to be done.
type verdict struct {
	Level    string // "ok", "note", "warn" or "bad"
	Headline string
	Evidence []string
	Next     string
	NextURL  string // a path and query of a page; empty for none
	NextPair []string
}

// facts are what a verdict is made from.
type facts struct {
	queues      []inspect.QueueStatus
	rules       []ruleRow
	processes   []inspect.Process
	differences []inspect.Difference
	changes     []inspect.Change
	now         time.Time
}

// lateAfter is how long an instant may be over before a task counts as late: one that is
// woken at this moment is overdue, too.
const lateAfter = 2 * time.Second

// judge finds the gravest thing that is wrong, and names the others as evidence.
func judge(f facts) verdict {
	served := make(map[string]bool)
	pools, workers, busy := 0, 0, 0
	for _, p := range f.processes {
		if p.Kind != "pool" {
			continue
		}
		pools++
		workers += p.Workers
		busy += p.Busy
		for q := range p.Queues {
			served[q] = true
		}
	}
	var found []verdict
	add := func(level, next, path string, pair []string, format string, a ...any) {
		found = append(found, verdict{Level: level, Headline: fmt.Sprintf(format, a...), Next: next, NextURL: path, NextPair: pair})
	}
	waiting, pending, active, failed, hour := 0, 0, 0, 0, 0
	var first time.Time
	for _, q := range f.queues {
		waiting += q.Waiting
		hour += q.Within1h
		pending += q.Pending
		active += q.Active
		failed += q.Archived
		if !q.Next.IsZero() && (first.IsZero() || q.Next.Before(first)) {
			first = q.Next
		}
		name := safeIn(q.Queue, 40)
		late := q.Overdue > 0 && q.Now.Sub(q.Next) > lateAfter
		link := []string{"queue", q.Queue}
		switch {
		case q.Paused && q.Waiting+q.Pending > 0:
			add("warn", "Resume the queue when it may go on", "/queue", link, "Queue %s is paused, and %s %s in it", name, plural(q.Waiting+q.Pending, "task"),
				does(q.Waiting+q.Pending, "wait"))
		case !served[q.Queue] && (late || q.Pending > 0):
			n := q.Pending
			if late {
				n += q.Overdue
			}
			add("bad", "Start a pool that serves it", "/pools", nil, "No pool serves queue %s, and %s in it should run now", name, plural(n, "task"))
		case late && busy >= workers:
			add("bad", "Add workers, or find what holds them", "/pools", nil, "%s, so %s of queue %s %s late", allBusy(workers), plural(q.Overdue, "task"),
				name, is(q.Overdue))
		case late:
			add("warn", "Look at what is overdue", "/queue", link, "%s of queue %s should have started", plural(q.Overdue, "task"), name)
		}
	}
	if pending > 0 && workers > 0 && busy >= workers && pending > workers {
		add("warn", "Add workers: a higher limit would not help", "/pools", nil, "Workers are missing, not permits: %s could run. %s",
			plural(pending, "task"), allBusy(workers))
	}
	for _, r := range f.rules {
		link := []string{"rule", r.Rule}
		name := safeIn(r.Rule, 64)
		if r.Problem != "" {
			add("bad", "Set the limit anew, or take it away", "/rule", link, "The stored limit of %s can't be read, so nothing is granted by it", name)
		}
		if !r.Closed.IsZero() && r.Closed.After(f.now) {
			by := ""
			if c := closing(f.changes, r.Rule); c != nil {
				by = ": " + safeIn(c.Why, 80)
			}
			add("note", "It opens by itself. To open it earlier, look at the rule", "/rule", link, "%s is closed for another %s%s", name, span(r.Closed.Sub(f.now)), by)
		}
	}
	if failed > 0 {
		add("note", "Find out why. asynq keeps them until they are run again or deleted", "/", nil, "%s failed in all %s attempts", plural(failed, "task"),
			own(failed))
	}
	if len(f.differences) > 0 {
		var rules []string
		for _, d := range f.differences {
			if name := safeIn(d.Rule+d.Type, 64); !slices.Contains(rules, name) && len(rules) < 4 {
				rules = append(rules, name)
			}
		}
		add("warn", "Deploy one policy to all pools: each decides by its own", "/policies", nil, "Pools run with several numbers for %s", strings.Join(rules, ", "))
	}
	var v verdict
	for _, level := range []string{"bad", "warn", "note"} {
		for _, one := range found {
			if one.Level != level {
				continue
			}
			if v.Headline == "" {
				v = one
			} else if len(v.Evidence) < 4 {
				v.Evidence = append(v.Evidence, one.Headline+".")
			}
		}
	}
	calm := ""
	switch {
	case waiting > 0:
		calm = "Limits hold 1 task. It starts by itself"
		if waiting > 1 {
			calm = fmt.Sprintf("Limits hold %s. Each starts by itself", plural(waiting, "task"))
		}
		if !first.IsZero() && first.After(f.now) {
			calm += ", the next " + relative(first, f.now)
		}
	case pending+active > 0:
		calm = fmt.Sprintf("No limit holds anything. %s to run or running", plural(pending+active, "task"))
	default:
		calm = "Nothing waits"
	}
	if v.Headline == "" {
		v = verdict{Level: "ok", Headline: calm, Next: "Nothing is to be done"}
	} else {
		v.Evidence = append(v.Evidence, calm+".")
	}
	if waiting > 0 {
		v.Evidence = append(v.Evidence, fmt.Sprintf("%s planned to start within the hour.", plural(hour, "task")))
	}
	if pools > 0 {
		v.Evidence = append(v.Evidence, fmt.Sprintf("%s with %s, %s busy.", plural(pools, "pool"), plural(workers, "worker"), count(busy)))
	} else {
		v.Evidence = append(v.Evidence, "No pool runs.")
	}
	return v
}

// is is the verb for so many.
func is(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// own is whose the attempts of so many tasks are.
func own(n int) string {
	if n == 1 {
		return "its"
	}
	return "their"
}

// allBusy says that no worker is free.
func allBusy(workers int) string {
	switch workers {
	case 0:
		return "There is no worker"
	case 1:
		return "The only worker is busy"
	}
	return fmt.Sprintf("All %s are busy", plural(workers, "worker"))
}

// closing is the change that closed a rule on all keys, unless it was opened since.
func closing(changes []inspect.Change, rule string) *inspect.Change {
	for n, c := range changes { // the newest first
		if c.Rule != rule || c.Key != "" || c.Failed != "" {
			continue
		}
		switch c.Action {
		case inspect.ActionClose:
			return &changes[n]
		case inspect.ActionOpen:
			return nil
		}
	}
	return nil
}
