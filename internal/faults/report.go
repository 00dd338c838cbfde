package faults

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Report is what came of a run.
type Report struct {
	Fault      string         `json:"fault"`
	About      string         `json:"about"`
	Forgets    bool           `json:"forgets"`
	ForgetsAll bool           `json:"forgets_all"`
	Keeps      bool           `json:"keeps_limits"`
	Moves      bool           `json:"moves_clock"`
	System     string         `json:"system"`
	Server     string         `json:"server"`
	Seed       uint64         `json:"seed"`
	For        time.Duration  `json:"for_ns"`
	Workers    int            `json:"workers"`
	Others     int            `json:"others"` // runs that shared the machine
	Rate       int            `json:"rate"`
	Limits     string         `json:"limits"` // by which it is judged
	Strikes    map[string]int `json:"strikes"`

	Releases []Release `json:"releases,omitempty"`  // that were seen to work at the same time
	Looks    int       `json:"looks,omitempty"`     // how often
	BothKeys int       `json:"both_keys,omitempty"` // keys that both decided on during one look

	Accepted  int `json:"accepted"`   // messages of the client and of the batch, and ticks
	Refused   int `json:"refused"`    // calls to enqueue that failed, and were made again
	Sent      int `json:"sent"`       // of these, what the gateway got
	Lost      int `json:"lost"`       // accepted, and neither sent nor in the queue
	LostClear int `json:"lost_clear"` // of these, such that were accepted when no strike was near
	Left      int `json:"left"`       // still in the queue, or to be fed, when the time was over; ticks don't count, which go on
	Archived  int `json:"archived"`   // by asynq, for good
	Again     int `json:"again"`      // sendings of a message that the gateway had

	// Unexplained are those of Again whose sender before was neither killed nor stood still right
	// then, nor was Redis struck so that it may not have heard of the sending.
	Unexplained int            `json:"unexplained"`
	Early       int            `json:"early"`      // sendings before their grants
	Breaches    map[string]int `json:"breaches"`   // by rule, by the instants at which Redis granted
	OverClear   int            `json:"over_clear"` // of these, such that no strike was near: a window and some seconds
	OverTwice   int            `json:"over_twice"` // of these, above twice the limit: what Redis forgets once can't cost more
	AtGateway   int            `json:"at_gateway"`
	// AtGatewayClear are breaches by the gateway's clock among the messages with no strike near.
	AtGatewayClear int           `json:"at_gateway_clear"`
	Old            int           `json:"old"`    // sendings under a grant that was too old, by a process that did not stand still
	Age            time.Duration `json:"age_ns"` // of a grant when its message came, p99
	Unused         int           `json:"unused"` // grants of which nothing came to the gateway

	Postponed int `json:"postponed,omitempty"` // by the gateway of a soak, with a Retry-After
	Failures  int `json:"failures,omitempty"`  // that it answered with 503

	Clear Clear `json:"clear"`

	Used    float64         `json:"used"`      // what was sent during the load, of what the provider's rate, or the slots, let through
	Stall   time.Duration   `json:"stall_ns"`  // longest time without a message at the gateway, during the load
	Stalls  []time.Duration `json:"stalls_ns"` // the same for each strike, until five seconds after it; sorted
	Back    []time.Duration `json:"back_ns"`   // from the end of a strike until the provider's limit was used again, if that was before the next one; sorted
	LateP50 time.Duration   `json:"late_p50_ns"`
	LateP99 time.Duration   `json:"late_p99_ns"` // of a grant, after the instant that was promised

	Leaks *Leaks `json:"leaks,omitempty"` // of a soak
}

// Clear says how much of a run no strike was near, from 0 to 1. What goes wrong near a strike may have it as its cause, so this is how
// much of the run can fail for it.
type Clear struct {
	Sendings float64 `json:"sendings"` // at the gateway, of which no repeat would have a cause
	Messages float64 `json:"messages"` // accepted, of which none may be lost, whatever Redis forgets
	Grants   float64 `json:"grants"`   // that may not break a limit, whatever Redis forgets
}

