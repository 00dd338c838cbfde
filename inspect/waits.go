package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/luascripts"
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
)

var stateNames = [...]string{
	"missing", "pending", "active", "limit", "slot", "closed", "gate", "no place", "scheduled", "retry", "group", "ended",
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
	Closed        time.Time // until when Rule is closed for it; zero for not
	// Booked says that it was booked when it was enqueued, and no worker had it yet.
	Booked bool
	// Parked says that it came too late for its instant: nobody behind it waits for it,
	// and when it comes it stands before them.
	Parked   bool
	Deadline time.Time // beyond which it fails instead of waiting; zero for none, or not known
}

// Explain tells why a task waits. One that is not there is StateMissing and no error. It
// asks Redis twice at most; about one that has no place in a line once more, for its
// payload, which says what gate it waits for. With a throttle.Config of PerClient, and for
// rules that are in no policy here, the place is not known: then At is the instant at
// which the task is woken, and Rule is empty if it may be one of several. A task that
// costs more than a limit in force can ever give is a throttle.ExceedsLimitError.
func (i *Inspector) Explain(ctx context.Context, queue, id string) (Explanation, error) {
	f, err := luascripts.GetTask(ctx, i.rdb, i.keys(queue), id)
	if err != nil {
		return Explanation{}, away("find a task", err)
	}
	state, ok := asynqStates[f.State]
	if !ok {
		return Explanation{}, fmt.Errorf("inspect: find a task: asynq has it as %q, which is not known here", clip(f.State))
	}
	w := Explanation{State: state, At: f.At, Now: f.Now}
	if !f.Ours {
		return w, nil
	}
	w.State, w.Booked = StateNoPlace, f.State == "scheduled"
	place, ok := luascripts.ParseBookingRef(f.For)
	if !ok {
		return w, nil
	}
	w.Deadline = place.Deadline
	if place.Rules == "" {
		err = i.atGate(&w, queue, id)
	} else {
		err = i.inLine(ctx, &w, place.Rules, luascripts.JobID(queue, id))
	}
	if err != nil {
		return Explanation{}, err
	}
	return w, nil
}

// inLine tells of a task that took a place.
func (i *Inspector) inLine(ctx context.Context, w *Explanation, stands luascripts.BookedRules, job string) error {
	names := stands.Policy()
	policy := i.set.Lookup(names)
	ids, costs, ok := stands.Read()
	if i.cfg.PerClient || policy == nil || !ok { // with PerClient it is in a line of the process that deferred it
		w.State = StateLimit
		if !strings.Contains(names, "+") {
			w.Rule = names
		}
		return nil
	}
	s, err := throttle.ForWorkers.Lookup(ctx, throttle.BookingRef{Policy: policy, IDs: ids, Costs: costs, Job: job})
	if err != nil {
		return fmt.Errorf("inspect: find the place of a task: %w", err)
	}
	if !s.Known {
		return nil
	}
	w.State, w.Rule, w.Now, w.Permits, w.Jobs, w.Closed, w.Parked = StateLimit, s.Rule, s.Now, s.Permits, s.Jobs, s.Closed, s.Parked
	w.At = s.At
	switch {
	case !s.Closed.IsZero():
		w.State = StateClosed
	case throttle.ForWorkers.LimitLastKnown(i.set.Limiter(s.Rule)).IsConcurrent():
		w.State = StateSlot
	}
	return nil
}

// atGate tells which gate holds a task up that has no place, if one does.
func (i *Inspector) atGate(w *Explanation, queue, id string) error {
	info, err := i.asynq.GetTaskInfo(queue, id)
	if errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
		w.State = StateMissing // it has gone meanwhile
		return nil
	}
	if err != nil {
		return away("read a task", err)
	}
	p, ok := i.policies[info.Type]
	if !ok || !slices.ContainsFunc(p.Rules, gated) {
		return nil
	}
	d, err := p.Demand(asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers))
	if err != nil {
		return nil //nolint:nilerr // it is no fault of ours: the worker that takes the task fails it
	}
	if rule, closed := closedBetween(d.Gates, w.Now, w.At); closed {
		w.State, w.Rule = StateGate, rule
	}
	return nil
}

