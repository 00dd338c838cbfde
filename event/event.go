// Package event says what limits do to tasks and to callers, as it happens: metrics,
// traces, logs, history and a program's own hooks are all made from it.
//
// An [Observer] is a struct of functions, one for each kind of event. Set those that you
// need, and give it to throttle.Config or worker.Config:
//
//	worker.Config{Observer: event.Observer{
//		LeaseLost: func(ctx context.Context, e event.LeaseLost) { alarm(e.Task.Queue, e.Rule) },
//	}}
//
// [All] makes one of a single function, [Join] calls several, and [Buffer] keeps a slow one
// away from the workers.
//
// No event holds a key or a payload. Instants are by Redis' clock.
package event

import (
	"context"
	"time"
)

// Observer hears what happens. A function that is nil is not called, and costs nothing.
//
// The functions are called in the goroutine of the call or the task, many at a time: they
// must not block or panic. What needs time belongs behind a [Buffer]. The context is that of
// the call; it may have ended. Functions of a Redis that is away are called once for each
// outage that a pool, or a policy outside of a pool, has noticed.
type Observer struct {
	Granted      func(context.Context, Granted)
	Refused      func(context.Context, Refused)
	Deferred     func(context.Context, Deferred)
	Moved        func(context.Context, Moved)
	Promoted     func(context.Context, Promoted)
	Woken        func(context.Context, Woken)
	Postponed    func(context.Context, Postponed)
	LeaseLost    func(context.Context, LeaseLost)
	Adjusted     func(context.Context, Adjusted)
	Unlimited    func(context.Context, Unlimited)
	LimitChanged func(context.Context, LimitChanged)
	KeyClosed    func(context.Context, KeyClosed)
	RedisAway    func(context.Context, RedisAway)
	RedisBack    func(context.Context, RedisBack)
	// A pool tells these two, some seconds later.
	RedisReplaced func(context.Context, RedisReplaced)
	ClockJumped   func(context.Context, ClockJumped)
}

// Task is the task that an event is about. It is empty outside of a pool.
type Task struct {
	Queue string
	Type  string // empty where only the waker speaks of the task: it knows ids
	ID    string // of asynq; there may be millions: no label of a metric
}

// Event is one of the kinds of this package: [Granted], [Refused], [Deferred], [Moved],
// [Promoted], [Woken], [Postponed], [LeaseLost], [Adjusted], [Unlimited], [LimitChanged],
// [KeyClosed], [RedisAway], [RedisBack], [RedisReplaced] or [ClockJumped]. More may come.
type Event interface{ event() }

// Granted says that a task or a caller has all of its permits: in a pool when its handler
// starts, elsewhere with the answer.
type Granted struct {
	Task  Task
	Rules []string // all that were asked, narrowest first; shared, so do not change it
	At    time.Time
	// From is since when the limits admitted it; zero when nothing was spent on its keys.
	From time.Time
	// Promised is the instant that it was promised last; zero when it did not wait.
	Promised time.Time
	// Late is how long after the later of From and Promised its handler starts. Only a pool
	// knows it, and only of a task that waited.
	Late time.Duration
	// Shadowed says that the limits would not have admitted it: see throttle.Config.Shadow.
	Shadowed bool
	// Fallback says that it was granted without Redis: see throttle.Config.OnUnavailable.
	Fallback bool
	// Forced says that an operator let it run: the rules were not asked, and nothing was spent. At is zero.
	Forced bool
}

// Reason says why something was refused or deferred.
type Reason string

// The reasons. A [Refused] has one of the first group, a [Deferred] one of the second.
const (
	NoPermits    Reason = "no permits"    // the caller asked for permits now, and the limit has none left
	TooLate      Reason = "too late"      // they would come later than the task may wait
	ExceedsLimit Reason = "exceeds limit" // it costs more than the limit holds
	Invalid      Reason = "invalid"       // its key, cost or id can't be used
	Unavailable  Reason = "unavailable"   // Redis did not answer, or its answer can't be used; also of a Deferred

	Booked     Reason = "booked"      // it has a place in a line
	Gated      Reason = "gated"       // opening hours are over; it has an instant and no place
	RetryAfter Reason = "retry after" // its provider asked for a later attempt: see Postponed
	Paused     Reason = "paused"      // the batch that it belongs to is paused
	Returned   Reason = "returned"    // it was granted, and could not start: the pool shuts down
)