// longEnough is the load from which on a part of the run must be clear of strikes, clearEnough how large a part.
const (
	longEnough  = time.Minute
	clearEnough = 0.1
)

// Failed says what must not be, by the guarantees: nothing is lost, sent twice without a cause,
// or over a limit, unless Redis itself forgets. What can be forgotten counts only clear of strikes, and a part of the run must be so.
func (r Report) Failed() error {
	var errs []error
	bad := func(n int, what string) {
		if n > 0 {
			errs = append(errs, fmt.Errorf("%s: %d %s", r.Fault, n, what))
		}
	}
	bad(r.Unexplained, "sent again without a cause")
	if !r.Moves {
		bad(r.Early, "sent before they were granted")
		bad(r.Old, "sent under a grant that was too old")
	}
	bad(r.Archived, "archived")
	bad(r.Left, "left in the queue")
	if r.Forgets {
		bad(r.LostClear, "lost with no strike near")
	} else {
		bad(r.Lost, "lost")
	}
	if r.Forgets && !r.Keeps {
		bad(r.OverClear, "over a limit with no strike near")
		bad(r.OverTwice, "over twice a limit")
		bad(r.AtGatewayClear, "over a limit by the gateway's clock, with no strike near")
	} else {
		bad(r.broken(), "over a limit")
		if !r.Moves {
			bad(r.AtGateway, "over a limit by the gateway's clock")
		}
	}
	if c := r.Clear; r.For >= longEnough && (min(c.Sendings, c.Grants) < clearEnough || c.Messages < clearEnough && !r.ForgetsAll) {
		errs = append(errs, fmt.Errorf("%s: strikes were near too much of the time, so too little was judged: %+v", r.Fault, c))
	}
	if r.Leaks != nil {
		for _, leak := range r.Leaks.found() {
			errs = append(errs, fmt.Errorf("%s: %s", r.Fault, leak))
		}
	}
	return errors.Join(errs...)
}

func (r Report) broken() int {
	n := 0
	for _, b := range r.Breaches {
		n += b
	}
	return n
}

// over is how many sendings were above a limit, by the judge who found more of them.
func (r Report) over() int {
	if r.Moves {
		return r.broken()
	}
	return max(r.broken(), r.AtGateway)
}

func (r Report) struck() int {
	n := 0
	for _, s := range r.Strikes {
		n += s
	}
	return n
}

// judge holds what the gateway got against what was accepted, and against the limits.
func (r *run) judge(h history, grants []e2e.Grant, arrivals []e2e.Arrival) Report {
	s := r.spec
	rep := Report{
		Fault: s.Fault.Name, About: s.Fault.About, Forgets: slices.ContainsFunc(r.strikes, forgot), ForgetsAll: s.Fault.ForgetsAll,
		Keeps: s.Fault.KeepsLimits, Moves: s.Fault.MovesClock,
		System: h.System, Server: h.Server,
		Seed: s.Seed, For: s.For, Workers: s.Workers, Others: s.Others, Rate: s.Rate, Refused: r.refused,
		Strikes: map[string]int{}, Breaches: map[string]int{}, Releases: h.Releases, Looks: h.Looks, BothKeys: h.BothKeys,
		Postponed: h.Postponed, Failures: h.Failures, Leaks: r.leaks,
	}
	var limits []string
	rules := r.rules()
	for _, rule := range rules {
		limits = append(limits, fmt.Sprintf("%s %s", rule.Name, e2e.RuleText(rule)))
	}
	rep.Limits = strings.Join(limits, ", ")
	for _, strike := range r.strikes {
		rep.Strikes[strike.What]++
	}
	for _, rule := range rules {
		if !e2e.Judged(rule) {
			rep.AtGateway += e2e.OverSlots(arrivals, rule)
			continue
		}
		if n := e2e.Breaches(grants, rule); n > 0 {
			rep.Breaches[rule.Name] = n
			rep.OverClear += e2e.Breaches(r.clearOfStrikes(grants, windowOf(rule)), rule)
			if !e2e.IsGate(rule) {
				rep.OverTwice += r.overTwice(grants, rule)
			}
		}
	}
	rep.AtGateway += breachesAtGateway(arrivals, rules)
	rep.AtGatewayClear = breachesAtGateway(r.arrivalsClearOfStrikes(arrivals, longestWindow(rules)), rules)
	for _, a := range arrivals {
		if a.ArrivedUs < a.GrantedUs {
			rep.Early++
		}
	}
	rep.Old, rep.Age = r.ages(arrivals, rules)
	rep.Clear.Grants = 1
	if rep.Forgets && !rep.Keeps {
		rep.Clear.Grants = share(len(r.clearOfStrikes(grants, longestWindow(rules))), len(grants))
	}
	rep.Unused = unused(grants, arrivals)
	rep.Left, rep.Archived = h.Left.Waiting+r.unfed, h.Left.Archived
	r.messages(&rep, arrivals, h.Left.IDs)
	r.pace(&rep, arrivals)
	rep.LateP50, rep.LateP99 = lateness(grants)
	return rep
}