// closedBetween is the gate that is closed now, or the first that closes before an instant.
func closedBetween(gates []gate.At, now, at time.Time) (rule string, closed bool) {
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

// errPerClient is about a throttle.Config with which there is no common line.
var errPerClient = fmt.Errorf("%w: with PerClient each process has lines of its own, which nobody else can read", throttle.ErrInvalidConfig)

// pageMax is how many jobs a page has at most.
const pageMax = throttle.PeekMax

// Cursor is where a page begins. It is text without personal data, for a link to the next
// page. The empty Cursor is the first page's.
type Cursor string

// Waiting is one task that waits.
type Waiting struct {
	// Queue and ID are those of the task. In a line they are empty for a caller
	// that blocks in an Acquire, and for a task whose id is longer than a line holds (about 500 bytes).
	Queue, ID string
	Cost      int // permits of the rule whose line it is; 0 in a list of a queue
	// At is the instant of its place, as things stand now. A parked job has missed it. In a
	// list of a queue, At is when the task is woken, as it was told last.
	At     time.Time
	Parked bool // it came too late, see [Explanation]
	// Rules are those of its policy that it waits for, in a list of a queue; none for a
	// task without a place, as at a gate.
	Rules []string
}

// Page is a part of a list.
type Page struct {
	Waiting []Waiting
	Now     time.Time // Redis' clock
	Next    Cursor    // the next page's; empty when nothing follows
	All     int       // how many are in the line; 0 in a list of a queue
}

// LinePage is the page of a line that begins at a cursor, with most places, 1 to
// 250. The line is that of a rule of a policy on one key; those who came too late
// stand first in it. A task that waits for another rule is in that rule's line alone.
func (i *Inspector) LinePage(ctx context.Context, rule, key string, from Cursor, most int) (Page, error) {
	l := i.set.Limiter(rule)
	if l == nil {
		return Page{}, fmt.Errorf("%w: no policy here has a limit named %q", queue.ErrInvalidPolicy, clip(rule))
	}
	if i.cfg.PerClient {
		return Page{}, errPerClient
	}
	number, skip, err := from.read(most)
	if err != nil {
		return Page{}, err
	}
	at := throttle.ListFrom{}
	if from != "" {
		at = throttle.ListFrom{Ticket: number, Skip: skip}
	}
	list, err := l.List(ctx, key, at, most)
	if err != nil {
		return Page{}, fmt.Errorf("inspect: list a line: %w", err)
	}
	p := Page{Now: list.Now, All: list.All}
	for _, b := range list.Listed {
		queue, id, _ := luascripts.TaskOf(b.Job)
		p.Waiting = append(p.Waiting, Waiting{Queue: queue, ID: id, Cost: b.Cost, At: b.At, Parked: b.Parked})
	}
	if len(p.Waiting) == most {
		p.Next = cursorOf(list.Next.Ticket, list.Next.Skip)
	}
	return p, nil
}

// Line is all pages of a line, one after the other. After an error nothing follows.
func (i *Inspector) Line(ctx context.Context, rule, key string) iter.Seq2[Waiting, error] {
	return pages(func(from Cursor) (Page, error) { return i.LinePage(ctx, rule, key, from, pageMax) })
}

// DeferredPage is the page that begins at a cursor, with most places, 1 to 250, of
// what was deferred on a queue or booked for it: all tasks that pools will wake, the first
// to come first. Those that failed, or that a producer scheduled, are asynq's to tell.
func (i *Inspector) DeferredPage(ctx context.Context, queue string, from Cursor, most int) (Page, error) {
	number, skip, err := from.read(most)
	if err != nil {
		return Page{}, err
	}
	first := time.Time{}
	if from != "" {
		first = time.UnixMicro(number)
	}
	r, err := luascripts.ScanDeferred(ctx, i.rdb, i.keys(queue), first, skip, most, false)
	if err != nil {
		return Page{}, away("list what waits", err)
	}
	p := Page{Now: r.Now}
	for _, t := range r.Tasks {
		w := Waiting{Queue: queue, ID: t.ID, At: t.At}
		if place, ok := luascripts.ParseBookingRef(t.For); ok && place.Rules != "" {
			w.Rules = strings.Split(place.Rules.Policy(), "+")
		}
		p.Waiting = append(p.Waiting, w)
		if at := t.At.UnixMicro(); at != number {
			number, skip = at, 0
		}
		skip++
	}
	if len(p.Waiting) == most {
		p.Next = cursorOf(number, skip)
	}
	return p, nil
}

// Deferred is all pages of what waits on a queue, one after the other. After an error
// nothing follows.
func (i *Inspector) Deferred(ctx context.Context, queue string) iter.Seq2[Waiting, error] {
	return pages(func(from Cursor) (Page, error) { return i.DeferredPage(ctx, queue, from, pageMax) })
}

func pages(page func(Cursor) (Page, error)) iter.Seq2[Waiting, error] {
	return func(yield func(Waiting, error) bool) {
		for from := Cursor(""); ; {
			p, err := page(from)
			if err != nil {
				yield(Waiting{}, err)
				return
			}
			for _, w := range p.Waiting {
				if !yield(w, nil) {
					return
				}
			}
			if from = p.Next; from == "" {
				return
			}
		}
	}
}

// cursorOf is behind so many of a number.
func cursorOf(number int64, skip int) Cursor {
	return Cursor(strconv.FormatInt(number, 10) + "." + strconv.Itoa(skip))
}

// read takes a cursor apart, for a page of most places.
func (c Cursor) read(most int) (number int64, skip int, err error) {
	if most < 1 || most > pageMax {
		return 0, 0, fmt.Errorf("%w: a page of %d places, want 1 to %d", ErrInvalidCursor, most, pageMax)
	}
	if c == "" {
		return 0, 0, nil
	}
	before, behind, _ := strings.Cut(string(c), ".")
	number, bad := strconv.ParseInt(before, 10, 64)
	skip, worse := strconv.Atoi(behind)
	if bad != nil || worse != nil || skip < 1 || cursorOf(number, skip) != c {
		return 0, 0, fmt.Errorf("%w: it was not made by a page", ErrInvalidCursor)
	}
	return number, skip, nil
}
