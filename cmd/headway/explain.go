package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
)

// explainAnswer is an explanation as JSON has it.
type explainAnswer struct {
	Queue     string          `json:"queue,omitempty"`
	Task      string          `json:"task,omitempty"` // empty for one that does not exist yet
	Type      string          `json:"type,omitempty"`
	Batch     string          `json:"batch,omitempty"`
	State     string          `json:"state"`
	Says      string          `json:"says"`
	Rule      string          `json:"rule,omitempty"`
	At        time.Time       `json:"at,omitzero"`
	Now       time.Time       `json:"now"`
	Jobs      int             `json:"jobs_ahead"`
	Permits   int             `json:"permits_ahead"`
	Before    []string        `json:"before,omitempty"` // ids of the first of the line
	Closed    time.Time       `json:"closed,omitzero"`
	Held      time.Time       `json:"held,omitzero"`
	Booked    bool            `json:"booked"`
	Parked    bool            `json:"parked"`
	Deadline  time.Time       `json:"deadline,omitzero"`
	Since     time.Time       `json:"since,omitzero"`
	Moved     int             `json:"moved,omitempty"`
	Cause     string          `json:"cause,omitempty"`
	Postponed int             `json:"postponed,omitempty"`
	RunNow    bool            `json:"run_now,omitempty"`
	Woken     time.Time       `json:"woken,omitzero"`
	Started   time.Time       `json:"started,omitzero"`
	Rules     []verdictAnswer `json:"rules,omitempty"`
	Asynq     *asynqAnswer    `json:"asynq,omitempty"`
}

