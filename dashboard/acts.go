package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// form is what a change was asked with.
type form struct {
	verb                            Verb
	rule, key, queue, task, batchID string
	text                            string        // a limit or a pace
	percent                         int           // a weight
	d                               time.Duration // 0 for not given
	change                          inspect.Change
	back                            string
}

const formMax = 64 << 10 // bytes of a form

// doer makes a change.
type doer struct {
	verb Verb
	done string // what the page says afterwards
	do   func(ctx context.Context, s *source, f form, why inspect.Reason) error
}

// doers are the changes.
var doers = []doer{
	{CloseKey, "The key is closed.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		if f.d <= 0 {
			return errNoTime
		}
		_, err := s.CloseKey(ctx, f.rule, f.key, f.d, why)
		return err
	}},
	{OpenKey, "The key is open.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.OpenKey(ctx, f.rule, f.key, why)
	}},
	{PauseKey, "The key is paused.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.PauseKey(ctx, f.rule, f.key, why)
	}},
	{CancelKey, "What waited on the key is cancelled.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		_, err := s.CancelKey(ctx, f.queue, f.rule, f.key, why)
		return err
	}},
	{FrontKey, "What waits on the key is at the front.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		_, err := s.FrontKey(ctx, f.queue, f.rule, f.key, why)
		return err
	}},
	{CloseRule, "The rule is closed.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		if f.d <= 0 {
			return errNoTime
		}
		_, err := s.CloseRule(ctx, f.rule, f.d, why)
		return err
	}},
	{OpenRule, "The rule is open.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.OpenRule(ctx, f.rule, why)
	}},
	{SetLimit, "The limit is stored. All processes decide by it within a second.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		l, err := throttle.ParseLimit(f.text)
		if err != nil {
			return err
		}
		return s.SetLimit(ctx, f.rule, l, f.d, why)
	}},
	{UnsetLimit, "The limit in code counts again.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.UnsetLimit(ctx, f.rule, why)
	}},
	{PauseQueue, "The queue is paused.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.PauseQueue(ctx, f.queue, why)
	}},
	{ResumeQueue, "The queue goes on.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.ResumeQueue(ctx, f.queue, why)
	}},
	{CancelTask, "The task is cancelled.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.Cancel(ctx, f.queue, f.task, why)
	}},
	{FrontTask, "The task is at the front of its line.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.Front(ctx, f.queue, f.task, why)
	}},
	{RunTask, "A free worker takes the task, whatever its rules say.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.RunNow(ctx, f.queue, f.task, why)
	}},
	{PauseBatch, "The batch is paused.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.PauseBatch(ctx, f.queue, f.batchID, why)
	}},
	{ResumeBatch, "The batch goes on.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.ResumeBatch(ctx, f.queue, f.batchID, why)
	}},
	{CancelBatch, "The batch is cancelled.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.CancelBatch(ctx, f.queue, f.batchID, why)
	}},
	{SetPace, "The batch has another pace.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		pace, err := parsePace(f.text)
		if err != nil {
			return err
		}
		return s.SetPace(ctx, f.queue, f.batchID, pace, why)
	}},
	{SetWeight, "The batch has another weight.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.SetWeight(ctx, f.queue, f.batchID, f.percent, why)
	}},
	{Undo, "The change is undone.", undo},
}

var errNoTime = fmt.Errorf("%w: say for how long: what is closed opens by itself then", errRequest)

// slug is a verb in an address.
func slug(v Verb) string { return strings.ReplaceAll(string(v), " ", "-") }

// doneText is what a page says after a change; only texts of ours.
func doneText(of string) string {
	for _, a := range doers {
		if slug(a.verb) == of {
			return a.done
		}
	}
	return ""
}

