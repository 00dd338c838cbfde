package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// State is where a task is, or what it waits for.
type State int

// The states of a task.
const (
	StateMissing   State = iota // it is not there: never enqueued, or done and deleted
	StatePending                // any free worker may take it; what it may have to wait for is found then
	StateActive                 // a worker has it: it runs, or its limits are being asked
	StateLimit                  // it waits for permits of Rule
	StateSlot                   // it waits until one of those that run gives up its slot of Rule
	StateClosed                 // Rule, or its key, is closed until Closed
	StateGate                   // the gate Rule is closed
	StateNoPlace                // it has no place in a line: it asks at At, where it will get one or run
	StateScheduled              // its producer chose when it starts
	StateRetry                  // it failed, and asynq tries again
	StateGroup                  // asynq gathers it with others of its group
	StateEnded                  // it was completed, or archived
	StatePaused                 // its batch is paused; it has no place, and asks again at At
	StateHeld                   // Redis may have forgotten grants, and the pools hold the keys of Rule until Held
)

var stateNames = [...]string{
	"missing", "pending", "active", "limit", "slot", "closed", "gate", "no place", "scheduled", "retry", "group", "ended", "paused", "held",
}

// String returns the state in a word or two.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return stateNames[s]
}

// asynqStates are those that say all.
var asynqStates = map[string]State{
	"": StateMissing, "pending": StatePending, "active": StateActive, "scheduled": StateScheduled, "retry": StateRetry,
	"aggregating": StateGroup, "completed": StateEnded, "archived": StateEnded,
}

// BeforeMax is how many of the tasks before it an [Explanation] lists.
const BeforeMax = 10

// Explanation is the answer about one task.
type Explanation struct {
	State State
	Rule  string // that it waits for; empty where the State needs none
	// At is when it may run, as it follows from its place now; in StateScheduled and
	// StateRetry what asynq goes by, in whole seconds. Zero when it waits for no instant.
	At  time.Time
	Now time.Time // Redis' clock, which all instants are by
	// Permits and Jobs are ahead of it in the line in which it stands. Jobs that hold
	// their turn there while another rule holds them up are among them. Where costs
	// differ, permits that those left who gave up are still counted.
	Permits, Jobs int
	// Before are the first of that line, as far as they stand before it; at most [BeforeMax].
	Before []WaitingTask
	Closed time.Time // until when Rule is closed for it; zero for not
	Held   time.Time // until when Rule is held for it after a failover, see [Key]; zero for not
	// Booked says that it was booked when it was enqueued, and no worker had it yet.
	Booked bool
	// Parked says that it came too late for its instant: nobody behind it waits for it,
	// and when it comes it stands before them.
	Parked   bool
	Deadline time.Time // beyond which it fails instead of waiting; zero for none, or not known

	Type  string // of the task; empty in StateMissing
	Batch string // that it belongs to; empty for none
	// Since is since when it waits, in whole seconds: since its first deferral, or since it was
	// booked. Zero when it does not wait.
	Since time.Time
	Moved int       // how often its instant was changed since
	Woken time.Time // when a pool woke it last; zero for never
	// Started is when its handler was called, in StateActive. asynq says it every 5 s, by the
	// clock of the worker. Zero until then, and for a viewer, whom Redis refuses asynq's list of servers.
	Started time.Time
	// RunNow says that an operator lets it run in spite of its rules, see [Inspector.RunNow].
	RunNow bool
	Cause  Cause // of the instant that it has
	// Postponed is how often it was put off because its provider asked for a later attempt.
	Postponed int
	// Rules are all rules of its policy, in order. The list is empty when its type has no
	// policy here, and in the states in which no rule is asked any more: StateActive,
	// StateEnded and StateMissing.
	Rules []Verdict
	// Never says why a task that was archived could not run, when its key, cost or zone can't be
	// found in it; nil for not so, and where its policy is not known here.
	Never error
	Asynq AsynqView
}

