package dashboard

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/throttle"
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
	unlisted    int // processes that run besides these
	differences []inspect.Difference
	changes     []inspect.Change
	now         time.Time
}

// lateAfter is how long an instant may be over before a task counts as late: one that is
// woken at this moment is overdue, too.
const lateAfter = 2 * time.Second

// totals are what all queues and all pools have together.
type totals struct {
	throttled, runnable, active, failed int
	hour                                int       // throttled tasks that are planned to start within the hour
	first                               time.Time // when the next of these starts; zero for none
	pools, workers, busy                int
	unlisted                            int             // processes of which it is not known what they serve
	served                              map[string]bool // the queues that a pool serves which is listed
}

func (f facts) totals() totals {
	t := totals{served: inspect.ServedByPools(f.processes), unlisted: f.unlisted}
	for _, p := range inspect.Pools(f.processes) {
		t.pools++
		t.workers += p.Workers
		t.busy += p.Busy
	}
	for _, q := range f.queues {
		t.throttled += throttled(q)
		t.hour += ahead(q.Within1h, q)
		t.runnable += runnable(q)
		t.active += q.Active
		t.failed += q.Archived
		if !q.Next.IsZero() && (t.first.IsZero() || q.Next.Before(t.first)) {
			t.first = q.Next
		}
	}
	return t
}

// judge finds the gravest thing that is wrong, and names the others as evidence.
func judge(f facts) verdict {
	t := f.totals()
	var found findings
	for _, q := range f.queues {
		found.ofQueue(q, t)
	}
	if t.runnable > t.workers && t.workers > 0 && t.busy >= t.workers {
		found.add("warn", "Add workers: a higher limit would not help", "/pools", nil, "Workers are missing, not permits: %s could run. %s",
			plural(t.runnable, "task"), allBusy(t.workers))
	}
	for _, r := range f.rules {
		found.ofRule(r, f)
	}
	if t.failed > 0 {
		found.add("note", "Find out why. asynq keeps them until they are run again or deleted", "/", nil, "%s failed in all %s attempts",
			plural(t.failed, "task"), own(t.failed))
	}
	found.ofDifferences(f.differences)
	v := found.gravest()
	if calm := t.calm(f.now); v.Headline == "" {
		v = verdict{Level: "ok", Headline: calm, Next: "Nothing is to be done"}
	} else {
		v.Evidence = append(v.Evidence, calm+".")
	}
	if t.throttled > 0 {
		v.Evidence = append(v.Evidence, fmt.Sprintf("%s planned to start within the hour.", plural(t.hour, "task")))
	}
	pools := "No pool runs."
	switch {
	case t.pools > 0:
		pools = fmt.Sprintf("%s with %s, %s busy.", plural(t.pools, "pool"), plural(t.workers, "worker"), count(t.busy))
	case t.unlisted > 0:
		pools = "No pool is among the processes that can be listed."
	}
	v.Evidence = append(v.Evidence, pools)
	if t.unlisted > 0 {
		v.Evidence = append(v.Evidence, fmt.Sprintf("%s of the processes that run can't be listed, so their pools are not counted.", count(t.unlisted)))
	}
	return v
}

// findings are the things that are wrong, in the order in which they were found.
type findings []verdict

func (s *findings) add(level, next, path string, pair []string, format string, a ...any) {
	*s = append(*s, verdict{Level: level, Headline: fmt.Sprintf(format, a...), Next: next, NextURL: path, NextPair: pair})
}

func (s *findings) ofQueue(q inspect.QueueStatus, t totals) {
	name := safeIn(q.Queue, 40)
	late := q.Overdue > 0 && q.Now.Sub(q.Next) > lateAfter
	link := []string{"queue", q.Queue}
	switch {
	case q.Paused && q.Waiting+q.Pending > 0:
		s.add("warn", "Resume the queue when it may go on", "/queue", link, "Queue %s is paused, and %s %s in it", name, plural(q.Waiting+q.Pending, "task"),
			does(q.Waiting+q.Pending, "wait"))
	case !t.served[q.Queue] && (late || q.Pending > 0):
		n := q.Pending
		if late {
			n += q.Overdue
		}
		active := q.Active
		if late { // tasks that wait for a limit need a pool, whoever runs others
			active = 0
		}
		s.ofUnserved(name, n, active, t)
	case late && t.busy >= t.workers:
		s.add("bad", "Add workers, or find what holds them", "/pools", nil, "%s, so %s of queue %s %s late", allBusy(t.workers), plural(q.Overdue, "task"),
			name, is(q.Overdue))
	case late:
		s.add("warn", "Look at what is overdue", "/queue", link, "%s of queue %s should have started", plural(q.Overdue, "task"), name)
	}
}

