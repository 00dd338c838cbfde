package schedule

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/schedulescripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/queue/internal/check"
)

// Bounds of an [Entry].
const (
	LateMaxDefault      = time.Minute
	MissedWithinDefault = 24 * time.Hour
	MissedWithinMax     = 31 * 24 * time.Hour
	MissedMaxDefault    = 100
	MissedMaxMax        = 1000

	lateMin, lateMax = time.Second, time.Hour
)

// Entry is a task and the ticks at which a [Schedule] enqueues it. It is only a
// description. The zero Entry is invalid.
type Entry struct {
	// Name is 1 to 64 characters out of A-Z, a-z, 0-9, "_", "." and "-", the same
	// in all processes. Required.
	Name string

	// Spec is when it ticks, and Zone the time zone of that, as in [ParseCron].
	// Spec is required; the zone defaults to the one in Spec, or to UTC. ParseCron
	// says which zones are refused.
	Spec string
	Zone *time.Location

	// Queue is the queue of its tasks. Defaults to "default".
	Queue string

	// Task is what is enqueued, with the options of the task. Exactly one of Task
	// and TaskFunc is given.
	Task *queue.Task

	// TaskFunc makes the task of a tick, which is in the zone of the spec. Several
	// processes may call it for one tick, and one of them again; only one of these
	// tasks is enqueued. Its context ends after half of LateMax; a call that does not
	// return then is left alone, and there is no other until it does. When it fails, or
	// panics, it is called again for as long, and then the tick is given up; later
	// ticks wait for that.
	TaskFunc TaskFunc

	// Overlap says what becomes of a tick while the task of an earlier one is
	// unfinished. Defaults to OverlapAllow.
	Overlap Overlap

	// Missed says what becomes of ticks that were missed: nobody came to them for
	// LateMax, all processes or Redis being down. Defaults to MissedSkip.
	Missed Missed

	// LateMax is how late a tick may be without having been missed, 1 s to 1 h.
	// Defaults to LateMaxDefault.
	LateMax time.Duration

	// MissedWithin is how old a missed tick may be to be made up, LateMax to
	// MissedWithinMax. Defaults to MissedWithinDefault, or LateMax.
	MissedWithin time.Duration

	// MissedMax is how many missed ticks MissedRunAll makes up, the latest ones, 1
	// to MissedMaxMax. Defaults to MissedMaxDefault.
	MissedMax int
}

// TaskFunc makes the task of a tick.
type TaskFunc func(ctx context.Context, tick time.Time) (*queue.Task, error)

// Overlap says what becomes of a tick while the task of an earlier tick of its
// entry is unfinished: pending, active, scheduled or to be tried again, in asynq's
// words, which includes one that waits for its limits. One that is archived or
// completed is finished. Of tasks that were unfinished together the last 32 count.
type Overlap int

// The choices.
const (
	// OverlapAllow: its task is enqueued all the same.
	OverlapAllow Overlap = iota
	// OverlapSkip: the tick is skipped.
	OverlapSkip
	// OverlapQueueOne: the tick waits in Redis, and its task is enqueued within a
	// second after the unfinished one has ended. While one waits so, later ticks
	// are skipped.
	OverlapQueueOne
)

// Missed says what becomes of ticks that were missed.
type Missed int

// The choices.
const (
	// MissedSkip: they are skipped.
	MissedSkip Missed = iota
	// MissedRunOnce: the latest tick is done, however many were missed; none of
	// those missed, if one comes that was not.
	MissedRunOnce
	// MissedRunAll: each is done, in their order, the latest MissedMax of them.
	MissedRunAll
)

// ParseTaskID returns the entry and the tick that the task of an id is of, and
// whether it is of one: the ids of a Schedule are such as
// "nightly@2026-03-29T01:00:00Z".
func ParseTaskID(id string) (entry string, tick time.Time, ok bool) {
	entry, text, _ := strings.Cut(id, "@")
	tick, err := time.Parse(time.RFC3339, text)
	if err != nil || check.Name(entry) != nil || tickID(entry, tick) != id {
		return "", time.Time{}, false
	}
	return entry, tick, true
}

func tickID(entry string, tick time.Time) string {
	return entry + "@" + tick.UTC().Format(time.RFC3339)
}

// scheduled is an entry that is ready to tick.
type scheduled struct {
	Entry
	cron Cron
	spec string // names cron in Redis
	keys queuescripts.QueueKeys
}

func (e *scheduled) taskID(tick time.Time) string { return tickID(e.Name, tick) }