func forgot(s Strike) bool { return s.Forgot }

// rules are those of all policies by which the run is judged, each once.
func (r *run) rules() []queue.Rule {
	var rules []queue.Rule
	for _, p := range r.judged {
		for _, rule := range p.Rules {
			if !slices.ContainsFunc(rules, func(known queue.Rule) bool { return known.Name == rule.Name }) {
				rules = append(rules, rule)
			}
		}
	}
	return rules
}

// overTwice counts the grants above twice a limit. Whoever grants keeps the limit by the grants that it knows. So with one strike in a
// window, there are two sets of grants in it, each within the limit. Of strikes that are nearer to each other nothing is counted.
func (r *run) overTwice(grants []e2e.Grant, rule queue.Rule) int {
	window := rule.Limit.Window()
	for i := 1; i < len(r.strikes); i++ {
		if r.strikes[i].From.Sub(r.strikes[i-1].To) < window {
			return 0
		}
	}
	rule.Limit = throttle.Sliding(2*rule.Limit.Permits(), window)
	return e2e.Breaches(grants, rule)
}

func longestWindow(rules []queue.Rule) time.Duration {
	window := time.Duration(0)
	for _, rule := range rules {
		window = max(window, windowOf(rule))
	}
	return window
}

// windowOf is the window of a rule that counts grants; of slots and gates it is 0.
func windowOf(rule queue.Rule) time.Duration {
	if e2e.IsGate(rule) || !e2e.Judged(rule) {
		return 0
	}
	return rule.Limit.Window()
}

// share is a part of all, from 0 to 1; of none it is all.
func share(part, all int) float64 {
	if all == 0 {
		return 1
	}
	return float64(part) / float64(all)
}

// clearOfStrikes are the grants that no strike was near, by a window: what Redis forgot does not concern them.
func (r *run) clearOfStrikes(grants []e2e.Grant, window time.Duration) []e2e.Grant {
	return slices.DeleteFunc(slices.Clone(grants), func(g e2e.Grant) bool {
		at := time.UnixMicro(g.GrantedUs)
		return r.nearStrike(at, window)
	})
}

const lagDefault = 2 * time.Second

// nearStrike says whether Redis may have forgotten what it answered at an instant. What is forgotten counts for a window.
func (r *run) nearStrike(at time.Time, window time.Duration) bool {
	at = r.withoutJumps(at)
	lag := cmp.Or(r.spec.Fault.lag, lagDefault)
	return slices.ContainsFunc(r.strikes, func(s Strike) bool {
		return s.Forgot && at.After(s.From.Add(-lag)) && at.Before(s.To.Add(window+lag))
	})
}

// withoutJumps is an instant without the hours by which the clock of Redis has jumped by then. No run takes an hour then.
func (r *run) withoutJumps(at time.Time) time.Time {
	if !r.spec.Fault.jumpsForGood || at.Before(r.began) {
		return at
	}
	return at.Add(-at.Sub(r.began).Truncate(time.Hour))
}

// mustBeThere says that a message that was accepted at an instant may not be lost, whatever Redis forgot.
func (r *run) mustBeThere(at time.Time) bool {
	if r.nearStrike(at, 0) {
		return false
	}
	return !r.spec.Fault.ForgetsAll || !slices.ContainsFunc(r.strikes, func(s Strike) bool { return at.Before(s.To) })
}

