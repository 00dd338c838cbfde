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
	token, span, change, back       string        // as they were sent; see read
}

const formMax = 64 << 10 // bytes of a form

// doer makes a change.
type doer struct {
	verb   Verb
	fields string // of its form, which has no others
	done   string // what the page says afterwards
	do     func(ctx context.Context, s *source, f form, why inspect.Reason) error
}

// doers are the changes.
var doers = []doer{
	{CloseKey, "rule k for", "The key is closed.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		if f.d <= 0 {
			return errNoTime
		}
		_, err := s.CloseKey(ctx, f.rule, f.key, f.d, why)
		return err
	}},
	// Its rule may be closed, too, so this does not say that the key is open.
	{OpenKey, "rule k", "The key’s own closing is over.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.OpenKey(ctx, f.rule, f.key, why)
	}},
	{PauseKey, "rule k", "The key is paused.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.PauseKey(ctx, f.rule, f.key, why)
	}},
	{CancelKey, "queue rule k", "What waited on the key is cancelled.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		_, err := s.CancelKey(ctx, f.queue, f.rule, f.key, why)
		return err
	}},
	{FrontKey, "queue rule k", "What waits on the key is at the front.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		_, err := s.FrontKey(ctx, f.queue, f.rule, f.key, why)
		return err
	}},
	{CloseRule, "rule for", "The rule is closed.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		if f.d <= 0 {
			return errNoTime
		}
		_, err := s.CloseRule(ctx, f.rule, f.d, why)
		return err
	}},
	{OpenRule, "rule", "The rule is open.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.OpenRule(ctx, f.rule, why)
	}},
	{SetLimit, "rule value for", "The limit is stored. All processes decide by it within a second.",
		func(ctx context.Context, s *source, f form, why inspect.Reason) error {
			l, err := throttle.ParseLimit(f.text)
			if err != nil {
				return err
			}
			return s.SetLimit(ctx, f.rule, l, f.d, why)
		}},
	{UnsetLimit, "rule", "The limit in code counts again.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.UnsetLimit(ctx, f.rule, why)
	}},
	{PauseQueue, "queue", "The queue is paused.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.PauseQueue(ctx, f.queue, why)
	}},
	{ResumeQueue, "queue", "The queue goes on.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.ResumeQueue(ctx, f.queue, why)
	}},
	{CancelTask, "queue id", "The task is cancelled.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.Cancel(ctx, f.queue, f.task, why)
	}},
	{FrontTask, "queue id", "The task is at the front of its line.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.Front(ctx, f.queue, f.task, why)
	}},
	{RunTask, "queue id", "A free worker takes the task, whatever its rules say.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.RunNow(ctx, f.queue, f.task, why)
	}},
	{PauseBatch, "queue batch", "The batch is paused.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.PauseBatch(ctx, f.queue, f.batchID, why)
	}},
	{ResumeBatch, "queue batch", "The batch goes on.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.ResumeBatch(ctx, f.queue, f.batchID, why)
	}},
	{CancelBatch, "queue batch", "The batch is cancelled.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.CancelBatch(ctx, f.queue, f.batchID, why)
	}},
	{SetPace, "queue batch value", "The batch has another pace.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		pace, err := parsePace(f.text)
		if err != nil {
			return err
		}
		return s.SetPace(ctx, f.queue, f.batchID, pace, why)
	}},
	{SetWeight, "queue batch value", "The batch has another weight.", func(ctx context.Context, s *source, f form, why inspect.Reason) error {
		return s.SetWeight(ctx, f.queue, f.batchID, f.percent, why)
	}},
	{Undo, "change", "The change is undone.", nil}, // act makes the changes that undo it
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

// action is what Authorize is asked about a form. It has the fields that the verb uses and no
// others, and the page that offers the verb, wherever the form says that it comes from.
func (f form) action() Action {
	a := Action{Verb: f.verb, Rule: f.rule, Queue: f.queue, Task: f.task, Batch: f.batchID}
	for _, p := range pages {
		if slices.Contains(p.asks, f.verb) {
			a.Page = p.name
		}
	}
	if f.verb == Undo {
		return a // of any change
	}
	for name, field := range map[string]*string{"rule": &a.Rule, "queue": &a.Queue, "id": &a.Task, "batch": &a.Batch} {
		if !f.verb.uses(name) {
			*field = ""
		}
	}
	return a
}

// uses says that the form of a verb has a field.
func (v Verb) uses(field string) bool {
	n := slices.IndexFunc(doers, func(a doer) bool { return a.verb == v })
	return n >= 0 && slices.Contains(strings.Fields(doers[n].fields), field)
}

