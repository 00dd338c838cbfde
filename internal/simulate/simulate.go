// Package simulate says when jobs would run under policies. The limits are those of package
// throttle, counted in memory; the clock jumps from one event to the next.
//
// A job asks for its permits when it arrives. One that may not run yet is booked, and asks again
// at the instant that it was told, or when a job before it leaves: so do the tasks of a pool.
package simulate

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/fake"
	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// Horizon is how long after the last arrival a simulation ends. A job that would start later
// counts as one that never runs.
const Horizon = 10 * 365 * 24 * time.Hour

// ErrBeyondHorizon is about a job that would start after [Horizon].
var ErrBeyondHorizon = errors.New("it would start more than 10 years after the last arrival")

// ErrStuck is about jobs that ask again and again while none of them starts: each is held up by
// others that wait themselves.
var ErrStuck = errors.New("it and others that wait hold each other up: none of them starts")

// Job is a task, and when it is enqueued.
type Job struct {
	At      time.Time
	Type    string
	Payload []byte
}

// Outcome is what becomes of a job.
type Outcome struct {
	Start     time.Time // zero for a job that never runs
	Rule      string    // that it waited for; empty for a job that runs at once
	Unlimited bool      // its type has no policy
	Err       error     // why it never runs
}

// Run returns what becomes of each job, in their order. A worker is free for each job at its
// instant, no job fails, and each takes so long.
func Run(ctx context.Context, policies []queue.Policy, jobs []Job, takes time.Duration) ([]Outcome, error) {
	var now time.Time
	rdb := &fake.Client{Source: fake.Source{
		Now:     func() time.Time { return now },
		Fault:   func() error { return nil },
		Join:    func(func()) {},
		Decided: func(any, error) {},
	}}
	set := func(t time.Time) error {
		now = t
		return nil
	}
	return runOn(ctx, rdb, set, policies, jobs, takes)
}

// runOn counts where rdb says. set moves its clock.
func runOn(
	ctx context.Context, rdb redis.UniversalClient, set func(time.Time) error, policies []queue.Policy, jobs []Job, takes time.Duration,
) ([]Outcome, error) {
	s := &simulation{
		set: set, takes: takes, policies: make(map[string]policy), jobs: jobs,
		out: make([]Outcome, len(jobs)), waits: make([]waiting, len(jobs)),
	}
	limiters := policyset.New(rdb, throttle.Config{InlineWait: throttle.InlineWaitNone})
	for _, p := range policies {
		var rules []policyset.Rule
		for _, r := range p.Rules {
			rules = append(rules, s.rule(r))
		}
		decide, err := limiters.Compile(rules)
		if err != nil {
			return nil, err
		}
		s.policies[p.Type] = policy{p, decide}
	}
	if len(jobs) == 0 {
		return nil, nil
	}
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return jobs[i].At.Compare(jobs[j].At) })
	for rank, i := range order {
		s.waits[i].rank = rank
		s.add(event{at: jobs[i].At.Truncate(time.Microsecond), kind: arrives, job: i}) // as exact as the clock of Redis
	}
	return s.out, s.run(ctx, jobs[order[len(order)-1]].At.Add(Horizon))
}

// leaseMax is the longest lease of throttle.Concurrent.
const leaseMax = 24 * time.Hour

// rule is a rule whose leases last at least as long as a job runs. A pool renews a shorter lease
// until the job ends, and a job that waits asks whenever one of them might have ended. Here the
// end is known, so a job that waits is told it and asks then.
func (s *simulation) rule(r queue.Rule) policyset.Rule {
	long := func(l throttle.Limit) throttle.Limit {
		if takes := wholeMicros(s.takes); l.IsConcurrent() && takes > l.Window() {
			return throttle.Concurrent(l.Permits(), min(takes, leaseMax))
		}
		return l
	}
	rule := policyset.Rule{Name: r.Name, Limit: long(r.Limit)}
	if r.LimitOf != nil {
		rule.LimitOf = func(ctx context.Context, key string, newer time.Time) (throttle.Limit, time.Time, error) {
			l, changed, err := r.LimitOf(ctx, key, newer)
			return long(l), changed, err
		}
	}
	return rule
}