// leftover is what is in the queue at the end.
type leftover struct {
	Waiting  int             `json:"waiting"`
	Archived int             `json:"archived"`
	IDs      map[string]bool `json:"ids"`
}

// orphanAfter is how long after its arrival an active message is taken for one whose end Redis forgot.
const orphanAfter = 2 * time.Second

// left looks what is in the queue.
func (r *run) left() (leftover, error) {
	rdb := r.system.address.client()
	defer rdb.Close()
	i := asynq.NewInspectorFromRedisClient(rdb)
	l, sent := leftover{IDs: map[string]bool{}}, map[string]bool{}
	for _, a := range r.gateway.Arrivals() {
		sent[a.ID] = time.Since(time.UnixMicro(a.ArrivedUs)) > orphanAfter
	}
	for state, list := range map[*int][]func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		&l.Waiting:  {i.ListPendingTasks, i.ListActiveTasks, i.ListScheduledTasks, i.ListRetryTasks},
		&l.Archived: {i.ListArchivedTasks},
	} {
		for _, of := range list {
			for page := 1; ; page++ {
				tasks, err := of(queueName, asynq.Page(page), asynq.PageSize(1000))
				if errors.Is(err, asynq.ErrQueueNotFound) {
					break // Redis forgot it
				}
				if err != nil {
					return leftover{}, err
				}
				for _, t := range tasks {
					m, err := e2e.DecodeMessage(t.Payload)
					if err == nil {
						l.IDs[m.ID] = true
					}
					orphan := r.spec.leaveOrphans && t.State == asynq.TaskStateActive && sent[m.ID]
					if !orphan && !r.mayWait(m.ID) {
						*state++
					}
				}
				if len(tasks) < 1000 {
					break
				}
			}
		}
	}
	return l, nil
}

// mayWait says that a message may wait at the end: the schedule goes on when the load is over.
func (r *run) mayWait(id string) bool {
	text, tick := strings.CutPrefix(id, tickPrefix)
	at, err := strconv.ParseInt(text, 10, 64)
	return tick && err == nil && (r.spec.leaveOrphans || !time.Unix(at, 0).Before(r.began.Add(r.spec.For)))
}

// messages counts what was sent, lost and sent again.
func (r *run) messages(rep *Report, arrivals []e2e.Arrival, left map[string]bool) {
	r.acceptTicks()
	last := map[string]e2e.Arrival{}
	sendings := 0 // that are clear of strikes
	for _, a := range arrivals {
		if !r.mayRepeat(a) {
			sendings++
		}
		if before, again := last[a.ID]; again {
			rep.Again++
			if !r.mayRepeat(before) {
				rep.Unexplained++
			}
		}
		last[a.ID] = a
	}
	rep.Accepted = len(r.accepted)
	lost, messages := 0, 0
	for id, at := range r.accepted {
		mustBeThere := r.mustBeThere(at)
		if mustBeThere {
			messages++
		}
		if _, sent := last[id]; sent {
			rep.Sent++
			continue
		}
		if left[id] {
			if strings.HasPrefix(id, tickPrefix) && !r.spec.leaveOrphans { // the schedule goes on, and only its later ticks may wait
				rep.Left++
			}
			continue
		}
		lost++
		if mustBeThere {
			rep.LostClear++
		}
	}
	rep.Lost, rep.LostClear = lost-r.unfed, max(0, rep.LostClear-r.unfed) // what was not fed is left, and not lost
	rep.Clear.Sendings, rep.Clear.Messages = share(sendings, len(arrivals)), share(messages, len(r.accepted))
}

// acceptTicks adds the ticks of the schedule while messages were enqueued: each second has one. When the clock of Redis jumps for good,
// the ticks after that have other names.
func (r *run) acceptTicks() {
	end := r.began.Add(r.spec.For)
	if r.spec.Fault.jumpsForGood && len(r.strikes) > 0 {
		end = earlier(end, r.strikes[0].From)
	}
	for at := r.began.Truncate(time.Second).Add(2 * time.Second); at.Before(end); at = at.Add(time.Second) {
		r.accepted[tickPrefix+strconv.FormatInt(at.Unix(), 10)] = at
	}
}

