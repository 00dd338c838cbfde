package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// pages are all pages, in the order of the navigation.
var pages = []page{
	{name: "overview", path: "/", title: "Overview", nav: true, skips: []string{"rules", "queues"}, load: loadOverview},
	{name: "queue", path: "/queue", title: "Queue", params: []string{"queue", "from"}, load: loadQueue, asks: []Verb{PauseQueue, ResumeQueue}},
	{name: "rule", path: "/rule", title: "Rule", params: []string{"rule", "limit", "for"}, load: loadRule,
		asks: []Verb{SetLimit, UnsetLimit, CloseRule, OpenRule}},
	{name: "key", path: "/key", title: "Key", params: []string{"rule", "k", "from"}, load: loadKey,
		asks: []Verb{CloseKey, OpenKey, PauseKey, CancelKey, FrontKey}},
	{name: "task", path: "/task", title: "Task", params: []string{"queue", "id"}, load: loadTask, asks: []Verb{CancelTask, FrontTask, RunTask}},
	{name: "gates", path: "/gates", title: "Gates", nav: true, params: []string{"zone"}, skips: []string{"from"}, load: loadGates},
	// The list goes over all queues. "at" is where it goes on, and not what Authorize is asked about.
	{name: "batches", path: "/batches", title: "Batches", nav: true, params: []string{"at"}, skips: []string{"from"}, load: loadBatches,
		asks: []Verb{PauseBatch, ResumeBatch, CancelBatch, SetPace, SetWeight}},
	{name: "schedules", path: "/schedules", title: "Schedules", nav: true, skips: []string{"from"}, load: loadSchedules},
	{name: "policies", path: "/policies", title: "Policies", nav: true, skips: []string{"from", "differences"}, load: loadPolicies},
	{name: "pools", path: "/pools", title: "Pools", nav: true, skips: []string{"from"}, load: loadPools},
	{name: "audit", path: "/audit", title: "Audit", nav: true, skips: []string{"from"}, load: loadAudit, asks: []Verb{Undo}},
}

// queuesOf returns the counts of the first 100 queues, which several pages share.
func queuesOf(ctx context.Context, d *board, s *source) ([]inspect.QueueStatus, error) {
	got, err := d.views.get(ctx, "queues", d.cfg.Refresh, func(ctx context.Context) (any, error) { return s.Queues(ctx) })
	if err != nil {
		return nil, err
	}
	return got.value.([]inspect.QueueStatus), nil
}

// changesOf returns the newest entries of the audit list, which several pages share.
func changesOf(ctx context.Context, d *board, s *source) ([]inspect.Change, error) {
	got, err := d.views.get(ctx, "changes", d.cfg.Refresh, func(ctx context.Context) (any, error) { return s.Audit(ctx, 0, 250) })
	if err != nil {
		return nil, err
	}
	return got.value.([]inspect.Change), nil
}

// now is Redis' clock as the queues tell it.
func now(queues []inspect.QueueStatus) time.Time {
	if len(queues) > 0 {
		return queues[0].Now
	}
	return time.Now()
}

// overview is the first page.
type overview struct {
	Verdict verdict
	Queues  []inspect.QueueStatus // those that are counted
	Sum     inspect.QueueStatus   // of them
	Names   []string              // of all
	Typed   bool                  // they are too many to choose from: a reader types the name
	Listed  []inspect.QueueStatus // on this page
	ByQueue pager
	Workers int
	Busy    int
	Pools   int
	Chart   chart
	Charted int // queues in the chart, of those in which something waits
	Waits   int
	Rules   []ruleRow // on this page
	ByRule  pager
	Limits  []string // names of all rules
	Told    int      // of how many of them the last hour is told
	Changes []inspect.Change
	Now     time.Time

	Unlisted int // processes that run besides those that can be listed
}

type ruleRow struct {
	inspect.RuleStatus
	Types []string      // of the tasks that need it
	Hour  inspect.Point // what happened in the last hour
	Known bool          // Hour is
}

// historyRules is how many rules the overview tells the last hour of: those for which most waits.
const historyRules = 30

// historyFor is how old a history may be on a page: pools write it every 5 s, and its points
// are minutes.
const historyFor = 10 * time.Second