// ready makes e ready to tick, or returns what is wrong with it.
func (e Entry) ready(c backend.Client) (*scheduled, []*EntryError) {
	var faults []*EntryError
	bad := func(field string, err error) {
		if err != nil {
			faults = append(faults, &EntryError{Entry: e.Name, Field: field, Err: err})
		}
	}
	e.Queue = cmp.Or(e.Queue, "default")
	e.LateMax = cmp.Or(e.LateMax, LateMaxDefault)
	e.MissedWithin = cmp.Or(e.MissedWithin, max(e.LateMax, MissedWithinDefault))
	e.MissedMax = cmp.Or(e.MissedMax, MissedMaxDefault)
	bad("Name", check.Name(e.Name))
	cron, err := ParseCron(e.Spec, e.Zone)
	bad("Spec", err)
	bad("Queue", check.Queue(e.Queue))
	switch {
	case (e.Task == nil) == (e.TaskFunc == nil):
		bad("Task", errors.New("want exactly one of Task and TaskFunc"))
	case e.Task != nil:
		bad("Task", errors.Join(checkTask(c, e.Task), noDeadline(e.Task)))
	}
	bad("Overlap", check.Range(e.Overlap, OverlapAllow, OverlapQueueOne))
	bad("Missed", check.Range(e.Missed, MissedSkip, MissedRunAll))
	bad("LateMax", check.Range(e.LateMax, lateMin, lateMax))
	bad("MissedWithin", check.Range(e.MissedWithin, e.LateMax, MissedWithinMax))
	bad("MissedMax", check.Range(e.MissedMax, 1, MissedMaxMax))
	return &scheduled{e, cron, schedulescripts.TickSpec(cron.String()), c.Keys(e.Queue)}, faults
}

// joinEntries makes entries ready, in the order of their names, or returns what is
// wrong with them.
func joinEntries(entries []Entry, c backend.Client) ([]*scheduled, error) {
	var (
		all    []*scheduled
		errs   []error
		byName = make(map[string]bool)
	)
	for _, e := range entries {
		ready, faults := e.ready(c)
		if byName[e.Name] {
			faults = append(faults, &EntryError{e.Name, "Name", errors.New("there is another entry of that name")})
		}
		byName[e.Name] = true
		for _, f := range faults {
			errs = append(errs, f)
		}
		all = append(all, ready)
	}
	sortEntries(all)
	return all, errors.Join(errs...)
}

func sortEntries(all []*scheduled) {
	slices.SortFunc(all, func(a, b *scheduled) int { return cmp.Compare(a.Name, b.Name) })
}

// checkTask returns why a task could never be that of a tick, as far as that is
// known without Redis.
func checkTask(c backend.Client, task *queue.Task) error {
	if strings.TrimSpace(task.Type()) == "" {
		return errors.New("a task without a type")
	}
	if err := errors.Join(c.CheckOptions(task.Options()), checkTickOptions(task.Options())); err != nil {
		return err
	}
	if p, ok := c.Policy(task.Type()); ok && !c.Shadow() {
		_, err := p.Request(asynqTask(task), "")
		return err
	}
	return nil
}

// noDeadline refuses one that all ticks would share.
func noDeadline(task *queue.Task) error {
	for _, opt := range task.Options() {
		if opt != nil && opt.Type() == asynq.DeadlineOpt { // nil is refused elsewhere
			return &queue.OptionError{Option: opt.String(), Reason: "one instant for all ticks: use a Timeout, or a TaskFunc"}
		}
	}
	return nil
}

// checkTickOptions returns the options that a tick's task can't have, each an
// [*queue.OptionError].
func checkTickOptions(opts []asynq.Option) error {
	var errs []error
	for _, opt := range opts {
		if opt == nil {
			continue // as of any type that is not asynq's: refused by CheckOptions
		}
		var reason string
		switch opt.Type() {
		case asynq.QueueOpt:
			reason = "the queue is the entry's"
		case asynq.TaskIDOpt:
			reason = "the id of a tick's task is made of its entry and its instant"
		case asynq.UniqueOpt:
			reason = "a tick is done once; what else is unfinished is a matter of Overlap"
		case asynq.GroupOpt:
			reason = "a tick's task is not grouped"
		case asynq.ProcessAtOpt, asynq.ProcessInOpt:
			reason = "when it starts is a matter of Spec"
		default:
			continue
		}
		text := opt.String()
		switch opt.Type() {
		case asynq.QueueOpt, asynq.TaskIDOpt, asynq.GroupOpt: // what it names may be a person
			text, _, _ = strings.Cut(text, "(")
		}
		errs = append(errs, &queue.OptionError{Option: text, Reason: reason})
	}
	return errors.Join(errs...)
}

// asynqTask builds a task for one enqueueing call, sharing nothing with t.
func asynqTask(t *queue.Task) *asynq.Task {
	return asynq.NewTaskWithHeaders(t.Type(), t.Payload(), t.Headers(), t.Options()...)
}
