package dashboard

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/headwayq/headway/inspect"
)

// taskPage is the explanation of one task.
type taskPage struct {
	inspect.Explanation
	Queue, ID string
	Says      string
	Level     string
	Steps     []step
	Place     int
	Waits     bool // it can be told to run now
}

// step is one thing on a task's way.
type step struct {
	What string
	At   time.Time // zero where that is not known
	Note string
	Is   string // "past", "now" or "ahead"
}

func loadTask(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	p := taskPage{Queue: q.Get("queue"), ID: q.Get("id")}
	if p.ID == "" {
		return nil, fmt.Errorf("%w: a task has an id", errRequest)
	}
	if p.Explanation, err = s.Explain(ctx, p.Queue, p.ID); err != nil {
		return nil, err
	}
	if p.State == inspect.StateMissing {
		return nil, fmt.Errorf("%w: no task of this id is on the queue: it never was, or it has ended and was deleted", errGone)
	}
	p.Says = p.Explanation.Says()
	p.Level = level(p.Explanation)
	switch p.State {
	case inspect.StateLimit, inspect.StateSlot, inspect.StateClosed, inspect.StateHeld:
		p.Place = p.Jobs + 1
	}
	switch p.State {
	case inspect.StateActive, inspect.StateEnded, inspect.StateGroup:
	default:
		p.Waits = true
	}
	p.Steps = steps(p.Explanation)
	return p, nil
}

// level is how grave a state is.
func level(e inspect.Explanation) string {
	switch e.State {
	case inspect.StateClosed, inspect.StateHeld, inspect.StatePaused, inspect.StateRetry:
		return "note"
	case inspect.StateLimit:
		if e.Parked {
			return "warn"
		}
	}
	return "ok"
}

// cause says why a task has the instant that it has.
func cause(c inspect.Cause) string {
	switch c {
	case inspect.CauseNone:
		return ""
	case inspect.CauseLine:
		return ", because those before it took another time than expected"
	case inspect.CauseChange:
		return ", because a limit or a closing was changed"
	case inspect.CauseEarlier:
		return ", because permits came back, or it went to the front"
	}
	return ", last: " + safeIn(string(c), 40)
}

// steps is the way of a task as far as it is known.
func steps(e inspect.Explanation) (all []step) {
	add := func(is, what string, at time.Time, format string, a ...any) {
		all = append(all, step{What: what, At: at, Note: fmt.Sprintf(format, a...), Is: is})
	}
	woken := func() {
		if !e.Woken.IsZero() {
			add("past", "Woken", e.Woken, "its instant came, and a pool put it to the front of its queue")
		}
	}
	if e.Booked {
		add("past", "Booked", e.Since, "it got its place when it was enqueued")
	} else {
		add("past", "Enqueued", time.Time{}, "%s", "")
	}
	if !e.Asynq.FailedAt.IsZero() {
		add("past", "Failed", e.Asynq.FailedAt, "%d of %d retries are used", e.Asynq.Retried, e.Asynq.MaxRetry)
	}
	if e.Postponed > 0 {
		add("past", "Postponed", time.Time{}, "%s, because its provider asked for a later attempt", plural(e.Postponed, "time"))
	}
	switch e.State {
	case inspect.StateLimit, inspect.StateSlot, inspect.StateClosed, inspect.StateHeld, inspect.StateGate, inspect.StateNoPlace, inspect.StatePaused:
		what := "Waits"
		if !e.Booked {
			what = "Deferred, waits"
		}
		if !e.Booked && !e.Since.IsZero() {
			add("past", "Deferred", e.Since, "a worker asked for its permits")
			what = "Waits"
		}
		if e.Moved > 0 {
			add("past", "Moved", time.Time{}, "its instant was changed %s%s", plural(e.Moved, "time"), cause(e.Cause))
		}
		note := e.State.String()
		if e.Rule != "" {
			note = "for " + safeIn(e.Rule, 64)
		}
		if !e.Since.IsZero() {
			note += ", for " + span(e.Now.Sub(e.Since)) + " so far"
		}
		add("now", what, e.Now, "%s", note)
		if !e.Closed.IsZero() {
			add("ahead", "Its rule or key opens", e.Closed, "%s", "")
		}
		if !e.Held.IsZero() {
			add("ahead", "The hold ends", e.Held, "until then Redis may have forgotten grants that still count")
		}
		if e.At.After(e.Now) {
			add("ahead", "Starts", e.At, "%s", "unless something is changed")
		}
		if !e.Deadline.IsZero() {
			add("ahead", "Deadline", e.Deadline, "it fails when it would have to wait longer")
		}
	case inspect.StatePending:
		woken()
		note := "the next free worker takes it"
		if e.RunNow {
			note += ", in spite of its rules: an operator lets it run"
		}
		add("now", "Pending", e.Now, "%s", note)
	case inspect.StateActive:
		woken()
		if e.Started.IsZero() {
			add("now", "Runs", e.Now, "a worker has it")
			break
		}
		add("past", "Started", e.Started, "a worker called its handler, or asks its rules")
		add("now", "Runs", e.Now, "for %s so far", span(e.Now.Sub(e.Started)))
	case inspect.StateScheduled:
		add("now", "Scheduled", e.Now, "by its producer")
		add("ahead", "Comes due", e.At, "%s", "")
	case inspect.StateRetry:
		add("now", "Waits for a retry", e.Now, "%s", "")
		add("ahead", "Tried again", e.At, "%s", "")
	case inspect.StateEnded:
		woken()
		add("now", "Ended", e.Asynq.CompletedAt, "asynq has it as %s", safeIn(e.Asynq.State, 20))
	default:
		add("now", "Is "+e.State.String(), e.Now, "%s", "")
	}
	return all
}
