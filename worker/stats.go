package worker

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headwayq/headway/internal/history"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Stats is a snapshot of what a pool or an adapter did since it was made.
type Stats struct {
	Admissions  int64 // times that a task asked its rules; all rules of a policy are one ask
	Granted     int64 // grants under which a handler started; not what a handler acquires itself
	Redeemed    int64 // of those, by tasks that had been promised an instant
	Booked      int64 // admissions answered with an instant: by a place in a line, or at a closed gate without one
	Deferred    int64 // tasks that gave their slot back
	Refused     int64 // tasks that can never run: no key, cost above the limit, too late
	Forced      int64 // handlers that an operator let in without asking their rules; not among Granted
	Unlimited   int64 // tasks whose type has no policy, whatever Config.Unlimited made of them
	Stale       int64 // grants that came too late to be used: this process stood still, or the answers were slow
	WakeChecks  int64 // looks at a booking just before its instant
	Moved       int64 // bookings that had moved: re-timed, not woken
	Wakes       int64 // tasks put back to pending
	Postponed   int64 // tasks deferred by a Retry-After, see RetryAfterError
	LeasesLost  int64 // leases that ended while their handler ran
	Hidden      int64 // deferred tasks whose middleware told asynq something else
	Archived    int64 // throttled tasks that asynq archived all the same: it is not the asynq that is known
	Bypassed    int64 // tasks with a policy that ended and whose limits were not asked: Adapter.Handler is not around their handler
	NotRunAgain int64 // tasks that came again and did not run again, because they had finished here while Redis was away

	// Lateness is how late tasks that waited were started: counted from the promised instant, or from
	// when the ledger admits the task, if that is later. It is of the last 8192 of them.
	LatenessP50, LatenessP99, LatenessMax time.Duration

	// Rules are those that kept tasks waiting, by name.
	Rules []RuleStats

	// Shadowed are the tasks that ran only because of throttle.Config.Shadow, by what would
	// have kept them from running: a deferral, or a reason to be refused.
	Shadowed map[string]int64

	// Lead is how long before its instant a task is woken now.
	Lead time.Duration
}

// RuleStats is how a rule kept tasks waiting. A wait is real time. It begins at the admission in which
// the rule held the task up, or when the task was enqueued with a booking. It ends when the handler
// starts, or when another rule holds the task up. The pool that starts the task counts it. When another
// pool deferred the task, or it was booked, the wait is known to the second, and all of it counts
// for the last rule.
type RuleStats struct {
	Rule   string        // of more than 1,024 rules the last are counted together, as "(others)"
	Bound  int64         // times that it made a task wait, by its own limit or by a Retry-After
	Waited time.Duration // of the tasks whose wait is over, together
	Waits  int64         // how many waits that were; of more than 65,536 at once, the rest is known to the second
}

// counters are the live form of [Stats].
type counters struct {
	admissions, granted, redeemed, booked, deferred, refused, stale      atomic.Int64
	wakeChecks, moved, wakes, notRunAgain, postponed, leasesLost, hidden atomic.Int64
	archived, forced, bypassed                                           atomic.Int64
	unlimited                                                            atomic.Int64
	shadowed                                                             shadowCounters
	rules                                                                ruleCounters
	lateness                                                             samples
}

func (c *counters) snapshot() Stats {
	s := Stats{
		Admissions: c.admissions.Load(), Granted: c.granted.Load(), Redeemed: c.redeemed.Load(),
		Booked: c.booked.Load(), Deferred: c.deferred.Load(), Refused: c.refused.Load(), Stale: c.stale.Load(),
		WakeChecks: c.wakeChecks.Load(), Moved: c.moved.Load(), Wakes: c.wakes.Load(), NotRunAgain: c.notRunAgain.Load(), Postponed: c.postponed.Load(),
		LeasesLost: c.leasesLost.Load(), Hidden: c.hidden.Load(), Archived: c.archived.Load(), Rules: c.rules.snapshot(),
		Forced: c.forced.Load(), Bypassed: c.bypassed.Load(), Unlimited: c.unlimited.Load(), Shadowed: c.shadowed.snapshot(),
	}
	sorted := c.lateness.sorted()
	s.LatenessP50, s.LatenessP99, s.LatenessMax = quantile(sorted, 0.5), quantile(sorted, 0.99), quantile(sorted, 1)
	return s
}