// mayRepeat says whether a message may be sent once more. Redis may have forgotten that it was sent: it was struck before a replica, or the
// file from which it begins again, had heard of it. Or its sender was killed or stood still before Redis had heard of it; while Redis is
// struck that takes longer.
func (r *run) mayRepeat(before e2e.Arrival) bool {
	at := time.UnixMicro(before.ArrivedUs)
	noted := at.Add(notesWithin)
	for _, s := range r.strikes {
		if s.AtWorkers || slices.Contains(losesNoReply, s.What) || s.To.Before(at.Add(-time.Second)) {
			continue
		}
		if s.Forgot && s.From.Before(at.Add(max(notesWithin, r.spec.Fault.lag))) {
			return true
		}
		if s.From.Before(noted) {
			noted = later(noted, s.To.Add(notesWithin))
		}
	}
	return r.crew.struck(before.Sender, at, noted)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// afterStrike is how long after a strike a stall is put down to it.
const afterStrike = 5 * time.Second

// pace finds for how long the gateway got nothing: during the load, and around each strike. A strike may last longer than the load.
func (r *run) pace(rep *Report, arrivals []e2e.Arrival) {
	end := r.began.Add(r.spec.For)
	stalls := make([]time.Duration, len(r.strikes))
	var instants []time.Time
	limited := 0 // by the provider's limit
	for _, a := range arrivals {
		at := time.UnixMicro(a.ArrivedUs)
		instants = append(instants, at)
		if at.Before(end) && !strings.HasPrefix(a.ID, plainPrefix) {
			limited++
		}
	}
	last := r.began
	for _, at := range append(instants, end.Add(time.Hour)) {
		rep.Stall = max(rep.Stall, earlier(at, end).Sub(last))
		for i, s := range r.strikes {
			over := end
			if s.To.After(end) { // then what waited comes now
				over = s.To.Add(afterStrike)
			}
			if at.After(s.From) && last.Before(s.To.Add(afterStrike)) {
				stalls[i] = max(stalls[i], earlier(at, over).Sub(last))
			}
		}
		last = at
	}
	slices.Sort(stalls)
	rep.Back = r.back(arrivals)
	rep.Stalls, rep.Used = stalls, float64(limited)/(r.letThrough()*r.spec.For.Seconds())
}

// letThrough is how many messages a second the limits let through.
func (r *run) letThrough() float64 {
	if f := r.spec.Fault; f.bySlots {
		return float64(slotsOf(r.spec.Rate)) / f.takes.Seconds()
	}
	return float64(r.spec.Rate)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// back finds how long after each strike a second began in which nine tenths of what the provider's limit lets through came to the
// gateway. Strikes after which the next one, or the end of the load, came first are left out.
func (r *run) back(arrivals []e2e.Arrival) []time.Duration {
	var limited, back []time.Duration // since the load began
	for _, a := range arrivals {
		if !strings.HasPrefix(a.ID, plainPrefix) {
			limited = append(limited, time.UnixMicro(a.ArrivedUs).Sub(r.began))
		}
	}
	enough := max(1, r.spec.Rate*9/10)
	for i, s := range r.strikes {
		over, until := s.To.Sub(r.began), r.spec.For
		if i+1 < len(r.strikes) {
			until = r.strikes[i+1].From.Sub(r.began)
		}
		first, _ := slices.BinarySearch(limited, over)
		for ; first+enough <= len(limited) && limited[first]+time.Second <= until; first++ {
			if limited[first+enough-1] < limited[first]+time.Second {
				back = append(back, limited[first]-over)
				break
			}
		}
	}
	slices.Sort(back)
	return back
}

// unused counts the grants under which nothing came to the gateway.
func unused(grants []e2e.Grant, arrivals []e2e.Arrival) int {
	type use struct {
		id string
		at int64
	}
	used := map[use]bool{}
	for _, a := range arrivals {
		used[use{a.ID, a.GrantedUs}] = true
	}
	n := 0
	for _, g := range grants {
		if !used[use{g.ID, g.GrantedUs}] {
			n++
		}
	}
	return n
}

// breachesAtGateway counts the breaches by the gateway's clock. Messages of a type without a policy are charged to no rule.
func breachesAtGateway(arrivals []e2e.Arrival, rules []queue.Rule) int {
	charged := slices.DeleteFunc(slices.Clone(arrivals), func(a e2e.Arrival) bool { return len(a.Charges) == 0 })
	return e2e.ReplayArrivals(charged, e2e.Policy{Policy: queue.Policy{Rules: rules}}).Breaches
}

// arrivalsClearOfStrikes are those under grants that no strike was near.
func (r *run) arrivalsClearOfStrikes(arrivals []e2e.Arrival, window time.Duration) []e2e.Arrival {
	return slices.DeleteFunc(slices.Clone(arrivals), func(a e2e.Arrival) bool { return r.nearStrike(time.UnixMicro(a.GrantedUs), window) })
}

// onItsWay is how long a message may be on its way to the gateway, on a machine that is busy.
const onItsWay = time.Second

// ages looks how old grants were when their messages came. A handler may begin up to a tenth of the window after its grant. What came
// later than that, and than a message may be on its way, was sent under an old grant, unless its sender stood still just then.
func (r *run) ages(arrivals []e2e.Arrival, rules []queue.Rule) (old int, p99 time.Duration) {
	slack := time.Second
	for _, rule := range rules {
		if window := windowOf(rule); window > 0 {
			slack = min(slack, max(window/10, 50*time.Millisecond))
		}
	}
	var ages []time.Duration
	for _, a := range arrivals {
		came := time.UnixMicro(a.ArrivedUs)
		age := came.Sub(time.UnixMicro(a.GrantedUs))
		ages = append(ages, age)
		if age > slack+onItsWay && !r.crew.struck(a.Sender, came.Add(-age), came) {
			old++
		}
	}
	slices.Sort(ages)
	return old, percentile(ages, 99)
}

// lateness is how much later than promised grants were given.
func lateness(grants []e2e.Grant) (p50, p99 time.Duration) {
	var late []time.Duration
	for _, g := range grants {
		if g.PromisedUs > 0 {
			late = append(late, time.Duration(g.GrantedUs-g.PromisedUs)*time.Microsecond)
		}
	}
	if len(late) == 0 {
		return 0, 0
	}
	slices.Sort(late)
	return late[len(late)/2], late[len(late)*99/100]
}

// Print writes the report for people.
func (r Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, a ...any) { _, _ = fmt.Fprintf(t, name+"\t"+format+"\n", a...) }
	line("fault", "%s: %s", r.Fault, r.About)
	line("Redis", "%s, %s", r.Server, r.System)
	line("load", "%d/s for %v, %d worker processes, seed %d", r.Rate, r.For, r.Workers, r.Seed)
	line("limits", "%s", r.Limits)
	line("strikes", "%d: %s", r.struck(), counts(r.Strikes))
	for _, release := range r.Releases {
		line(release.Name, "%s: %d processes, %d calls of acquire seen in %s at both releases", release.Library, release.Processes, release.Calls,
			e2e.Count(r.Looks, "look"))
	}
	if len(r.Releases) > 0 {
		line("both decided", "on %d keys within one look", r.BothKeys)
	}
	line("accepted", "%d, after %d refusals", r.Accepted, r.Refused)
	line("sent", "%d", r.Sent)
	line("lost", "%d, %d of them with no strike near", r.Lost, r.LostClear)
	line("sent again", "%d, %d of them without a cause", r.Again, r.Unexplained)
	line("left", "%d in the queue, %d archived", r.Left, r.Archived)
	line("over a limit", "%s by the grants, %d of them with no strike near, %d of them over twice the limit",
		cmp.Or(counts(r.Breaches), "0"), r.OverClear, r.OverTwice)
	line("by the gateway", "%d over a limit, %d of them with no strike near", r.AtGateway, r.AtGatewayClear)
	line("too early", "%d before their grants", r.Early)
	line("age of a grant", "p99 %v when its message came; %d too old", r.Age, r.Old)
	line("grants unused", "%d", r.Unused)
	if r.Postponed+r.Failures > 0 {
		line("refused", "%d postponed by the gateway, %d failed there", r.Postponed, r.Failures)
	}
	line("no strike near", "%.0f %% of the sendings, %.0f %% of the messages, %.0f %% of the grants",
		100*r.Clear.Sendings, 100*r.Clear.Messages, 100*r.Clear.Grants)
	line("limit used", "%.0f %%", 100*r.Used)
	line("stall at a strike", "p50 %v, worst %v", percentile(r.Stalls, 50), percentile(r.Stalls, 100))
	line("full pace again", "p50 %v, worst %v after a strike; %d of %d, before the next one",
		percentile(r.Back, 50), percentile(r.Back, 100), len(r.Back), r.struck())
	line("lateness", "p50 %v, p99 %v", r.LateP50.Round(time.Millisecond), r.LateP99.Round(time.Millisecond))
	if r.Leaks != nil {
		r.Leaks.print(line)
	}
	return t.Flush()
}

func counts(of map[string]int) string {
	var parts []string
	for what, n := range of {
		parts = append(parts, fmt.Sprintf("%d × %s", n, what))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// percentile is one of sorted times; 0 of none.
func percentile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Round(10 * time.Millisecond)
}

// WriteFile writes reports as JSON.
func WriteFile(path string, all []Report) error {
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

// The table of a file stands between these lines, where it has them.
const (
	tableBegins = "<!-- headway prove writes from here -->\n"
	tableEnds   = "<!-- to here -->\n"
)

// WriteTable writes reports as the table of docs/reliability.md: into the place of an earlier one,
// or as a file of its own.
func WriteTable(path string, all []Report) error {
	before, after, err := aroundTable(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(before+tableBegins+table(all)+tableEnds+after), 0o644) // #nosec G306: a page of the docs
}

// CheckTable says why a table can't be written to a file.
func CheckTable(path string) error {
	_, _, err := aroundTable(path)
	return err
}

// aroundTable is what stands before and behind the table of a file.
func aroundTable(path string) (before, after string, err error) {
	old, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(old) == 0 {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	before, rest, begins := strings.Cut(string(old), tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		return "", "", fmt.Errorf("%s has no place for a table: the lines %q and %q", path, strings.TrimSpace(tableBegins), strings.TrimSpace(tableEnds))
	}
	return before, after, nil
}

func table(all []Report) string {
	var b strings.Builder
	b.WriteString("| fault | for | strikes | accepted | lost | sent again | without a cause | over a limit | no strike near | limit used |" +
		" stall at a strike, p50 / worst |\n")
	b.WriteString("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	differ := slices.ContainsFunc(all, func(r Report) bool { return r.Seed != all[0].Seed })
	for _, r := range all {
		remark := ""
		if differ {
			remark = fmt.Sprintf(" (seed %d)", r.Seed)
		}
		if r.Failed() != nil {
			remark += " (failed)"
		}
		fmt.Fprintf(&b, "| `%s`%s | %v | %d | %d | %d | %d | %d | %d | %.0f / %.0f / %.0f %% | %.0f %% | %v / %v |\n", r.Fault, remark, minutes(r.For), r.struck(),
			r.Accepted, r.Lost, r.Again, r.Unexplained, r.over(), 100*r.Clear.Sendings, 100*r.Clear.Messages, 100*r.Clear.Grants,
			100*r.Used, percentile(r.Stalls, 50), percentile(r.Stalls, 100))
	}
	if len(all) > 0 {
		r := all[0]
		fmt.Fprintf(&b, "\n%s, %d/s, %d worker processes, seed %d, %d faults at a time.\n", r.Server, r.Rate, r.Workers, r.Seed, 1+r.Others)
	}
	return b.String()
}

// minutes is a time as 4m, and not as 4m0s.
func minutes(d time.Duration) string {
	if d >= time.Minute && d%time.Minute == 0 {
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}