// Says answers in a sentence what an operator asks: is something wrong, does it end by
// itself, and what can be done.
func (e Explanation) Says() string {
	switch e.State {
	case StateLimit:
		if e.Parked {
			return "it did not come at its instant, so others pass it; it goes first when it comes: look whether a pool serves its queue"
		}
		return "a limit holds it, and it starts by itself: a higher limit would let it start earlier"
	case StateSlot:
		return "all slots are taken, and it starts when one is released"
	case StateClosed:
		return "its rule or key is closed; it starts by itself then: \"headway open\" ends that early"
	case StateHeld:
		return "Redis was promoted or began again and may have forgotten grants, so pools hold its key; it starts by itself then, and nothing ends that early"
	case StateGate:
		return "a gate is shut, and it starts by itself when that opens"
	case StateNoPlace:
		return "it has no place in a line yet, and asks for its permits at its instant"
	case StatePending:
		if e.RunNow {
			return "an operator lets it run in spite of its rules: a free worker takes it"
		}
		return "a free worker takes it: if it stays so, workers are missing or the queue is paused"
	case StateActive:
		return "a worker has it"
	case StateScheduled:
		return "its producer chose when it starts"
	case StateRetry:
		return "it failed, and asynq tries it again"
	case StateGroup:
		return "asynq gathers its group"
	case StateEnded:
		if e.Never != nil {
			return "it was archived and could never run: " + e.Never.Error()
		}
		return "it was completed or archived"
	case StatePaused:
		return "its batch is paused, and it goes on with the batch"
	default:
		return "it was never enqueued, or it is done and deleted"
	}
}

// Cause is why a task that waits has its instant.
type Cause string

// The causes.
const (
	CauseNone       Cause = ""
	CauseBooked     Cause = "booked"      // it got a place in a line, or asked again and was told another instant
	CauseGate       Cause = "gate"        // a gate is closed
	CauseRetryAfter Cause = "retry after" // its provider asked for a later attempt
	CausePaused     Cause = "paused"      // its batch is paused
	CauseReturned   Cause = "returned"    // it was granted and could not start: its pool shut down
	CauseRedisAway  Cause = "redis away"  // its limits could not be asked
	CauseLine       Cause = "line"        // those before it took longer than expected, or less long
	CauseChange     Cause = "change"      // a limit or a closing was changed
	CauseEarlier    Cause = "earlier"     // permits came back, or it was moved to the front
	CauseBatch      Cause = "batch"       // its batch goes on
)

// causes are the causes as scripts keep them.
var causes = map[queuescripts.Cause]Cause{
	queuescripts.CauseBooked: CauseBooked, queuescripts.CauseGate: CauseGate, queuescripts.CauseRetryAfter: CauseRetryAfter, queuescripts.CausePaused: CausePaused,
	queuescripts.CauseReturned: CauseReturned, queuescripts.CauseAway: CauseRedisAway, queuescripts.CauseLine: CauseLine, queuescripts.CauseChange: CauseChange,
	queuescripts.CausePromotion: CauseEarlier, queuescripts.CauseBatch: CauseBatch,
}

// AsynqView is what asynq's own tools show of a task.
type AsynqView struct {
	State    string    // "retry" for a deferred task, "scheduled" for a booked one; empty in StateMissing
	Next     time.Time // 5 s behind the instant of a deferred or booked task, in whole seconds; zero for none
	Retried  int       // how often it failed; a deferral does not count
	MaxRetry int
	// LastError is what the handler returned last. It is the program's own text, and may
	// hold personal data.
	LastError string
	FailedAt  time.Time // zero for never
	// CompletedAt is when it was completed; zero when it was not, or is not retained.
	CompletedAt time.Time
}

// Verdict is what a rule says of a task.
type Verdict struct {
	Rule  string
	Limit string // in force for the key, or the hours of a gate
	Key   string // as it stands in Redis: hashed where a Secret is set, else in clear; see [Mask]. Empty for a gate
	Cost  int    // 0 for a gate
	// Admits says that it would let the task run now.
	Admits bool
	// Binds says that it is the rule that the task waits for.
	Binds bool
	// At is from when on it admits the task; zero when it never does, or that is not known.
	// Of the rule in whose line the task stands, and of the narrower ones, it follows from
	// its place; of others it is that of a job that comes now.
	At      time.Time
	Waiting int       // jobs in its line, without those that are late
	Closed  time.Time // until when the rule or the key is closed; zero for not
	// OwnClosed, RuleClosed, Held and HoldUnknown are those of [Key].
	OwnClosed, RuleClosed time.Time
	Held                  time.Time
	HoldUnknown           bool
	// Who and Why are of the closing that ends last, from the audit list. They are empty when the list has no entry of the
	// closing: a provider's Retry-After closed the key, or a program did.
	Who, Why string
	// Err says why nothing is known: the key can't be found here, or the task costs more than
	// the limit ever gives.
	Err error
}