// historyOf returns what happened by a rule, which several pages and viewers share.
func historyOf(ctx context.Context, d *board, s *source, rule string, span time.Duration) (inspect.History, error) {
	got, err := d.views.get(ctx, fmt.Sprint("history ", span, " ", rule), max(historyFor, d.cfg.Refresh), func(ctx context.Context) (any, error) {
		return s.History(ctx, rule, span)
	})
	if err != nil {
		return inspect.History{}, err
	}
	return got.value.(inspect.History), nil
}

// chartedMax is how many queues the chart adds up: each costs Redis 60 counts.
const chartedMax = 10

// namesMax is how many queues a reader chooses from. With 100,000 of them each page would have megabytes of
// names.
const namesMax = 200

func loadOverview(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	o := overview{}
	if o.Queues, err = queuesOf(ctx, d, s); err != nil {
		return nil, err
	}
	o.Now = now(o.Queues)
	for _, of := range o.Queues {
		o.Sum.Waiting += of.Waiting
		o.Sum.Overdue += of.Overdue
		o.Sum.Within1h += of.Within1h
		o.Sum.Pending += of.Pending
		o.Sum.Active += of.Active
		o.Sum.Other += of.Other
		o.Sum.Archived += of.Archived
	}
	if o.Names, err = s.QueueNames(ctx); err != nil {
		return nil, err
	}
	o.Typed = len(o.Names) > namesMax
	names, links, err := pageOf(d, q, list{"/", "queues", "queues", "#queues-h"}, o.Names)
	if err != nil {
		return nil, err
	}
	if o.Listed, err = statusesOf(ctx, s, o.Queues, names); err != nil {
		return nil, err
	}
	o.ByQueue = links
	o.Unlisted = max(0, s.all-len(s.processes))
	for _, p := range s.processes {
		if p.Kind == "pool" {
			o.Pools++
			o.Workers += p.Workers
			o.Busy += p.Busy
		}
	}
	if o.Chart, o.Charted, o.Waits, err = plannedOf(ctx, d, s, o.Queues); err != nil {
		return nil, err
	}
	rules, err := bindingFirst(ctx, d, s, o.Queues)
	if err != nil {
		return nil, err
	}
	o.Told = min(len(rules), historyRules)
	changes, err := changesOf(ctx, d, s)
	if err != nil {
		return nil, err
	}
	o.Changes = changes[:min(len(changes), 5)]
	o.Verdict = judge(facts{
		queues: o.Queues, rules: rules, processes: s.processes, unlisted: o.Unlisted, differences: inspect.Differences(nil, s.processes),
		changes: changes, now: o.Now,
	})
	for _, r := range rules {
		o.Limits = append(o.Limits, r.Rule)
	}
	slices.Sort(o.Limits)
	o.Rules, o.ByRule, err = pageOf(d, q, list{"/", "rules", "rules", "#rules-h"}, rules)
	return o, err
}

// bindingFirst are all rules, those first that held tasks up most often in the last hour.
func bindingFirst(ctx context.Context, d *board, s *source, queues []inspect.QueueStatus) ([]ruleRow, error) {
	rules := ruleRows(s, s.Rules(ctx))
	if len(rules) > historyRules {
		waiting, err := waitingOf(ctx, d, s, queues)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(rules, func(a, b ruleRow) int {
			return cmp.Compare(countOf(waiting, b.Rule).Waiting, countOf(waiting, a.Rule).Waiting)
		})
	}
	for n := range rules[:min(len(rules), historyRules)] {
		h, err := historyOf(ctx, d, s, rules[n].Rule, time.Hour)
		if err != nil {
			return nil, err
		}
		rules[n].Hour, rules[n].Known = h.Total, true
	}
	slices.SortStableFunc(rules, func(a, b ruleRow) int { return cmp.Compare(b.Hour.Deferred, a.Hour.Deferred) })
	return rules, nil
}

// statusesOf returns what some queues hold. Those that are known already are not counted again.
func statusesOf(ctx context.Context, s *source, known []inspect.QueueStatus, names []string) ([]inspect.QueueStatus, error) {
	var all []inspect.QueueStatus
	for _, name := range names {
		if n := slices.IndexFunc(known, func(of inspect.QueueStatus) bool { return of.Queue == name }); n >= 0 {
			all = append(all, known[n])
			continue
		}
		one, err := s.Queues(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, one...)
	}
	return all, nil
}