func wholeMicros(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

type policy struct {
	queue.Policy
	decide *throttle.Policy
}

// waiting is a job between its arrival and its start.
type waiting struct {
	policy  policy
	request throttle.Request
	rank    int
	next    time.Time // when it asks
	again   time.Time // when it asked a second time at one instant
	limit   string    // that held it up last
	started bool
}

type simulation struct {
	set      func(time.Time) error
	now      time.Time
	takes    time.Duration
	policies map[string]policy
	jobs     []Job
	out      []Outcome
	waits    []waiting
	events   events
	open     int // jobs that wait
	running  int // jobs that hold leases
	vain     int // asks since the last job that started, while none held a lease
}

// vainMax bounds how often each job that waits may ask before one of them starts. While a job holds
// a lease there is no bound: its end can let others start.
const vainMax = 100

func (s *simulation) run(ctx context.Context, horizon time.Time) error {
	for len(s.events) > 0 {
		e := heap.Pop(&s.events).(event)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if e.at.After(horizon) {
			break
		}
		s.now = e.at
		if err := s.set(e.at); err != nil {
			return err
		}
		if err := s.happens(ctx, e); err != nil {
			return err
		}
		if s.vain > vainMax*(s.open+vainMax) {
			s.end(ErrStuck)
			return nil
		}
	}
	s.end(ErrBeyondHorizon)
	return nil
}

// end says of all jobs that have not started why they never do.
func (s *simulation) end(why error) {
	for i := range s.out {
		if s.out[i].Start.IsZero() && s.out[i].Err == nil {
			s.out[i].Err = why
		}
	}
}

func (s *simulation) happens(ctx context.Context, e event) error {
	w := &s.waits[e.job]
	switch e.kind {
	case ends:
		s.running--
		promoted, err := w.policy.decide.Release(ctx, *e.grant)
		s.promote(promoted)
		return err
	case renews:
		s.renewLater(w.policy.decide, e)
		return errors.Join(w.policy.decide.Renew(ctx, []throttle.Decision{*e.grant})...)
	case arrives:
		if !s.arrive(e.job) {
			return nil
		}
	case asks, asksAgain:
		if w.started || !w.next.Equal(e.at) { // it was told another instant since
			return nil
		}
	}
	return s.ask(ctx, e.job)
}

// arrive finds what a job needs, and says whether it needs anything.
func (s *simulation) arrive(i int) bool {
	p, limited := s.policies[s.jobs[i].Type]
	if !limited {
		s.out[i].Start, s.out[i].Unlimited = s.now, true
		return false
	}
	demand, err := p.Demand(asynq.NewTask(s.jobs[i].Type, s.jobs[i].Payload))
	if err != nil {
		s.out[i].Err = err
		return false
	}
	s.open++
	s.waits[i].policy, s.waits[i].request = p, demand.Request(strconv.Itoa(i))
	return true
}

// ask asks for the permits of a job.
func (s *simulation) ask(ctx context.Context, i int) error {
	w := &s.waits[i]
	d, err := w.policy.decide.Redeem(ctx, w.request)
	s.promote(d.Promoted)
	switch {
	case errors.Is(err, throttle.ErrExceedsLimit):
		s.open--
		w.started, s.out[i].Err = true, err
		return nil
	case err != nil:
		return err
	case !d.Granted:
		if s.running == 0 {
			s.vain++
		}
		if s.out[i].Rule = d.Rule; !d.Gated {
			w.limit = d.Rule
		}
		switch {
		case d.At.After(s.now):
			s.askAt(i, asks, d.At)
		case !w.again.Equal(s.now):
			w.again = s.now
			s.askAt(i, asksAgain, s.now)
		default:
			s.askAt(i, asks, s.now.Add(time.Millisecond))
		}
		return nil
	}
	s.open, s.vain = s.open-1, 0
	w.started, s.out[i].Start, s.out[i].Rule = true, d.At, w.heldUpBy(s.out[i].Rule, s.jobs[i].At, d.At)
	w.request = throttle.Request{}
	if throttle.ForWorkers.LeaseFor(w.policy.decide, d) > 0 {
		s.running++
		e := event{at: d.At, kind: ends, job: i, grant: &d}
		s.renewLater(w.policy.decide, e)
		e.at = d.At.Add(s.takes)
		s.add(e)
	}
	return nil
}

// heldUpBy is the rule that says when a job starts, of a job that was told a rule at last. That is a
// gate which is closed right before the start. Else it is a limit: a job can be told a gate, and
// start later than the gate opens because of others that were told the same.
func (w *waiting) heldUpBy(told string, arrived, start time.Time) string {
	if told == "" || !start.After(arrived) {
		return told
	}
	if rule, closed := gate.FirstClosed(w.request.Gates, start.Add(-time.Microsecond)); closed {
		return rule
	}
	gated := slices.ContainsFunc(w.request.Gates, func(g gate.InZone) bool { return g.Rule == told })
	switch limits := w.policy.decide.Rules(); {
	case gated && w.limit != "":
		return w.limit
	case gated && len(limits) == 1:
		return limits[0].Rule()
	}
	return told
}

// renewLater renews the lease of a job as a pool does, until the job ends.
func (s *simulation) renewLater(p *throttle.Policy, e event) {
	lease, end := throttle.ForWorkers.LeaseFor(p, *e.grant), e.grant.At.Add(s.takes)
	if e.kind, e.at = renews, e.at.Add(lease/3); lease < s.takes && e.at.Before(end) {
		s.add(e)
	}
}

// promote lets jobs come earlier than they were told.
func (s *simulation) promote(promoted []throttle.Promotion) {
	for _, p := range promoted {
		i, err := strconv.Atoi(p.Job)
		if err != nil || s.waits[i].started {
			continue
		}
		if at := later(p.At, s.now); p.Offered || at.Before(s.waits[i].next) {
			if p.Offered {
				at = s.now
			}
			s.askAt(i, asks, at)
		}
	}
}

func (s *simulation) askAt(i int, k kind, at time.Time) {
	s.waits[i].next = at
	s.add(event{at: at, kind: k, job: i})
}

func (s *simulation) add(e event) {
	e.rank = s.waits[e.job].rank
	heap.Push(&s.events, e)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// kind is what happens. At one instant leases end before anybody asks, and jobs that wait
// ask before new ones. A job that is held up by those who ask after it asks once more.
type kind int

const (
	ends kind = iota
	renews
	asks
	arrives
	asksAgain
)

type event struct {
	at    time.Time
	kind  kind
	job   int
	rank  int                // of the job among all arrivals: the order of lines
	grant *throttle.Decision // of a job that holds a lease
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if c := e[i].at.Compare(e[j].at); c != 0 {
		return c < 0
	}
	if e[i].kind != e[j].kind {
		return e[i].kind < e[j].kind
	}
	return e[i].rank < e[j].rank
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}