// Explain tells why a task waits: what each of its rules says, which one binds and until
// when, which tasks are before it, and what asynq shows. A task that does not exist has
// StateMissing, and no error is returned. It asks Redis a few times, and once for each rule; each answer is of its own
// moment.
//
// With a throttle.Config of PerClient, and for rules that are in no policy here, the place is
// not known: then At is the instant at which the task is woken, and Rule is empty if it may
// be one of several. A task that costs more than a limit in force can ever give is a
// throttle.ExceedsLimitError.
func (i *Inspector) Explain(ctx context.Context, queue, id string) (Explanation, error) {
	e, booking, err := i.findTask(ctx, queue, id)
	if err != nil || e.State == StateMissing {
		return e, err
	}
	info, err := i.asynq.GetTaskInfo(queue, id)
	if errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
		return Explanation{Now: e.Now}, nil // it has gone meanwhile
	}
	if err != nil {
		return Explanation{}, away("read a task", err)
	}
	e.Type = info.Type
	e.Asynq = AsynqView{
		State: info.State.String(), Next: info.NextProcessAt, Retried: info.Retried, MaxRetry: info.MaxRetry,
		LastError: info.LastErr, FailedAt: info.LastFailedAt, CompletedAt: info.CompletedAt,
	}
	if e.Postponed, err = queuescripts.TimesPostponed(ctx, i.rdb, i.keys(queue), id); err != nil {
		return Explanation{}, away("read a task", err)
	}
	if err := i.ofBatch(ctx, &e, queue, id); err != nil {
		return Explanation{}, err
	}
	if e.State == StateActive {
		if e.Started, err = i.started(queue, id); rediserr.NoPermission(err) {
			err = nil // a viewer is not told
		}
		return e, err
	}
	task := asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers)
	if e.State == StateEnded {
		if info.State == asynq.TaskStateArchived {
			e.Never = i.never(task)
		}
		return e, nil
	}
	if e.State == StateNoPlace {
		i.atGate(&e, task)
	}
	if e.Rules, err = i.verdicts(ctx, &e.Now, task, booking); err != nil {
		return Explanation{}, err
	}
	job := luascripts.JobID(queue, id)
	if e.State == StatePending {
		return e, i.turn(ctx, &e, job)
	}
	return e, i.bind(ctx, &e, job)
}

// never says why the policy of a task can't be asked about it. A function of another program
// is not known here.
func (i *Inspector) never(task *asynq.Task) error {
	p, ok := i.policies[task.Type()]
	if !ok {
		return nil
	}
	if _, err := p.Demand(task); !errors.Is(err, errFunc) {
		return err
	}
	return nil
}

// started is when the handler of an active task was called, as its asynq server says.
func (i *Inspector) started(queue, id string) (time.Time, error) {
	servers, err := i.asynq.Servers()
	if err != nil {
		return time.Time{}, away("list asynq's servers", err)
	}
	for _, s := range servers {
		for _, w := range s.ActiveWorkers {
			if w.Queue == queue && w.TaskID == id {
				return w.Started, nil
			}
		}
	}
	return time.Time{}, nil
}