// plannedOf adds up the planned starts of the queues in which most comes due within the hour. What is overdue
// is runnable, and not planned any more.
func plannedOf(ctx context.Context, d *board, s *source, queues []inspect.QueueStatus) (c chart, charted, waits int, err error) {
	var busy []inspect.QueueStatus
	for _, q := range queues {
		if ahead(q.Within1h, q) > 0 {
			busy = append(busy, q)
		}
	}
	slices.SortStableFunc(busy, func(a, b inspect.QueueStatus) int {
		return cmp.Compare(ahead(b.Within1h, b), ahead(a.Within1h, a))
	})
	var minutes [60]int
	for _, q := range busy[:min(len(busy), chartedMax)] {
		d.meter.spend(ctx, 60)
		of, err := s.Planned(ctx, q.Queue)
		if err != nil {
			return chart{}, 0, 0, err
		}
		of[0] = ahead(of[0], q)
		for n, tasks := range of {
			minutes[n] += tasks
		}
	}
	return barsOf(minutes[:], now(queues)), min(len(busy), chartedMax), len(busy), nil
}

func ruleRows(s *source, rules []inspect.RuleStatus) []ruleRow {
	rows := make([]ruleRow, len(rules))
	for n, r := range rules {
		rows[n] = ruleRow{RuleStatus: r}
		for _, p := range s.policies {
			for _, of := range p.Rules {
				if of.Name == r.Rule {
					rows[n].Types = append(rows[n].Types, p.Type)
				}
			}
		}
	}
	return rows
}

// queuePage is what waits on a queue.
type queuePage struct {
	inspect.QueueStatus
	Page  inspect.Page
	Pager pager
}

func loadQueue(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	names, err := s.QueueNames(ctx)
	if err != nil {
		return nil, err
	}
	name := q.Get("queue")
	if _, found := slices.BinarySearch(names, name); !found {
		return nil, fmt.Errorf("%w: there is no such queue", errGone)
	}
	queues, err := queuesOf(ctx, d, s)
	if err != nil {
		return nil, err
	}
	of, err := statusesOf(ctx, s, queues, []string{name})
	if err != nil {
		return nil, err
	}
	p := queuePage{QueueStatus: of[0]}
	p.Page, err = s.DeferredPage(ctx, name, inspect.Cursor(q.Get("from")), lineMost)
	p.Pager = cursorsOf(d, "/queue", "tasks", q, p.Page.Next)
	return p, err
}

// schedulesPage are the entries of schedulers and their ticks.
type schedulesPage struct {
	Entries []inspect.Entry
	Pager   pager
	Ticks   []inspect.Tick
	Last    []inspect.PastTick // of the entries on this page
	Now     time.Time
}

// nextTicks is how many of the next ticks of all entries are told, and lastTicks how many of the
// last of each entry.
const nextTicks, lastTicks = 20, 5

func loadSchedules(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	p := schedulesPage{Now: time.Now()}
	p.Entries, p.Ticks = inspect.Schedules(s.processes, p.Now, nextTicks)
	if p.Entries, p.Pager, err = pageOf(d, q, list{path: "/schedules", param: "from", of: "entries"}, p.Entries); err != nil {
		return nil, err
	}
	p.Last, err = s.LastTicks(ctx, p.Entries, p.Now, lastTicks)
	return p, err
}

// policiesPage are the rules by task type, beside those of pools that differ.
type policiesPage struct {
	Policies    []policyRow
	Pager       pager
	Given       bool // the policies were given, not said by pools
	Pools       int
	Differences []inspect.Difference
	ByPool      pager
}

type policyRow struct {
	Type  string
	Rules []policyRule
}

type policyRule struct {
	Name, InCode, InForce string
	Gate, Stored          bool
	Broken, Away          bool // the stored limit can't be read; Redis does not answer about it
}