// Refused says that a task or a caller gets nothing. In a pool the task is archived with the
// reason; a caller may ask again where the reason is NoPermits or Unavailable.
type Refused struct {
	Task   Task
	Rule   string // that refuses; empty when no single one does
	Reason Reason
	At     time.Time // from when it would be admitted; zero for never or not known
}

// Deferred says that a task gave its worker back and waits, or that a caller outside of a
// pool has a place in a line.
type Deferred struct {
	Task   Task
	Rule   string // that holds it; empty when none was asked
	Reason Reason
	At     time.Time     // its instant; zero when it has none, and is tried again after Wait
	Wait   time.Duration // until then
}

// Moved says that the instant of a task that waits has changed, because those before it
// took longer, or a limit or a closing has changed.
type Moved struct {
	Task    Task
	Rule    string // that holds it now
	At, Was time.Time
}

// Promoted says that a task that waits may come earlier than it was promised, because
// permits came back. A pool that just plans a changed limit may find that first, and tells a
// [Moved] then.
type Promoted struct {
	Task    Task
	At      time.Time
	Offered bool // a lease is kept for it: it should come at once
}

// Woken says that a task that waited was put back to asynq's pending list. It is told when
// Redis has answered: the Granted of the task may be told before.
type Woken struct {
	Task   Task
	Policy string // by which it waited: the names of its rules; empty when nothing was booked
	At     time.Time
}

// Postponed says that a provider asked to try a task later. The key of the rule is closed
// until then, and the task goes first afterwards.
type Postponed struct {
	Task  Task
	Rule  string
	Wait  time.Duration
	Times int // how often this task was postponed, with this time
}

// LeaseLost says that a lease ended while its handler ran. Another task may run in its
// place, and the handler's context has ended.
type LeaseLost struct {
	Task Task
	Rule string // that limits how many run at once; of several the first
}

// Adjusted says that a charge was corrected after the work.
type Adjusted struct {
	Task     Task
	Rule     string
	From, To int // permits
}

// Unlimited says that a pool has a task whose type has no policy.
type Unlimited struct {
	Task  Task
	Fails bool // it does not run, see worker.UnlimitedRefuse; else it runs without limits
}

// LimitChanged says that this process goes by another limit of a rule from now on, or that
// the rule was closed or opened on all keys, whoever did it. It is not called for what a
// process finds when it starts.
type LimitChanged struct {
	Rule   string
	Limit  string // in force; empty when the stored one can't be read, and nothing is granted
	Stored bool   // it is stored, and goes before the one in code
	Closed time.Time
}

// KeyClosed says that this process closed a key of a rule, or opened it again.
type KeyClosed struct {
	Rule  string
	Until time.Time // zero when it was opened
}

// RedisAway says that Redis does not answer, or that it can't run commands at the moment,
// as while it loads its data or while a cluster elects a master.
type RedisAway struct {
	Err error
}

// RedisBack says that Redis answers again.
type RedisBack struct {
	For time.Duration // that it was away, as far as it was noticed
}

// RedisReplaced says that another server process answers than before: Redis was restarted, a replica took
// over, or a node joined the Cluster. Writes that it has never seen are forgotten: permits that they took
// may be granted once more, and tasks that they enqueued may be lost.
type RedisReplaced struct {
	Addr string
}

// ClockJumped says that the clock of a server was set forward or back, by more than a second. It
// says so, too, when the machine of this process was suspended.
type ClockJumped struct {
	Addr string
	By   time.Duration
}

func (Granted) event()       {}
func (Refused) event()       {}
func (Deferred) event()      {}
func (Moved) event()         {}
func (Promoted) event()      {}
func (Woken) event()         {}
func (Postponed) event()     {}
func (LeaseLost) event()     {}
func (Adjusted) event()      {}
func (Unlimited) event()     {}
func (LimitChanged) event()  {}
func (KeyClosed) event()     {}
func (RedisAway) event()     {}
func (RedisBack) event()     {}
func (RedisReplaced) event() {}
func (ClockJumped) event()   {}