// turn corrects the verdict of the rule in whose line a pending task still has its place: it
// is not behind itself.
func (i *Inspector) turn(ctx context.Context, e *Explanation, job string) error {
	ref := throttle.BookingRef{Job: job}
	var names []string
	for _, v := range e.Rules {
		if v.Key != "" {
			names, ref.IDs, ref.Costs = append(names, v.Rule), append(ref.IDs, v.Key), append(ref.Costs, v.Cost)
		}
	}
	if ref.Policy = i.set.Lookup(strings.Join(names, "+")); ref.Policy == nil || len(ref.Policy.Rules()) != len(names) || i.cfg.PerClient {
		return nil
	}
	s, err := i.lookup(ctx, ref)
	if err != nil || !s.Known {
		if errors.Is(err, throttle.ErrUnavailable) {
			return fmt.Errorf("inspect: find the place of a task: %w", err)
		}
		return nil // a cost above the limit is in the verdict
	}
	e.holds(s.Rule, s.At)
	return nil
}

// holds corrects the verdicts by the place that the task has: in the line of a rule, where
// its instant is at, and before the jobs that come now in the lines of the narrower rules,
// where it keeps its turn.
func (e *Explanation) holds(rule string, at time.Time) {
	n := slices.IndexFunc(e.Rules, func(v Verdict) bool { return v.Rule == rule })
	for k := range n + 1 {
		if v := &e.Rules[k]; v.Key != "" && v.Err == nil && (k == n || v.At.After(at)) {
			v.At, v.Admits = at, !at.After(e.Now)
		}
	}
}

// findTask says where a task is, and its place in the line in which it stands.
func (i *Inspector) findTask(ctx context.Context, queue, id string) (e Explanation, booked queuescripts.StoredBooking, err error) {
	f, err := queuescripts.GetTask(ctx, i.rdb, i.keys(queue), id)
	if err != nil {
		return e, "", away("find a task", err)
	}
	state, ok := asynqStates[f.State]
	if !ok {
		return e, "", fmt.Errorf("inspect: find a task: asynq has it as %q, which is not known here", clip(f.State))
	}
	e = Explanation{State: state, At: f.At, Now: f.Now, RunNow: f.RunNow, Woken: f.Woken}
	if state != StateActive && state != StateEnded {
		e.Since, e.Moved, e.Cause = f.Wait.Since, f.Wait.Moved, causes[f.Wait.Reason.Cause]
	}
	if !f.PoolsWake {
		return e, "", nil
	}
	e.State, e.Booked = StateNoPlace, f.State == "scheduled"
	record, ok := queuescripts.ParseWaitRecord(f.Record)
	if !ok {
		return e, "", nil
	}
	e.Deadline = record.Deadline
	if record.Booking == "" {
		return e, "", nil
	}
	return e, record.Booking, i.inLine(ctx, &e, record.Booking, queue, id)
}

// meet lets the limits of the keys of a task be found by the hashes that its booking has: the
// functions of these limits take keys in clear. What it can't find out is missed by the question
// that follows.
func (i *Inspector) meet(ctx context.Context, queue, id string, b throttle.BookingRef) {
	hashed := false
	for n, l := range b.Policy.Rules() {
		hashed = hashed || i.perKey[l.Rule()] && strings.HasPrefix(b.IDs[n], "#")
	}
	if !hashed {
		return
	}
	info, err := i.asynq.GetTaskInfo(queue, id)
	if err != nil {
		return
	}
	task := asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers)
	for _, r := range i.policies[info.Type].Rules {
		if r.LimitOf != nil {
			_, _, _ = i.keyOf(ctx, r, task)
		}
	}
}

// inLine tells of a task that took a place.
func (i *Inspector) inLine(ctx context.Context, e *Explanation, booked queuescripts.StoredBooking, queue, id string) error {
	booking, ok := i.set.Booking(booked, luascripts.JobID(queue, id))
	if i.cfg.PerClient || !ok { // with PerClient it is in a line of the process that deferred it
		e.State = StateLimit
		if names := booked.Policy(); !strings.Contains(names, "+") {
			e.Rule = names
		}
		return nil
	}
	i.meet(ctx, queue, id, booking)
	s, err := i.lookup(ctx, booking)
	if err != nil {
		return fmt.Errorf("inspect: find the place of a task: %w", err)
	}
	if !s.Known {
		return nil
	}
	e.State, e.Rule, e.Now, e.Permits, e.Jobs, e.Closed, e.Parked = StateLimit, s.Rule, s.Now, s.Permits, s.Jobs, s.Closed, s.Parked
	e.At, e.Held = s.At, s.Held
	switch {
	case s.Held.After(s.Closed):
		e.State = StateHeld
	case !s.Closed.IsZero():
		e.State = StateClosed
	case throttle.ForWorkers.LimitLastKnown(i.set.Limiter(s.Rule)).IsConcurrent():
		e.State = StateSlot
	}
	return nil
}