// samplesMax bounds how many durations are remembered.
const samplesMax = 8192

// samples keeps the last durations. The zero value is ready.
type samples struct {
	mu   sync.Mutex
	last []time.Duration
	next int
}

func (s *samples) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.last) < samplesMax {
		s.last = append(s.last, d)
		return
	}
	s.last[s.next] = d
	s.next = (s.next + 1) % samplesMax
}

func (s *samples) sorted() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.last)
	slices.Sort(out)
	return out
}

// quantile of sorted durations, the upper one of two; zero of none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// ruleCounters add up waits by rule. The zero value is ready.
type ruleCounters struct {
	mu     sync.Mutex
	byRule map[string]*RuleStats
}

// bound notes that a rule made a task wait.
func (c *ruleCounters) bound(rule string) {
	if rule == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(rule).Bound++
}

// waited notes that a wait for a rule is over.
func (c *ruleCounters) waited(rule string, wait time.Duration) {
	if rule == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.of(rule)
	s.Waits++
	s.Waited += wait
}

// ruleStatsMax bounds the rules that are counted one by one: handlers may make more and more.
const ruleStatsMax = 1024

// otherRules is what the rules beyond are counted for together.
const otherRules = "(others)"

func (c *ruleCounters) of(rule string) *RuleStats {
	if len(c.byRule) >= ruleStatsMax && c.byRule[rule] == nil {
		rule = otherRules
	}
	s := c.byRule[rule]
	if s == nil {
		if c.byRule == nil {
			c.byRule = make(map[string]*RuleStats)
		}
		s = &RuleStats{Rule: rule}
		c.byRule[rule] = s
	}
	return s
}

// Bounds of what is known of waits.
const (
	waitsMax = 1 << 16
	// startWithin is how long after its instant, or after it was woken, a task is expected here: behind that
	// another pool has started it, or it was deleted.
	startWithin = time.Minute
	// arrivedFor is how long a task is expected to get its permits that has come to its handler. It may have to wait in its slot.
	arrivedFor = time.Hour
)

// waits measures how long tasks really wait that this process starts. Of those that it deferred it
// knows that exactly. Of others, and of those that were booked, Redis has the second in which they
// began to wait. It is safe for concurrent use.
type waits struct {
	rules   *ruleCounters
	history *history.Recorder

	mu     sync.Mutex
	byTask map[string]wait // by asynq's key of the task
}

// wait is one task that waits for a rule.
type wait struct {
	rule  string
	since time.Time
	until time.Time // when it is forgotten: others have the task
}

func newWaits(rules *ruleCounters, h *history.Recorder) *waits {
	return &waits{rules: rules, history: h, byTask: make(map[string]wait)}
}

// over notes a wait that is over.
func (w *waits) over(rule string, d time.Duration) {
	w.rules.waited(rule, max(0, d))
	w.history.Of(rule).Waited(max(0, d))
}

// begin notes that a task waits for a rule from now on, for so long as it was told, and that its wait for the rule
// before is over.
func (w *waits) begin(task, rule string, now time.Time, told time.Duration) {
	w.end(task, now)
	w.mu.Lock()
	defer w.mu.Unlock()
	if rule != "" && len(w.byTask) < waitsMax {
		w.byTask[task] = wait{rule, now, now.Add(told + startWithin)}
	}
}