type verdictAnswer struct {
	Rule    string    `json:"rule"`
	Limit   string    `json:"limit"`
	Key     string    `json:"key,omitempty"`
	Cost    int       `json:"cost,omitempty"`
	Admits  bool      `json:"admits"`
	Binds   bool      `json:"binds"`
	At      time.Time `json:"at,omitzero"`
	Waiting int       `json:"waiting"`
	closings
	Who     string `json:"who,omitempty"`
	Why     string `json:"why,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// closings are until when nothing goes on a key, and why. Closed is the later of the two after it.
type closings struct {
	Closed      time.Time `json:"closed,omitzero"`
	OwnClosed   time.Time `json:"own_closed,omitzero"`
	RuleClosed  time.Time `json:"rule_closed,omitzero"`
	Held        time.Time `json:"held,omitzero"`
	HoldUnknown bool      `json:"hold_unknown,omitempty"`
}

func closingsOf(closed, own, rule, held time.Time, unknown bool) closings {
	return closings{closed.UTC(), own.UTC(), rule.UTC(), held.UTC(), unknown}
}

// texts say it in words.
func (c closings) texts(now time.Time) (all []string) {
	if !c.OwnClosed.IsZero() {
		all = append(all, "the key is closed until "+when(c.OwnClosed, now))
	}
	if !c.RuleClosed.IsZero() {
		all = append(all, "the rule is closed on all keys until "+when(c.RuleClosed, now))
	}
	if !c.Held.IsZero() {
		all = append(all, "pools hold the key until "+when(c.Held, now)+", because Redis may have forgotten grants in a failover or restart")
	}
	if c.HoldUnknown {
		all = append(all, "pools hold keys after a failover, and it is not known whether they hold this one: "+
			"that takes the rights to Redis Functions and INFO, and a headway of the pools' release")
	}
	return all
}

type asynqAnswer struct {
	State     string    `json:"state"`
	Next      time.Time `json:"next,omitzero"`
	Retried   int       `json:"retried"`
	MaxRetry  int       `json:"max_retry"`
	LastError string    `json:"last_error,omitempty"` // only with --show-keys: it is the program's own text
	FailedAt  time.Time `json:"failed_at,omitzero"`
	Completed time.Time `json:"completed_at,omitzero"`
}

// explained is the answer about a task, with its keys as the flags want them shown.
func explained(a *app, q, id string, e inspect.Explanation) explainAnswer {
	got := explainAnswer{
		Queue: q, Task: id, Type: e.Type, Batch: e.Batch, State: e.State.String(), Says: e.Says(), Rule: e.Rule, At: e.At.UTC(), Now: e.Now.UTC(),
		Jobs: e.Jobs, Permits: e.Permits, Closed: e.Closed.UTC(), Held: e.Held.UTC(), Booked: e.Booked, Parked: e.Parked, Deadline: e.Deadline.UTC(),
		Postponed: e.Postponed, Since: e.Since.UTC(), Moved: e.Moved, Cause: string(e.Cause), RunNow: e.RunNow, Woken: e.Woken.UTC(), Started: e.Started.UTC(),
	}
	for _, w := range e.Before {
		got.Before = append(got.Before, w.ID)
	}
	for _, v := range e.Rules {
		answer := verdictAnswer{
			Rule: v.Rule, Limit: v.Limit, Key: a.key(v.Key), Cost: v.Cost, Admits: v.Admits, Binds: v.Binds, At: v.At.UTC(), Waiting: v.Waiting,
			closings: closingsOf(v.Closed, v.OwnClosed, v.RuleClosed, v.Held, v.HoldUnknown), Who: v.Who, Why: v.Why,
		}
		if v.Err != nil {
			answer.Problem = v.Err.Error()
		}
		got.Rules = append(got.Rules, answer)
	}
	if e.Asynq.State != "" {
		got.Asynq = &asynqAnswer{State: e.Asynq.State, Next: e.Asynq.Next.UTC(), Retried: e.Asynq.Retried, MaxRetry: e.Asynq.MaxRetry,
			FailedAt: e.Asynq.FailedAt.UTC(), Completed: e.Asynq.CompletedAt.UTC()}
		if a.showKeys {
			got.Asynq.LastError = e.Asynq.LastError
		}
	}
	return got
}

// causeTexts say why a task was moved.
var causeTexts = map[string]string{
	string(inspect.CauseBooked):     "it asked again and was told another instant",
	string(inspect.CauseGate):       "a gate is closed",
	string(inspect.CauseRetryAfter): "its provider asked for a later attempt",
	string(inspect.CausePaused):     "its batch is paused",
	string(inspect.CauseReturned):   "the pool that had it shut down",
	string(inspect.CauseRedisAway):  "its limits could not be asked",
	string(inspect.CauseLine):       "those before it took another time than expected",
	string(inspect.CauseChange):     "a limit or a closing was changed",
	string(inspect.CauseEarlier):    "permits came back, or it was moved to the front",
	string(inspect.CauseBatch):      "its batch goes on",
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func (e explainAnswer) table(t *table) {
	if e.Task != "" {
		t.row("task", e.Task+" on queue "+e.Queue)
	}
	if e.Type != "" {
		t.row("type", e.Type)
	}
	if e.Batch != "" {
		t.row("batch", e.Batch)
	}
	t.row("state", e.State)
	if e.Rule != "" {
		t.row("rule", e.Rule)
	}
	if !e.At.IsZero() {
		t.row("starts", when(e.At, e.Now))
	}
	if !e.Since.IsZero() {
		text := when(e.Since, e.Now) + fmt.Sprintf(", its instant was changed %s", times(e.Moved))
		if e.Moved > 0 && causeTexts[e.Cause] != "" {
			text += ", at last because " + causeTexts[e.Cause]
		}
		t.row("waits since", text)
	}
	if !e.Closed.IsZero() {
		t.row("closed until", t.bad(when(e.Closed, e.Now)))
	}
	if !e.Held.IsZero() {
		t.row("held until", t.bad(when(e.Held, e.Now)))
	}
	if e.Rule != "" && e.Task != "" {
		t.row("ahead of it", strings.TrimSpace(fmt.Sprintf("%d jobs, %d permits  %s", e.Jobs, e.Permits, strings.Join(e.Before, " "))))
	}
	if !e.Deadline.IsZero() {
		t.row("deadline", when(e.Deadline, e.Now))
	}
	if e.Booked {
		t.row("booked", "when it was enqueued")
	}
	if !e.Started.IsZero() {
		t.row("started", when(e.Started, e.Now))
	}
	if e.Postponed > 0 {
		t.row("postponed", fmt.Sprintf("%d times, its provider asked for it", e.Postponed))
	}
	if a := e.Asynq; a != nil {
		text := fmt.Sprintf("%s, %d of %d retries", a.State, a.Retried, a.MaxRetry)
		if a.LastError != "" {
			text += ", last error: " + a.LastError
		}
		t.row("in asynq", text)
	}
	t.line("%s", e.Says)
	if len(e.Rules) == 0 {
		return
	}
	t.line("")
	t.row("RULE", "LIMIT", "KEY", "COST", "WAIT", "FROM")
	for _, v := range e.Rules {
		key, cost, waiting := "-", "-", "-"
		if v.Key != "" {
			key, cost, waiting = v.Key, fmt.Sprint(v.Cost), fmt.Sprint(v.Waiting)
		}
		from := t.good("now")
		switch {
		case v.Problem != "":
			from = t.bad(v.Problem)
		case !v.Admits:
			from = when(v.At, e.Now)
		}
		if !v.Closed.IsZero() && v.Key != "" {
			from += t.bad(", closed until " + v.Closed.Format(time.RFC3339))
			if v.Why != "" {
				from += fmt.Sprintf(" by %s: %s", v.Who, v.Why)
			}
			if first := earlier(v.OwnClosed, v.RuleClosed); !first.IsZero() {
				from += fmt.Sprintf(", %s until %s", whose(first.Equal(v.OwnClosed)), first.Format(time.RFC3339))
			}
		}
		if !v.Held.IsZero() {
			from += t.bad(", held after a failover until " + v.Held.Format(time.RFC3339))
		}
		if v.HoldUnknown {
			from += t.warn(", not known whether it is held after a failover")
		}
		if v.Binds {
			from += t.warn("  <- waits for this")
		}
		t.row(v.Rule, v.Limit, key, cost, waiting, from)
	}
}

// earlier is the earlier of two instants; zero when one of them is.
func earlier(a, b time.Time) time.Time {
	switch {
	case a.IsZero(), b.IsZero():
		return time.Time{}
	case a.Before(b):
		return a
	}
	return b
}

// whose says what a closing closes.
func whose(key bool) string {
	if key {
		return "the key"
	}
	return "the rule"
}

func explainCommand(a *app) *cobra.Command {
	fresh := false
	c := &cobra.Command{
		Use: "explain TASK | --new TYPE JSON", Short: "why a task does not run, until when, and behind whom",
		Long: `explain tells what a task waits for, and what each rule of its policy says of it.

FROM is the instant from which a rule admits the task. WAIT is how many jobs wait in the
line of the rule on that key. Pools with HoldAfterFailover hold keys after a failover or restart
of Redis: then it says until when.

With --new it answers for a task that does not exist: a payload of a task type, enqueued
now. Keys, costs and zones that a Go function of the program finds are not known here.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if fresh {
				return cobra.ExactArgs(2)(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				if fresh {
					return explainNew(ctx, a, i, args[0], args[1])
				}
				e, err := i.Explain(ctx, a.queue, args[0])
				if err != nil {
					return nil, err
				}
				got := explained(a, a.queue, args[0], e)
				if e.State == inspect.StateMissing {
					return got, fmt.Errorf("task %q on queue %q: %w", args[0], a.queue, errMissing)
				}
				return got, nil
			})
		},
	}
	c.Flags().BoolVar(&fresh, "new", false, "answer for a task that does not exist yet")
	return c
}

// explainNew answers for a task that does not exist yet.
func explainNew(ctx context.Context, a *app, i *inspect.Inspector, taskType, payload string) (answer, error) {
	e, err := i.ExplainNew(ctx, taskType, []byte(payload))
	if errors.Is(err, queue.ErrInvalidPolicy) {
		return nil, fmt.Errorf("%w: %w", errMissing, err)
	}
	if _, demand := errors.AsType[*queue.DemandError](err); demand && len(a.policies) == 0 {
		return nil, badUsage("%w: the pools do not say how keys are found, so give --policy FILE", err)
	} else if err != nil {
		return nil, err
	}
	got := explained(a, "", "", e)
	if e.State == inspect.StatePending {
		got.Says = "it would run at once"
	}
	return got, nil
}