// act makes a change, and leads back to the page that asked for it.
func (d *board) act(w http.ResponseWriter, r *http.Request) {
	if !d.cfg.AllowWrites {
		d.fault(w, r, http.StatusForbidden, "This dashboard only shows.", "Config.AllowWrites, or headway serve --write, lets it change something.")
		return
	}
	f, err := formOf(w, r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p, q, err := d.viewOf(f.back)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if f.verb != Undo && !d.allowed(r, f.action()) { // before anything is told about what it names
		d.refuse(w, r)
		return
	}
	why := inspect.Reason{Who: d.cfg.Who(r), Why: strings.TrimSpace(r.PostFormValue("reason"))}
	switch err = d.make(r, &f, why); {
	case errors.Is(err, errMayNot):
		d.refuse(w, r)
		return
	case err != nil:
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

// errMayNot says that Authorize refuses a change.
var errMayNot = errors.New("not allowed")

// make makes the change of a form, or those that undo another.
func (d *board) make(r *http.Request, f *form, why inspect.Reason) error {
	ctx, end, err := d.views.enter(r.Context(), changeKind)
	if err != nil {
		return err
	}
	defer end()
	s, err := d.source(ctx)
	steps := []form{*f}
	if f.verb == Undo {
		d.undoing.Lock() // the second of two who undo one change finds that it is undone
		defer d.undoing.Unlock()
		if err == nil {
			steps, err = f.find(ctx, s)
		}
		if !d.allowed(r, f.action()) || slices.ContainsFunc(steps, func(step form) bool { return !d.allowed(r, step.action()) }) {
			return errMayNot // also when there is nothing to undo: who may not undo is not told that
		}
	} else if err == nil {
		err = steps[0].read(d.seal)
	}
	if err != nil {
		return err
	}
	if why.Why == "" {
		return fmt.Errorf("%w: every change is noted: say why", errRequest)
	}
	for _, step := range steps {
		n := slices.IndexFunc(doers, func(a doer) bool { return a.verb == step.verb })
		if err := doers[n].do(ctx, s, step, why); err != nil {
			return err
		}
	}
	return nil
}

// formOf takes a form as it was sent. A field that its verb does not use is refused.
func formOf(w http.ResponseWriter, r *http.Request) (form, error) {
	r.Body = http.MaxBytesReader(w, r.Body, formMax)
	if err := r.ParseForm(); err != nil {
		return form{}, fmt.Errorf("%w: the form can't be read", errRequest)
	}
	v := func(name string) string { return r.PostFormValue(name) }
	f := form{
		verb: Verb(v("verb")), rule: v("rule"), queue: v("queue"), task: v("id"), batchID: v("batch"), back: v("back"),
		text: strings.TrimSpace(v("value")), token: v("k"), span: strings.TrimSpace(v("for")), change: v("change"),
	}
	if !slices.ContainsFunc(doers, func(a doer) bool { return a.verb == f.verb }) {
		return form{}, fmt.Errorf("%w: there is no such change", errRequest)
	}
	for name := range r.PostForm {
		switch name {
		case "verb", "reason", "back":
			continue
		}
		if !f.verb.uses(name) && v(name) != "" {
			return form{}, fmt.Errorf("%w: %q has no field %q", errRequest, f.verb, clip(name, 20))
		}
	}
	if f.verb.uses("queue") && f.queue == "" { // Authorize is to be told which
		return form{}, fmt.Errorf("%w: %q needs a queue", errRequest, f.verb)
	}
	return f, nil
}

// read reads the fields that are more than a text.
func (f *form) read(seal *sealer) error {
	var errs []error
	if f.token != "" {
		id, err := seal.open(f.token)
		f.key = id
		errs = append(errs, err)
	}
	if f.span != "" {
		var err error
		f.d, err = parseSpan(f.span)
		errs = append(errs, err)
	}
	if f.verb == SetWeight {
		var err error
		if f.percent, err = strconv.Atoi(strings.TrimSuffix(f.text, "%")); err != nil {
			errs = append(errs, fmt.Errorf("%w: the weight is %q, want 1 to 100", errRequest, clip(f.text, 20)))
		}
	}
	return errors.Join(errs...)
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

// find looks a change up by its instant, and notes what it is about. It returns the changes
// that undo it.
func (f *form) find(ctx context.Context, s *source) ([]form, error) {
	changes, err := s.Audit(ctx, 0, 250)
	if err != nil {
		return nil, err
	}
	changes = inspect.Made(changes)
	for n, back := range undoable(changes, time.Now()) {
		if c := changes[n]; refOf(c) == f.change && back.text != "" {
			f.rule, f.queue, f.task, f.batchID = c.Rule, c.Queue, c.Task, c.Batch
			return back.steps, nil
		}
	}
	return nil, fmt.Errorf("%w: this change can't be undone: it is undone already, something newer has changed the same, or it is too old", errRequest)
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

// reversal is what undoes a change, in words and as changes to make. It is empty where nothing
// does.
type reversal struct {
	text  string
	steps []form
}

// undoable says of each of the newest changes what would undo it. They are those that were made,
// see inspect.Made.
func undoable(made []inspect.Change, now time.Time) []reversal {
	out := make([]reversal, len(made))
	seen := make(map[string]bool)
	for n, c := range made { // the newest first
		if !seen[subject(c)] {
			seen[subject(c)] = true
			out[n] = reverse(c, now)
		}
	}
	return out
}

// reverse is what undoes a change at a moment: what was before counts again, for as long as it
// would have counted still.
func reverse(c inspect.Change, now time.Time) reversal {
	f := form{rule: c.Rule, key: c.Key, queue: c.Queue, batchID: c.Batch, text: c.Before}
	if c.Batch != "" { // a program may have named no queue
		f.queue = cmp.Or(c.Queue, "default")
	}
	to := func(text string, verbs ...Verb) (r reversal) {
		r.text = text
		for _, verb := range verbs {
			f.verb = verb
			r.steps = append(r.steps, f)
		}
		return r
	}
	left := c.BeforeUntil.Sub(now).Truncate(time.Millisecond) // of what was before
	open, shut := OpenRule, CloseRule
	if c.Key != "" {
		open, shut = OpenKey, CloseKey
	}
	switch c.Action {
	case inspect.ActionClose:
		switch {
		case !c.Until.After(now), !c.BeforeUntil.Before(c.Until): // it is over, or it changed nothing
			return reversal{}
		case left <= 0:
			return to("open it", open)
		}
		f.d = left
		return to("close it for another "+span(left), open, shut) // a closing is made shorter by no other way
	case inspect.ActionOpen:
		if f.d = left; left > 0 {
			return to("close it until then again", shut)
		}
	case inspect.ActionSetLimit, inspect.ActionUnsetLimit:
		switch {
		case c.BeforeFile: // stored by an operator it would go before every later edit of the file
			return reversal{}
		case c.Before != "" && c.BeforeUntil.IsZero():
			return to("store "+clip(c.Before, 60)+" again", SetLimit)
		case c.Before != "" && left >= time.Second: // no limit is stored for less
			f.d = left
			return to("store "+clip(c.Before, 60)+" for another "+span(left), SetLimit)
		case c.Action == inspect.ActionSetLimit && (c.Until.IsZero() || c.Until.After(now)):
			return to("let the limit in code count again", UnsetLimit)
		}
	case inspect.ActionPauseQueue:
		return to("resume it", ResumeQueue)
	case inspect.ActionResumeQueue:
		return to("pause it", PauseQueue)
	case inspect.ActionPauseBatch:
		return to("resume it", ResumeBatch)
	case inspect.ActionResumeBatch:
		return to("pause it", PauseBatch)
	case inspect.ActionSetPace:
		if c.Before != "" {
			return to("set "+clip(c.Before, 60)+" again", SetPace)
		}
	case inspect.ActionSetWeight:
		var err error
		if f.percent, err = strconv.Atoi(strings.TrimSuffix(c.Before, "%")); err == nil {
			return to("set "+clip(c.Before, 60)+" again", SetWeight)
		}
	}
	return reversal{}
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
		id := strings.TrimSpace(r.PostFormValue("id"))
		if len(id) > paramMax || len(queue) > paramMax {
			d.fail(w, r, fmt.Errorf("%w: a page shows a task whose id and queue have at most %d bytes; headway explain shows any", errRequest, paramMax))
			return
		}
		http.Redirect(w, r, d.taskURL(cmp.Or(queue, "default"), id), http.StatusSeeOther)
		return
	}
	ctx, end, err := d.views.enter(r.Context(), "find")
	if err != nil {
		d.fail(w, r, err)
		return
	}
	defer end()
	s, err := d.source(ctx)
	if err == nil {
		var id string
		if id, err = s.IDOf(ctx, rule, key); err == nil {
			http.Redirect(w, r, d.keyURL(rule, id), http.StatusSeeOther)
			return
		}
	}
	d.fail(w, r, err)
}