// arrived notes how a task waited that comes to its handler now, as Redis has it: another process
// may have deferred or booked it, and what is known here can be of an earlier wait. names are the
// limits of its policy. A task that a closing pool had handed back waited for none of them.
func (w *waits) arrived(task string, as queuescripts.Wait, names []string, now time.Time) {
	rule := as.RuleAmong(names)
	w.mu.Lock()
	defer w.mu.Unlock()
	if as.Reason.Cause == queuescripts.CauseReturned {
		delete(w.byTask, task)
		return
	}
	if rule == "" {
		return
	}
	known, ok := w.byTask[task]
	if ok && known.rule == rule && known.since.After(as.Since.Add(-time.Second)) { // it is the same wait, and exact
		known.until = now.Add(arrivedFor)
		w.byTask[task] = known
		return
	}
	if ok || len(w.byTask) < waitsMax {
		w.byTask[task] = wait{rule, as.Since.Add(time.Second / 2), now.Add(arrivedFor)} // somewhen in that second
	}
}

// woken notes that a task was put back into pending: any pool may start it.
func (w *waits) woken(task string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, ok := w.byTask[task]; ok {
		at.until = now.Add(startWithin)
		w.byTask[task] = at
	}
}

// end notes that the wait of a task is over, if it is known.
func (w *waits) end(task string, now time.Time) {
	w.mu.Lock()
	at, ok := w.byTask[task]
	delete(w.byTask, task)
	w.mu.Unlock()
	if ok {
		w.over(at.rule, now.Sub(at.since))
	}
}

// purge forgets the waits of tasks that another pool has started, which counts them, and those
// that nobody will end. One whose instant has moved is forgotten too early: Redis has the second in which it began.
func (w *waits) purge(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for task, at := range w.byTask {
		if now.After(at.until) {
			delete(w.byTask, task)
		}
	}
}

func (c *ruleCounters) snapshot() []RuleStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []RuleStats
	for _, rule := range slices.Sorted(maps.Keys(c.byRule)) {
		out = append(out, *c.byRule[rule])
	}
	return out
}

// What would have kept a task from running that ran in shadow mode: the keys of
// [Stats.Shadowed].
const (
	ShadowedDeferred   = "deferred"         // it would have waited for permits
	ShadowedTooLate    = "too late"         // its permits would have come behind its deadline
	ShadowedExceeds    = "cost above limit" // the limit never admits so much
	ShadowedNoKey      = "no key"
	ShadowedBadCost    = "bad cost"
	ShadowedNoZone     = "no time zone"
	ShadowedNoPolicy   = "no policy"  // under UnlimitedRefuse
	ShadowedUnreadable = "unreadable" // it would have waited: a stored limit or the state of its key can't be read
	ShadowedOther      = "other"
)

// shadowedBy says what stands for an error that would have refused a task.
var shadowedBy = []struct {
	err  error
	text string
}{
	{queue.ErrNoKey, ShadowedNoKey},
	{queue.ErrBadCost, ShadowedBadCost},
	{queue.ErrNoZone, ShadowedNoZone},
	{throttle.ErrExceedsLimit, ShadowedExceeds},
	{throttle.ErrTooLate, ShadowedTooLate},
	{throttle.ErrThrottled, ShadowedDeferred},
	{throttle.ErrStoredLimit, ShadowedUnreadable},
	{ErrNoPolicy, ShadowedNoPolicy},
}

// shadowCounters count what would have kept tasks from running. The zero value is ready.
type shadowCounters struct {
	mu    sync.Mutex
	tasks map[string]int64
}

// add counts a task that would have been refused with err.
func (c *shadowCounters) add(err error) { c.count(refusedBy(err)) }

// refusedBy says what stands for an error that refuses a task, or would.
func refusedBy(err error) string {
	for _, by := range shadowedBy {
		if errors.Is(err, by.err) {
			return by.text
		}
	}
	return ShadowedOther
}

func (c *shadowCounters) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tasks == nil {
		c.tasks = make(map[string]int64)
	}
	c.tasks[what]++
}

func (c *shadowCounters) snapshot() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.tasks)
}