// act makes a change, and leads back to the page that asked for it.
func (d *board) act(w http.ResponseWriter, r *http.Request) {
	if !d.cfg.AllowWrites {
		d.fault(w, r, http.StatusForbidden, "This dashboard only shows.", "Config.AllowWrites, or headway serve --write, lets it change something.")
		return
	}
	f, err := d.form(w, r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	n := slices.IndexFunc(doers, func(a doer) bool { return a.verb == f.verb })
	if n < 0 {
		d.fail(w, r, fmt.Errorf("%w: there is no such change", errRequest))
		return
	}
	p, q, err := d.viewOf(f.back)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	a := Action{Verb: f.verb, Page: p.name, Rule: f.rule, Queue: f.queue, Task: f.task, Batch: f.batchID}
	s, err := d.source(r.Context())
	if err == nil && f.verb == Undo {
		err = f.find(r.Context(), s, r.PostFormValue("change"))
		a.Rule, a.Queue, a.Task, a.Batch = f.change.Rule, f.change.Queue, f.change.Task, f.change.Batch
	}
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if !d.allowed(r, a) {
		d.refuse(w, r)
		return
	}
	why := inspect.Reason{Who: d.cfg.Who(r), Why: strings.TrimSpace(r.PostFormValue("reason"))}
	if why.Why == "" {
		d.fail(w, r, fmt.Errorf("%w: every change is noted: say why", errRequest))
		return
	}
	if err := doers[n].do(r.Context(), s, f, why); err != nil {
		d.fail(w, r, err)
		return
	}
	d.views.forget()
	q.Del("limit") // of a preview
	q.Del("for")
	if f.verb == CancelTask { // its page is gone
		p, q = page{path: "/queue"}, url.Values{"queue": {f.queue}}
	}
	q.Set("done", slug(f.verb))
	http.Redirect(w, r, d.cfg.Prefix+p.path+"?"+q.Encode(), http.StatusSeeOther)
}

// form reads a change.
func (d *board) form(w http.ResponseWriter, r *http.Request) (form, error) {
	r.Body = http.MaxBytesReader(w, r.Body, formMax)
	if err := r.ParseForm(); err != nil {
		return form{}, fmt.Errorf("%w: the form can't be read", errRequest)
	}
	v := func(name string) string { return r.PostFormValue(name) }
	f := form{
		verb: Verb(v("verb")), rule: v("rule"), queue: v("queue"), task: v("id"), batchID: v("batch"), back: v("back"),
		text: strings.TrimSpace(v("value")),
	}
	var errs []error
	if token := v("k"); token != "" {
		id, err := d.seal.open(token)
		f.key = id
		errs = append(errs, err)
	}
	if text := strings.TrimSpace(v("for")); text != "" {
		var err error
		if f.d, err = parseSpan(text); err != nil {
			errs = append(errs, err)
		}
	}
	if f.verb == SetWeight {
		var err error
		if f.percent, err = strconv.Atoi(strings.TrimSuffix(f.text, "%")); err != nil {
			errs = append(errs, fmt.Errorf("%w: the weight is %q, want 1 to 100", errRequest, clip(f.text, 20)))
		}
	}
	return f, errors.Join(errs...)
}

// parseSpan reads a length of time such as "90m" or "2d".
func parseSpan(text string) (time.Duration, error) {
	bad := fmt.Errorf("%w: the time is %q, want such as 90s, 15m, 2h or 7d", errRequest, clip(text, 20))
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 1 || n > 366 {
			return 0, bad
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, bad
	}
	return d, nil
}

// parsePace reads a pace as batch.Pace prints it, such as "100/1m"; "none" is no bound.
func parsePace(text string) (batch.Pace, error) {
	if text == "none" || text == (batch.Pace{}).String() {
		return batch.Pace{}, nil
	}
	n, per, ok := strings.Cut(text, "/")
	count, err := strconv.Atoi(n)
	if ok && err == nil {
		if _, digit := strconv.Atoi(per[:min(1, len(per))]); digit != nil {
			per = "1" + per // "100/s"
		}
		if d, err := time.ParseDuration(per); err == nil {
			return batch.Pace{N: count, Per: d}, nil
		}
	}
	return batch.Pace{}, fmt.Errorf("%w: the pace is %q, want such as 100/1m, or none", errRequest, clip(text, 40))
}

// find looks a change up by its instant.
func (f *form) find(ctx context.Context, s *source, ref string) error {
	changes, err := s.Audit(ctx, 0, 250)
	if err != nil {
		return err
	}
	able := undoable(changes)
	for n, c := range changes {
		if refOf(c) == ref && able[n] != "" {
			f.change = c
			if c.Action == inspect.ActionOpen {
				f.change.Until = closedBefore(changes[n+1:], c)
			}
			return nil
		}
	}
	return fmt.Errorf("%w: this change can't be undone: something newer has changed the same, or it is too old", errRequest)
}

func refOf(c inspect.Change) string {
	return c.At.UTC().Format(time.RFC3339Nano) + " " + string(c.Action)
}

// subject is what a change is about: of two on one subject only the newer can be undone.
func subject(c inspect.Change) string {
	kind := string(c.Action)
	switch c.Action {
	case inspect.ActionClose, inspect.ActionOpen:
		kind = "closing"
	case inspect.ActionSetLimit, inspect.ActionUnsetLimit:
		kind = "limit"
	case inspect.ActionPauseQueue, inspect.ActionResumeQueue:
		kind = "queue"
	case inspect.ActionPauseBatch, inspect.ActionResumeBatch:
		kind = "batch"
	}
	return strings.Join([]string{kind, c.Rule, c.Key, c.Queue, c.Task, c.Batch}, "\x00")
}

// undoable says of each of the newest changes what would undo it; "" where nothing does.
func undoable(changes []inspect.Change) []string {
	out := make([]string, len(changes))
	seen := make(map[string]bool)
	failed := make(map[string]bool)
	for n, c := range changes { // the newest first: a change that failed stands behind the entry that says so
		if c.Failed != "" {
			failed[refOf(c)] = true
			continue
		}
		if failed[refOf(c)] || seen[subject(c)] {
			continue
		}
		seen[subject(c)] = true
		switch c.Action {
		case inspect.ActionClose:
			if c.Until.After(time.Now()) {
				out[n] = "open it"
			}
		case inspect.ActionOpen:
			if until := closedBefore(changes[n+1:], c); until.After(time.Now()) {
				out[n] = "close it until then again"
			}
		case inspect.ActionSetLimit, inspect.ActionUnsetLimit:
			if c.Before != "" {
				out[n] = "store " + clip(c.Before, 60) + " again"
			} else if c.Action == inspect.ActionSetLimit {
				out[n] = "let the limit in code count again"
			}
		case inspect.ActionPauseQueue, inspect.ActionPauseBatch:
			out[n] = "resume it"
		case inspect.ActionResumeQueue, inspect.ActionResumeBatch:
			out[n] = "pause it"
		case inspect.ActionSetPace, inspect.ActionSetWeight:
			if c.Before != "" {
				out[n] = "set " + clip(c.Before, 60) + " again"
			}
		}
	}
	return out
}

// closedBefore is until when something was closed that a change opened.
func closedBefore(older []inspect.Change, opened inspect.Change) time.Time {
	for _, c := range older {
		if c.Rule == opened.Rule && c.Key == opened.Key && c.Failed == "" {
			if c.Action == inspect.ActionClose {
				return c.Until
			}
			if c.Action == inspect.ActionOpen {
				return time.Time{}
			}
		}
	}
	return time.Time{}
}

// undo makes the change that takes another back.
func undo(ctx context.Context, s *source, f form, why inspect.Reason) error {
	c := f.change
	left := time.Until(c.Until).Truncate(time.Millisecond)
	switch c.Action {
	case inspect.ActionClose:
		if c.Key == "" {
			return s.OpenRule(ctx, c.Rule, why)
		}
		return s.OpenKey(ctx, c.Rule, c.Key, why)
	case inspect.ActionOpen:
		if left <= 0 {
			return fmt.Errorf("%w: it would be open by now", errRequest)
		}
		var err error
		if c.Key == "" {
			_, err = s.CloseRule(ctx, c.Rule, left, why)
		} else {
			_, err = s.CloseKey(ctx, c.Rule, c.Key, left, why)
		}
		return err
	case inspect.ActionSetLimit, inspect.ActionUnsetLimit:
		if c.Before == "" {
			return s.UnsetLimit(ctx, c.Rule, why)
		}
		l, err := throttle.ParseLimit(c.Before)
		if err != nil {
			return err
		}
		return s.SetLimit(ctx, c.Rule, l, 0, why)
	case inspect.ActionPauseQueue:
		return s.ResumeQueue(ctx, c.Queue, why)
	case inspect.ActionResumeQueue:
		return s.PauseQueue(ctx, c.Queue, why)
	case inspect.ActionPauseBatch:
		return s.ResumeBatch(ctx, c.Queue, c.Batch, why)
	case inspect.ActionResumeBatch:
		return s.PauseBatch(ctx, c.Queue, c.Batch, why)
	case inspect.ActionSetPace:
		pace, err := parsePace(c.Before)
		if err != nil {
			return err
		}
		return s.SetPace(ctx, c.Queue, c.Batch, pace, why)
	case inspect.ActionSetWeight:
		percent, err := strconv.Atoi(strings.TrimSuffix(c.Before, "%"))
		if err != nil {
			return fmt.Errorf("%w: the weight before is not known", errRequest)
		}
		return s.SetWeight(ctx, c.Queue, c.Batch, percent, why)
	}
	return fmt.Errorf("%w: this change can't be undone", errRequest)
}

// find leads to the page of a task or a key. It is a form that is sent by POST, so that no
// key stands in an address.
func (d *board) find(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, formMax)
	if err := r.ParseForm(); err != nil {
		d.fail(w, r, fmt.Errorf("%w: the form can't be read", errRequest))
		return
	}
	rule, key, queue := r.PostFormValue("rule"), strings.TrimSpace(r.PostFormValue("key")), r.PostFormValue("queue")
	if !d.allowed(r, Action{Verb: View, Page: "find", Rule: rule, Queue: queue}) {
		d.refuse(w, r)
		return
	}
	if rule == "" {
		http.Redirect(w, r, d.taskURL(cmp.Or(queue, "default"), strings.TrimSpace(r.PostFormValue("id"))), http.StatusSeeOther)
		return
	}
	s, err := d.source(r.Context())
	if err == nil {
		var id string
		if id, err = s.IDOf(rule, key); err == nil {
			http.Redirect(w, r, d.keyURL(rule, id), http.StatusSeeOther)
			return
		}
	}
	d.fail(w, r, err)
}