// ofBatch tells the batch of a task, and whether that holds it up.
func (i *Inspector) ofBatch(ctx context.Context, e *Explanation, queue, id string) error {
	batch, _, ok := batchscripts.ParseTaskID(id)
	if !ok {
		return nil
	}
	state, err := batchscripts.StateOf(ctx, i.rdb, i.keys(queue), batch)
	if err != nil {
		return away("read a batch", err)
	}
	if state == "" {
		return nil // the task only has such an id
	}
	e.Batch = batch
	if state == batchscripts.Paused && e.State == StateNoPlace {
		e.State = StatePaused
	}
	return nil
}

// atGate tells which gate holds a task up that has no place, if one does.
func (i *Inspector) atGate(e *Explanation, task *asynq.Task) {
	var gates []gate.InZone
	for _, r := range i.policies[task.Type()].Rules {
		// Each by itself: the keys of the limits may not be known here.
		if d, err := (queue.Policy{Type: task.Type(), Rules: []queue.Rule{r}}).Demand(task); gated(r) && err == nil {
			gates = append(gates, d.Gates...)
		}
	}
	if rule, closed := closedBetween(gates, e.Now, e.At); closed {
		e.State, e.Rule = StateGate, rule
	}
}

// closedBetween is the gate that is closed now, or the first that closes before an instant.
func closedBetween(gates []gate.InZone, now, at time.Time) (rule string, closed bool) {
	if rule, closed := gate.FirstClosed(gates, now); closed {
		return rule, true
	}
	for _, o := range gate.Openings(gates, now, at) {
		if o.Close.Before(at) {
			return gate.FirstClosed(gates, o.Close)
		}
	}
	return "", false
}

// verdicts are those of all rules of a task's policy, and of the rules of a booking where the
// type has no policy here. The limits are asked first: where now is zero, it is read with them.
func (i *Inspector) verdicts(ctx context.Context, now *time.Time, task *asynq.Task, booked queuescripts.StoredBooking) ([]Verdict, error) {
	rules := i.policies[task.Type()].Rules
	names := strings.Split(booked.Policy(), "+")
	ids, costs, ok := booked.Read()
	if rules == nil && ok {
		for _, name := range names {
			if l := i.set.Limiter(name); l != nil {
				rules = append(rules, queue.Rule{Name: name, Limit: l.Limit()})
			}
		}
	}
	all := make([]Verdict, len(rules))
	for n, r := range rules {
		v := &all[n]
		v.Rule = r.Name
		if gated(r) {
			continue
		}
		if k := slices.Index(names, r.Name); ok && k >= 0 {
			v.Key, v.Cost = ids[k], costs[k]
		} else if v.Key, v.Cost, v.Err = i.keyOf(ctx, r, task); v.Err != nil {
			v.Limit = throttle.ForWorkers.LimitLastKnown(i.set.Limiter(r.Name)).String()
			continue
		}
		if err := i.ofLimit(ctx, v, now); err != nil {
			return nil, err
		}
	}
	for n, r := range rules {
		if gated(r) {
			ofGate(&all[n], r, task, *now)
		}
	}
	return all, i.closers(ctx, all)
}

// closers looks in the audit list for who closed what.
func (i *Inspector) closers(ctx context.Context, all []Verdict) error {
	closed := func(v Verdict) bool { return v.Key != "" && !v.Closed.IsZero() }
	if !slices.ContainsFunc(all, closed) {
		return nil
	}
	audited, err := i.Audit(ctx, 0, pageMax)
	if err != nil {
		return err
	}
	made := Made(audited)
	for n := range all {
		if closed(all[n]) {
			v := &all[n]
			key := "" // of the closing that ends last
			if v.OwnClosed.Equal(v.Closed) {
				key = v.Key
			}
			v.Who, v.Why = closedBy(made, v.Rule, key, v.Closed)
		}
	}
	return nil
}