// ofUnserved is about a queue in which some tasks should run, and which no pool serves that is listed. A pool that
// can't be listed may serve it, and so may an asynq server without Headway, which package inspect does not
// list. Where tasks run there is such a server, or there was a pool that was killed.
func (s *findings) ofUnserved(name string, tasks, active int, t totals) {
	n := plural(tasks, "task")
	switch {
	case t.unlisted > 0:
		s.add("warn", "Look whether what waits there goes on", "/pools", nil, "It is not known whether a pool serves queue %s, and %s in it should run now", name, n)
	case active > 0:
		s.add("warn", "Start a pool that serves it, unless an asynq server of your own keeps up", "/pools", nil,
			"No pool is known to serve queue %s, where %s %s and %s should run now", name, plural(active, "task"), does(active, "run"), n)
	default:
		s.add("bad", "Start a pool that serves it, unless an asynq server of your own does", "/pools", nil,
			"No pool is known to serve queue %s, and %s in it should run now", name, n)
	}
}

func (s *findings) ofRule(r ruleRow, f facts) {
	link := []string{"rule", r.Rule}
	name := safeIn(r.Rule, 64)
	switch {
	case errors.Is(r.Err, throttle.ErrUnavailable):
		s.add("bad", "See to Redis, on a Cluster to the node that has the rule", "/rule", link, "Redis does not answer as it should about the limit of %s", name)
	case r.Problem != "":
		s.add("bad", "Set the limit anew, or take it away", "/rule", link, "The stored limit of %s can't be read, so nothing is granted by it", name)
	}
	if !r.Closed.After(f.now) {
		return
	}
	by := ""
	if c := closing(f.changes, r.Rule); c != nil {
		by = ": " + safeIn(c.Why, 80)
	}
	s.add("note", "It opens by itself. To open it earlier, look at the rule", "/rule", link, "%s is closed for another %s%s", name, span(r.Closed.Sub(f.now)), by)
}

// ofDifferences names up to four rules or task types for which pools have several numbers.
func (s *findings) ofDifferences(differences []inspect.Difference) {
	var names []string
	for _, d := range differences {
		if name := safeIn(d.Rule+d.Type, 64); !slices.Contains(names, name) && len(names) < 4 {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		s.add("warn", "Deploy one policy to all pools: each decides by its own", "/policies", nil, "Pools run with several numbers for %s", strings.Join(names, ", "))
	}
}

// gravest is the first of the gravest findings, with up to four others as its evidence. Without
// findings it has no headline.
func (s findings) gravest() (v verdict) {
	for _, level := range []string{"bad", "warn", "note"} {
		for _, one := range s {
			switch {
			case one.Level != level:
			case v.Headline == "":
				v = one
			case len(v.Evidence) < 4:
				v.Evidence = append(v.Evidence, one.Headline+".")
			}
		}
	}
	return v
}

// calm is what can be said where nothing is wrong.
func (t totals) calm(now time.Time) string {
	if t.throttled == 0 {
		if t.runnable+t.active > 0 {
			return fmt.Sprintf("No limit holds anything. %s to run or running", plural(t.runnable+t.active, "task"))
		}
		return "Nothing waits"
	}
	calm := "Limits hold 1 task. It starts by itself"
	if t.throttled > 1 {
		calm = fmt.Sprintf("Limits hold %s. Each starts by itself", plural(t.throttled, "task"))
	}
	if t.first.After(now) {
		calm += ", the next " + relative(t.first, now)
	}
	return calm
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
	for _, c := range inspect.Made(changes) { // the newest first
		if c.Rule != rule || c.Key != "" {
			continue
		}
		switch c.Action {
		case inspect.ActionClose:
			return &c
		case inspect.ActionOpen:
			return nil
		}
	}
	return nil
}