func loadPolicies(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	p := policiesPage{Given: d.cfg.Policies != nil}
	differences := inspect.Differences(d.cfg.Policies, s.processes)
	if p.Differences, p.ByPool, err = pageOf(d, q, list{"/policies", "differences", "differences", "#differences-h"}, differences); err != nil {
		return nil, err
	}
	for _, of := range s.processes {
		if of.Kind == "pool" {
			p.Pools++
		}
	}
	inForce := make(map[string]inspect.RuleStatus)
	for _, r := range s.Rules(ctx) {
		inForce[r.Rule] = r
	}
	var listed []queue.Policy
	if listed, p.Pager, err = pageOf(d, q, list{path: "/policies", param: "from", of: "policies"}, s.policies); err != nil {
		return nil, err
	}
	for _, of := range listed {
		row := policyRow{Type: of.Type}
		for _, r := range of.Rules {
			rule := policyRule{Name: r.Name, InCode: numbersOf(r), Gate: !r.Gate.IsZero()}
			rule.InForce, rule.Stored = rule.InCode, false
			if known, ok := inForce[r.Name]; ok {
				rule.InForce, rule.Stored = known.Limit.String(), known.Stored
				rule.Away = errors.Is(known.Err, throttle.ErrUnavailable)
				rule.Broken = known.Err != nil && !rule.Away
			}
			row.Rules = append(row.Rules, rule)
		}
		p.Policies = append(p.Policies, row)
	}
	return p, nil
}

// poolsPage are the processes that run.
type poolsPage struct {
	Processes   []processRow
	Pager       pager
	Known, All  int // how many could be listed, and how many there are
	Differences []inspect.Difference
	Now         time.Time
}

type processRow struct {
	inspect.Process
	Ago          time.Duration // since it said so last, by Redis' clock
	Queues, Runs []string
	More         int // that are not named
	Differs      bool
}

// runsMax is how many queues, policies, sources or entries of a process are named.
const runsMax = 6

func loadPools(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	queues, err := queuesOf(ctx, d, s)
	if err != nil {
		return nil, err
	}
	p := poolsPage{Known: len(s.processes), All: s.all, Differences: inspect.Differences(d.cfg.Policies, s.processes), Now: now(queues)}
	listed, at, err := pageOf(d, q, list{path: "/pools", param: "from", of: "processes"}, s.processes)
	if err != nil {
		return nil, err
	}
	p.Pager = at
	for _, of := range listed {
		row := processRow{Process: of, Ago: max(0, p.Now.Sub(of.Seen.Add(-of.ClockAhead)))}
		for name := range of.Queues {
			row.Queues = append(row.Queues, name)
		}
		slices.Sort(row.Queues)
		for _, policy := range of.Policies {
			row.Runs = append(row.Runs, policy.Type)
		}
		for _, e := range of.Entries {
			row.Runs = append(row.Runs, e.Name)
		}
		row.More = max(0, len(row.Queues)-runsMax) + max(0, len(row.Runs)-runsMax)
		row.Queues, row.Runs = row.Queues[:min(len(row.Queues), runsMax)], row.Runs[:min(len(row.Runs), runsMax)]
		name := fmt.Sprintf("%s:%d", of.Host, of.PID)
		row.Differs = of.Kind == "pool" && slices.ContainsFunc(p.Differences, func(diff inspect.Difference) bool { return diff.Pool == name })
		p.Processes = append(p.Processes, row)
	}
	return p, nil
}

// auditPage is a page of the audit list.
type auditPage struct {
	Changes []auditRow
	Pager   pager
	Now     time.Time
}

type auditRow struct {
	inspect.Change
	Undo string // what would undo it; empty where that can't be done
	Ref  string // that the form sends
	back reversal
}

func loadAudit(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	skip, err := skipOf(q, "from")
	if err != nil {
		return nil, err
	}
	changes, err := s.Audit(ctx, skip, lineMost+1)
	if err != nil {
		return nil, err
	}
	p := auditPage{Pager: pager{Of: "changes"}, Now: time.Now()}
	if len(changes) > lineMost {
		changes, p.Pager.Next = changes[:lineMost], d.with("/audit", nil, "from", strconv.Itoa(skip+lineMost))
	}
	if skip > 0 {
		p.Pager.First, p.Pager.Prev = d.with("/audit", nil), d.with("/audit", nil, "from", before(skip))
	}
	able := make(map[string]reversal)
	newest, err := changesOf(ctx, d, s)
	if err != nil {
		return nil, err
	}
	newest = inspect.Made(newest)
	for n, back := range undoable(newest, p.Now) {
		if back.text != "" {
			able[refOf(newest[n])] = back
		}
	}
	for _, c := range changes {
		row := auditRow{Change: c}
		if c.Failed == "" {
			row.back, row.Ref = able[refOf(c)], refOf(c)
			row.Undo = row.back.text
		}
		p.Changes = append(p.Changes, row)
	}
	return p, nil
}