// keyOf is the key and the cost of a task under one rule.
func (i *Inspector) keyOf(ctx context.Context, r queue.Rule, task *asynq.Task) (id string, cost int, err error) {
	if err := i.sameKeys(ctx); errors.Is(err, throttle.ErrInvalidConfig) {
		return "", 0, err
	}
	d, err := queue.Policy{Type: task.Type(), Rules: []queue.Rule{r}}.Demand(task)
	if err != nil {
		return "", 0, err
	}
	return throttle.ForWorkers.Meet(i.set.Limiter(r.Name), d.Costs[0].Key), d.Costs[0].Cost, nil
}

// ofLimit asks a limit about a job that comes now.
func (i *Inspector) ofLimit(ctx context.Context, v *Verdict, now *time.Time) error {
	l := i.set.Limiter(v.Rule)
	if i.cfg.PerClient {
		v.Limit, v.Err = l.Limit().String(), errPerClient
		return nil
	}
	s, err := i.peek(ctx, l, v.Key, v.Cost, 0)
	if errors.Is(err, throttle.ErrUnavailable) {
		return fmt.Errorf("inspect: ask a rule: %w", err)
	}
	if limit, unknown := throttle.ForWorkers.LimitOfID(ctx, l, v.Key); unknown == nil {
		v.Limit = limit.String()
	} else {
		v.Limit = throttle.ForWorkers.LimitLastKnown(l).String()
	}
	switch {
	case err != nil:
		v.Err = err
	default:
		if now.IsZero() {
			*now = s.Now
		}
		v.At, v.Waiting, v.Closed, v.OwnClosed, v.RuleClosed = s.Next, s.Waiting, s.Closed, s.OwnClosed, s.RuleClosed
		v.Held, v.HoldUnknown = s.Held, s.HoldUnknown
		if v.Admits = !s.Next.After(s.Now); v.Admits {
			v.At = *now // each rule is asked a moment after the one before
		}
	}
	return nil
}

// ofGate asks a gate.
func ofGate(v *Verdict, r queue.Rule, task *asynq.Task, now time.Time) {
	v.Limit = r.Gate.String()
	d, err := queue.Policy{Type: task.Type(), Rules: []queue.Rule{r}}.Demand(task)
	if err != nil {
		v.Err = err
		return
	}
	v.At = openFrom(d.Gates, now)
	v.Admits = v.At.Equal(now)
	if !v.Admits {
		v.Closed = v.At
	}
}

// openFrom is the first instant from at on at which all gates are open, zero for none in a
// year.
func openFrom(gates []gate.InZone, at time.Time) time.Time {
	const day = 24 * time.Hour
	if len(gates) == 0 {
		return at
	}
	for _, reach := range []time.Duration{30 * day, 366 * day} { // what the first answers is remembered
		for _, o := range gate.Openings(gates, at, at.Add(reach)) {
			if o.Close.After(at) {
				return latest(o.Open, at)
			}
		}
	}
	return time.Time{}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// closedBy finds among the changes that were made who closed a key, or with an empty key the rule, until an
// instant. Both instants are by Redis' clock, of two calls that follow each other.
func closedBy(made []Change, rule, key string, until time.Time) (who, why string) {
	for _, c := range made { // the newest first
		if c.Rule != rule || c.Key != key {
			continue
		}
		if c.Action == ActionOpen {
			break // what was closed before is over
		}
		if c.Action == ActionClose && until.Sub(c.Until).Abs() < 5*time.Second {
			return c.Who, c.Why
		}
	}
	return "", ""
}

// bind marks the verdict that binds a task, and lists the tasks before it.
func (i *Inspector) bind(ctx context.Context, e *Explanation, job string) error {
	if e.State != StateGate {
		e.holds(e.Rule, e.At)
	}
	for n := range e.Rules {
		v := &e.Rules[n]
		if v.Binds = v.Rule == e.Rule; !v.Binds || v.Key == "" || v.Err != nil || e.Jobs == 0 {
			continue
		}
		s, err := i.peek(ctx, i.set.Limiter(v.Rule), v.Key, v.Cost, BeforeMax)
		if errors.Is(err, throttle.ErrUnavailable) {
			return fmt.Errorf("inspect: list a line: %w", err)
		}
		for _, b := range s.Booked {
			if b.Job == job || b.At.After(e.At) {
				break
			}
			queue, id, _ := luascripts.TaskOf(b.Job)
			e.Before = append(e.Before, WaitingTask{Queue: queue, ID: id, Cost: b.Cost, At: b.At})
		}
	}
	return nil
}

// ExplainNew tells what would become of a task that is enqueued now: the instant that its
// rules would give it, which of them binds, and what each of them says. It books nothing.
// In StatePending it would run at once. A task that keeps its turn on a key while a wider
// rule holds it up is not seen: a new task on that key starts later than is said here.
//
// A task that could never run is a [queue.DemandError] or a throttle.ExceedsLimitError, and a
// type without a policy here unwraps to [queue.ErrInvalidPolicy].
func (i *Inspector) ExplainNew(ctx context.Context, taskType string, payload []byte) (Explanation, error) {
	p, ok := i.policies[taskType]
	if !ok {
		return Explanation{}, fmt.Errorf("%w: no policy here is for task type %q", queue.ErrInvalidPolicy, clip(taskType))
	}
	if i.cfg.PerClient {
		return Explanation{}, errPerClient
	}
	task := asynq.NewTask(taskType, payload)
	d, err := p.Demand(task)
	if err != nil {
		return Explanation{}, fmt.Errorf("inspect: a new task: %w", err)
	}
	e := Explanation{State: StatePending, Type: taskType}
	if e.Rules, err = i.verdicts(ctx, &e.Now, task, ""); err != nil {
		return Explanation{}, err
	}
	e.At = e.Now
	binds := -1
	for n, v := range e.Rules {
		if v.Err != nil {
			return Explanation{}, fmt.Errorf("inspect: a new task: rule %q: %w", v.Rule, v.Err)
		}
		if v.At.After(e.At) {
			e.At, binds = v.At, n
		}
	}
	if open := openFrom(d.Gates, e.At); !open.Equal(e.At) { // the limit lets it run while a gate is shut
		rule, _ := gate.FirstClosed(d.Gates, e.At)
		e.At, binds = open, slices.IndexFunc(e.Rules, func(v Verdict) bool { return v.Rule == rule })
	}
	if binds < 0 {
		return e, nil
	}
	v := &e.Rules[binds]
	v.Binds, e.Rule = true, v.Rule
	switch {
	case v.Key == "":
		e.State = StateGate
		return e, nil
	case v.Held.After(v.Closed):
		e.State, e.Held, e.Closed = StateHeld, v.Held, v.Closed
	case !v.Closed.IsZero():
		e.State, e.Closed = StateClosed, v.Closed
	case throttle.ForWorkers.LimitLastKnown(i.set.Limiter(v.Rule)).IsConcurrent():
		e.State = StateSlot
	default:
		e.State = StateLimit
	}
	e.Jobs = v.Waiting
	return e, i.bind(ctx, &e, "")
}

// Position is what may be shown to the person whom a task is for. It names no rule, no key
// and no other task.
type Position struct {
	Known bool // the task is there, or it has ended and asynq keeps it
	Begun bool // a worker has it, or it has ended
	// Place is its place in the line in which it stands, from 1; 0 when it stands in none.
	Place int
	// Start is when it should start, as things stand now; zero when it has begun, and when
	// it is not known.
	Start time.Time
	Now   time.Time // Redis' clock
}

// Position tells the place of a task and when it should start. It asks Redis twice at most.
func (i *Inspector) Position(ctx context.Context, queue, id string) (Position, error) {
	e, _, err := i.findTask(ctx, queue, id)
	if err != nil {
		return Position{}, err
	}
	p := Position{Known: e.State != StateMissing, Begun: e.State == StateActive || e.State == StateEnded, Start: e.At, Now: e.Now}
	switch e.State {
	case StatePending:
		p.Start = e.Now
	case StateLimit, StateSlot, StateClosed, StateHeld:
		p.Place = e.Jobs + 1
	}
	return p, nil
}
