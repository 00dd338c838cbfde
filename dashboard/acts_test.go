package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// forms are a form of each change, of a rig in which "b" waits for a phone.
func (d *rig) forms() map[Verb]url.Values {
	d.Helper()
	at, err := url.Parse(d.keyPage("+15550100"))
	if err != nil {
		d.Fatal(err)
	}
	k, back := at.Query().Get("k"), at.RequestURI()
	form := func(back string, pairs ...string) url.Values {
		f := url.Values{"reason": {"a test"}, "back": {back}}
		for i := 0; i < len(pairs); i += 2 {
			f.Set(pairs[i], pairs[i+1])
		}
		return f
	}
	rule := "/rule?rule=phone"
	return map[Verb]url.Values{
		CloseKey:    form(back, "rule", "phone", "k", k, "for", "15m"),
		OpenKey:     form(back, "rule", "phone", "k", k),
		PauseKey:    form(back, "rule", "phone", "k", k),
		CancelKey:   form(back, "rule", "phone", "k", k, "queue", "default"),
		FrontKey:    form(back, "rule", "phone", "k", k, "queue", "default"),
		CloseRule:   form(rule, "rule", "phone", "for", "1h"),
		OpenRule:    form(rule, "rule", "phone"),
		SetLimit:    form(rule, "rule", "phone", "value", "2/20m", "for", "2d"),
		UnsetLimit:  form(rule, "rule", "phone"),
		PauseQueue:  form("/queue?queue=default", "queue", "default"),
		ResumeQueue: form("/queue?queue=default", "queue", "default"),
		CancelTask:  form("/task?queue=default&id=b", "queue", "default", "id", "b"),
		FrontTask:   form("/task?queue=default&id=b", "queue", "default", "id", "b"),
		RunTask:     form("/task?queue=default&id=b", "queue", "default", "id", "b"),
		PauseBatch:  form("/batches", "queue", "default", "batch", "letter"),
		ResumeBatch: form("/batches", "queue", "default", "batch", "letter"),
		CancelBatch: form("/batches", "queue", "default", "batch", "letter"),
		SetPace:     form("/batches", "queue", "default", "batch", "letter", "value", "100/1m"),
		SetWeight:   form("/batches", "queue", "default", "batch", "letter", "value", "50"),
		Undo:        form("/audit", "change", "none"),
	}
}

func (d *rig) send(verb Verb, f url.Values) int {
	d.Helper()
	f.Set("verb", string(verb))
	return d.do(request("POST", "/act", f)).Code
}

// startBatch has a batch that nobody feeds.
func (d *rig) startBatch() {
	d.Helper()
	if _, err := batch.NewControl(d.client).Start(d.Context(), batch.Spec{ID: "letter", Type: "sms", Source: "readers", Total: 10}); err != nil {
		d.Fatal(err)
	}
}

// audited is what the audit list holds of what came about.
func (d *rig) audited() []inspect.Change {
	d.Helper()
	changes, err := d.inspector().Audit(d.Context(), 0, 250)
	if err != nil {
		d.Fatal(err)
	}
	return changes
}

// A key can be closed by itself and by its rule. Only its own closing can be opened on its page, and
// nothing is said to be open while the rule is closed. A key can be closed for longer than its rule.
func TestKeyOfAClosedRule(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	d.spend()
	d.book("+15550100", "a")
	target := d.keyPage("+15550100")
	const rule, own = "The rule is closed on all keys", "The key itself is closed"
	shows := func(when, page string, want map[string]bool) {
		t.Helper()
		for text, there := range want {
			if strings.Contains(page, text) != there {
				t.Errorf("%s: that the page has %q is %t, want %t\n%s", when, text, !there, there, page)
			}
		}
	}
	do := func(verb Verb) (page string) {
		t.Helper()
		f := d.forms()[verb]
		f.Set("verb", string(verb))
		f.Set("back", target)
		w := d.do(request("POST", "/act", f))
		if w.Code != http.StatusSeeOther {
			t.Fatalf("%s is answered with %d", verb, w.Code)
		}
		return d.get(http.StatusOK, w.Header().Get("Location"))
	}
	closes, pauses, opens, open := `value="close key"`, `value="pause key"`, `value="open key"`, "The key is open"
	shows("a rule that is closed", do(CloseRule), map[string]bool{rule: true, own: false, closes: true, pauses: true, opens: false, open: false})
	shows("a key that is closed for less", do(CloseKey), map[string]bool{rule: true, own: true, closes: false, opens: true, "Its rule stays closed": true, open: false})
	shows("a key that is opened and whose rule is closed", do(OpenKey), map[string]bool{rule: true, own: false, closes: true, opens: false, open: false})
	shows("a key that is closed for longer", do(PauseKey), map[string]bool{rule: true, own: true, closes: false, pauses: false, opens: true, open: false})
	shows("a key whose rule is open again", do(OpenRule), map[string]bool{rule: false, own: true, closes: false, opens: true})
	shows("a key that is open", do(OpenKey), map[string]bool{rule: false, own: false, closes: true, opens: false, "own closing is over": true})
	if k, err := d.inspector().Key(t.Context(), "phone", "+15550100"); err != nil || !k.Closed.IsZero() {
		t.Errorf("the key is closed until %v, %v, want it open", k.Closed, err)
	}
}

// Every change is made, with who and why in the audit list, and leads back to its page.
func TestEveryChange(t *testing.T) {
	t.Parallel()
	for verb := range (&rig{T: t}).verbs() {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			d := newRig(t, func(c *Config) { c.AllowWrites, c.Who = true, func(*http.Request) string { return "ann" } })
			d.spend()
			d.book("+15550100", "a", "b")
			d.startBatch()
			if verb == Undo {
				t.Skip("TestUndo has it")
			}
			made := 1
			if verb == ResumeQueue { // asynq refuses to resume what runs
				d.send(PauseQueue, d.forms()[PauseQueue])
				made++
			}
			if code := d.send(verb, d.forms()[verb]); code != http.StatusSeeOther {
				t.Fatalf("the answer is %d, want %d", code, http.StatusSeeOther)
			}
			changes := d.audited()
			if len(changes) != made || changes[0].Who != "ann" || changes[0].Why != "a test" || changes[0].Failed != "" {
				t.Fatalf("the audit list has %+v", changes)
			}
			wants(t, d.get(http.StatusOK, "/audit"), "a test", "<strong>ann</strong>")
		})
	}
}

// verbs are those of all changes.
func (d *rig) verbs() map[Verb]bool {
	all := make(map[Verb]bool)
	for _, a := range doers {
		all[a.verb] = true
	}
	return all
}

// Each page and each change asks Authorize on the server. When it says no the request is refused and
// changes nothing, whichever form it sends.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []Action
	refuse := Verb("")
	d := newRig(t, func(c *Config) {
		c.AllowWrites = true
		c.Authorize = func(_ *http.Request, a Action) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, a)
			if a.Verb == refuse {
				return errors.New("no: +15550100")
			}
			return nil
		}
	})
	d.spend()
	d.book("+15550100", "a", "b")
	d.startBatch()
	forms, targets := d.forms(), d.targets("+15550100", "b")
	if code := d.send(CloseRule, url.Values{"rule": {"phone"}, "for": {"1h"}, "reason": {"x"}, "back": {"/"}}); code != http.StatusSeeOther {
		t.Fatalf("a closing that is allowed is answered with %d", code)
	}
	forms[Undo].Set("change", refOf(d.audited()[0]))
	before := len(d.audited())
	for verb, form := range forms {
		mu.Lock()
		refuse, asked = verb, nil
		mu.Unlock()
		if code := d.send(verb, form); code != http.StatusForbidden {
			t.Errorf("%s: %d, want %d", verb, code, http.StatusForbidden)
		}
		if !slices.ContainsFunc(asked, func(a Action) bool { return a.Verb == verb && a.Page != "" }) {
			t.Errorf("%s: asked was %+v", verb, asked)
		}
	}
	if n := len(d.audited()); n != before {
		t.Errorf("%d changes were made that were refused", n-before)
	}
	mu.Lock()
	refuse = View
	mu.Unlock()
	for name, target := range targets {
		for _, at := range []string{target, "/live?view=" + url.QueryEscape(target)} {
			w := d.do(request("GET", at, nil))
			if w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "15550100") {
				t.Errorf("%s: %d, want %d\n%s", name, w.Code, http.StatusForbidden, w.Body)
			}
		}
	}
	if w := d.do(request("POST", "/find", url.Values{"rule": {"phone"}, "key": {"+15550100"}})); w.Code != http.StatusForbidden {
		t.Errorf("find: %d, want %d", w.Code, http.StatusForbidden)
	}
}

// Who may not touch a queue does not reach it by naming none.
func TestAuthorizeIsToldTheQueue(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) {
		c.AllowWrites = true
		c.Authorize = func(_ *http.Request, a Action) error {
			if a.Queue == "default" {
				return errors.New("no")
			}
			return nil
		}
	})
	d.spend()
	d.book("+15550100", "a", "b")
	d.startBatch()
	for verb, form := range d.forms() {
		if !form.Has("queue") {
			continue
		}
		form.Set("queue", "")
		if code := d.send(verb, form); code != http.StatusBadRequest {
			t.Errorf("%s without a queue: %d, want %d", verb, code, http.StatusBadRequest)
		}
	}
	if n := len(d.audited()); n != 0 {
		t.Errorf("%d changes were made", n)
	}
	d.get(http.StatusForbidden, "/task?id=a")
}

// A list of all queues is not shown to who may see one of them, wherever in the list it begins.
func TestAuthorizeOfAllQueues(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) {
		c.Authorize = func(_ *http.Request, a Action) error {
			if a.Queue != "a" {
				return errors.New("no")
			}
			return nil
		}
	})
	for _, queue := range []string{"a", "b"} {
		if _, err := batch.NewControl(d.client).Start(t.Context(), batch.Spec{ID: "of-" + queue, Queue: queue, Type: "sms", Source: "readers"}); err != nil {
			t.Fatal(err)
		}
	}
	d.get(http.StatusOK, "/queue?queue=a")
	for _, target := range []string{"/batches", "/batches?queue=a", "/batches?at=a", "/batches?at=a&queue=a"} {
		d.get(http.StatusForbidden, target)
		d.get(http.StatusForbidden, "/live?view="+url.QueryEscape(target))
	}
}

// Authorize sees what a change does: fields that its verb does not use are refused, and the page is
// that of the verb. An undo is also the change that it makes.
func TestAuthorizeIsNotMisled(t *testing.T) {
	t.Parallel()
	var may func(Action) bool
	var mu sync.Mutex
	d := newRig(t, func(c *Config) {
		c.AllowWrites = true
		c.Authorize = func(_ *http.Request, a Action) error {
			mu.Lock()
			defer mu.Unlock()
			if a.Verb == View || may == nil || may(a) {
				return nil
			}
			return errors.New("no")
		}
	})
	allow := func(f func(Action) bool) {
		mu.Lock()
		defer mu.Unlock()
		may = f
	}
	d.spend()
	d.book("+15550100", "a", "b")
	d.startBatch()
	forms := d.forms()
	allow(func(a Action) bool { return a.Queue == "mine" && a.Page == "batches" })
	for verb, form := range forms {
		for _, field := range []string{"rule", "k", "queue", "id", "batch", "value", "for", "change"} {
			if form.Has(field) {
				continue
			}
			form.Set(field, "mine")
			form.Set("back", "/batches")
			if code := d.send(verb, form); code != http.StatusBadRequest {
				t.Errorf("%s with a field %s: %d, want %d", verb, field, code, http.StatusBadRequest)
			}
			form.Del(field)
		}
		allow(func(a Action) bool { return a.Page == "gates" })
		form.Set("back", "/gates")
		if code := d.send(verb, form); code != http.StatusForbidden {
			t.Errorf("%s that says it comes from a page that may: %d, want %d", verb, code, http.StatusForbidden)
		}
	}
	if n := len(d.audited()); n != 0 {
		t.Errorf("%d changes were made", n)
	}

	allow(nil)
	if code := d.send(CloseRule, d.forms()[CloseRule]); code != http.StatusSeeOther {
		t.Fatalf("a closing that is allowed is answered with %d", code)
	}
	undo := url.Values{"change": {refOf(d.audited()[0])}, "reason": {"x"}, "back": {"/audit"}}
	allow(func(a Action) bool { return a.Verb == Undo })
	if code := d.send(Undo, undo); code != http.StatusForbidden || strings.Contains(d.get(http.StatusOK, "/audit"), `/act"`) {
		t.Errorf("an undo that opens a rule, by one who may not: %d, or it is offered", code)
	}
	allow(func(a Action) bool { return (a.Verb == Undo || a.Verb == OpenRule) && a.Rule == "phone" })
	if !strings.Contains(d.get(http.StatusOK, "/audit"), `/act"`) {
		t.Error("an undo that is allowed is not offered")
	}
	if code := d.send(Undo, undo); code != http.StatusSeeOther {
		t.Errorf("an undo that is allowed: %d", code)
	}
}

// A change is offered where it may be made: Authorize is asked with the queue, the batch and the
// change that a form would name, and before anything is told about them.
func TestOffersNameWhatTheyAreAbout(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) {
		c.AllowWrites = true
		c.Authorize = func(_ *http.Request, a Action) error {
			if a.Verb != View && a.Queue != "default" {
				return errors.New("no")
			}
			return nil
		}
	})
	d.spend()
	d.book("+15550100", "a", "b")
	d.startBatch()
	if err := d.inspector().PauseQueue(t.Context(), "default", because); err != nil {
		t.Fatal(err)
	}
	wants(t, d.get(http.StatusOK, "/batches"), `value="pause batch"`, `value="cancel batch"`)
	key := d.get(http.StatusOK, d.keyPage("+15550100"))
	wants(t, key, `value="cancel all on a key"`, `value="all on a key to the front"`)
	if strings.Contains(key, `value="close key"`) {
		t.Error("a closing of a key is offered to one who may not")
	}
	wants(t, d.get(http.StatusOK, "/audit"), `value="undo"`)

	if code := d.send(Undo, url.Values{"change": {"none"}, "reason": {"x"}, "back": {"/audit"}}); code != http.StatusForbidden {
		t.Errorf("an undo of nothing by one who may not: %d, want %d", code, http.StatusForbidden)
	}
	if code := d.send(OpenKey, url.Values{"rule": {"phone"}, "k": {"none"}, "reason": {"x"}, "back": {"/audit"}}); code != http.StatusForbidden {
		t.Errorf("a bad link by one who may not: %d, want %d", code, http.StatusForbidden)
	}
}

// What Authorize refuses is not offered, and a dashboard that only shows offers nothing.
func TestOnlyWhatIsAllowedIsOffered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]func(*Config){
		"read only": func(*Config) {},
		"no writer": func(c *Config) {
			c.AllowWrites = true
			c.Authorize = func(_ *http.Request, a Action) error {
				if a.Verb != View {
					return errors.New("no")
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newRig(t, c)
			d.spend()
			d.book("+15550100", "a", "b")
			d.startBatch()
			for verb, form := range d.forms() {
				if code := d.send(verb, form); code != http.StatusForbidden {
					t.Errorf("%s: %d, want %d", verb, code, http.StatusForbidden)
				}
			}
			if n := len(d.audited()); n != 0 {
				t.Errorf("%d changes were made", n)
			}
			for page, target := range d.targets("+15550100", "b") {
				if text := d.get(http.StatusOK, target); strings.Contains(text, `/act"`) {
					t.Errorf("%s offers a change", page)
				}
			}
		})
	}
}

// A change without a reason, or one that makes no sense, is refused with what would be
// right, and is not made.
func TestChangesAreChecked(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	d.spend()
	d.book("+15550100", "a", "b")
	d.startBatch()
	for name, change := range map[string]func(f map[Verb]url.Values) (Verb, url.Values){
		"no reason": func(f map[Verb]url.Values) (Verb, url.Values) {
			f[CloseKey].Del("reason")
			return CloseKey, f[CloseKey]
		},
		"a blank reason": func(f map[Verb]url.Values) (Verb, url.Values) {
			f[CloseKey].Set("reason", " ")
			return CloseKey, f[CloseKey]
		},
		"no time": func(f map[Verb]url.Values) (Verb, url.Values) {
			f[CloseRule].Del("for")
			return CloseRule, f[CloseRule]
		},
		"a bad time": func(f map[Verb]url.Values) (Verb, url.Values) {
			f[CloseRule].Set("for", "soon")
			return CloseRule, f[CloseRule]
		},
		"a bad limit": func(f map[Verb]url.Values) (Verb, url.Values) {
			f[SetLimit].Set("value", "0/1m")
			return SetLimit, f[SetLimit]
		},
		"a bad pace": func(f map[Verb]url.Values) (Verb, url.Values) {
			f[SetPace].Set("value", "fast")
			return SetPace, f[SetPace]
		},
		"a bad weight": func(f map[Verb]url.Values) (Verb, url.Values) {
			f[SetWeight].Set("value", "101")
			return SetWeight, f[SetWeight]
		},
		"no such verb": func(f map[Verb]url.Values) (Verb, url.Values) { return "drop all", f[SetWeight] },
		"another page": func(f map[Verb]url.Values) (Verb, url.Values) {
			f[OpenRule].Set("back", "//evil.example/")
			return OpenRule, f[OpenRule]
		},
		"long reason": func(f map[Verb]url.Values) (Verb, url.Values) {
			f[OpenRule].Set("reason", strings.Repeat("x", 600))
			return OpenRule, f[OpenRule]
		},
	} {
		if code := d.send(change(d.forms())); code != http.StatusBadRequest {
			t.Errorf("%s: %d, want %d", name, code, http.StatusBadRequest)
		}
	}
	f := d.forms()[CancelTask]
	f.Set("id", "none")
	if code := d.send(CancelTask, f); code != http.StatusNotFound {
		t.Errorf("a task that is not there: %d, want %d", code, http.StatusNotFound)
	}
	for _, c := range d.audited() {
		if c.Failed == "" && c.Action != inspect.ActionCancel && c.Action != inspect.ActionSetLimit && c.Action != inspect.ActionSetWeight {
			t.Errorf("%+v was made", c)
		}
	}
	if r := d.inspector().Rules(t.Context()); slices.ContainsFunc(r, func(r inspect.RuleStatus) bool { return r.Stored }) {
		t.Errorf("the rules are %+v, want none stored", r)
	}
}

// A change is undone from the audit page: what was before counts again.
func TestUndo(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	d.spend()
	d.book("+15550100", "a", "b")
	d.startBatch()
	undoLast := func() {
		t.Helper()
		if undoable(d.audited(), time.Now())[0].text == "" {
			t.Fatalf("the last change can't be undone: %+v", d.audited()[0])
		}
		if code := d.send(Undo, url.Values{"change": {refOf(d.audited()[0])}, "reason": {"a mistake"}, "back": {"/audit"}}); code != http.StatusSeeOther {
			t.Fatalf("undo is answered with %d", code)
		}
	}
	i := d.inspector()
	rule := func() inspect.RuleStatus {
		t.Helper()
		for _, r := range i.Rules(t.Context()) {
			if r.Rule == "phone" {
				return r
			}
		}
		t.Fatal("the rule is gone")
		return inspect.RuleStatus{}
	}
	key := func() inspect.Key {
		t.Helper()
		k, err := i.Key(t.Context(), "phone", "+15550100")
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	do := func(verb Verb) {
		t.Helper()
		if code := d.send(verb, d.forms()[verb]); code != http.StatusSeeOther {
			t.Fatalf("%s is answered with %d", verb, code)
		}
	}

	do(SetLimit)
	if page := d.get(http.StatusOK, "/audit"); !regexp.MustCompile(`<option value="[^"]+" data-at="20\S+Z">20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC · set limit phone`).MatchString(page) {
		t.Errorf("what can be undone is not offered with its day and zone in\n%s", page)
	}
	undoLast()
	if r := rule(); r.Stored {
		t.Errorf("after the undo %v is stored", r.Limit)
	}
	if err := i.SetLimit(t.Context(), "phone", throttle.Sliding(7, time.Hour), 0, because); err != nil {
		t.Fatal(err)
	}
	do(UnsetLimit)
	undoLast()
	if r := rule(); r.Limit != throttle.Sliding(7, time.Hour) {
		t.Errorf("after the undo the limit is %v, want the one before", r.Limit)
	}

	do(CloseKey)
	until := key().Closed
	if until.IsZero() {
		t.Fatal("the key is not closed")
	}
	undoLast()
	if k := key(); !k.Closed.IsZero() {
		t.Errorf("after the undo the key is closed until %v", k.Closed)
	}
	do(CloseKey)
	until = key().Closed
	do(OpenKey)
	undoLast()
	if k := key(); k.Closed.Sub(until).Abs() > 10*time.Second {
		t.Errorf("after the undo the key is closed until %v, want %v", k.Closed, until)
	}

	do(CloseRule)
	undoLast()
	if r := rule(); !r.Closed.IsZero() {
		t.Errorf("after the undo the rule is closed until %v", r.Closed)
	}
	do(PauseQueue)
	undoLast()
	if q, err := i.Queues(t.Context()); err != nil || q[0].Paused {
		t.Errorf("after the undo the queue is paused, %v", err)
	}
	do(SetWeight)
	undoLast()
	do(PauseBatch)
	undoLast()
	if all, _, err := i.Batches(t.Context(), "default"); err != nil || len(all) != 1 || all[0].Weight != 100 || all[0].State != batch.Running {
		t.Errorf("after the undo the batches are %+v, %v", all, err)
	}

	do(FrontTask)
	if all := undoable(d.audited(), time.Now()); all[0].text != "" {
		t.Errorf("what moved a task to the front can be undone: %q", all[0].text)
	}
	// Only the newest change of a thing can be undone, and none that failed.
	now := time.Now()
	list := []inspect.Change{
		{At: now, Action: inspect.ActionSetLimit, Rule: "r", Value: "1/1s", Failed: "away"}, {At: now, Action: inspect.ActionSetLimit, Rule: "r", Value: "1/1s"},
		{At: now.Add(-1), Action: inspect.ActionSetLimit, Rule: "r", Before: "2/1s"}, {At: now.Add(-2), Action: inspect.ActionUnsetLimit, Rule: "r", Before: "3/1s"},
		{At: now.Add(-3), Action: inspect.ActionClose, Rule: "r", Until: now.Add(-time.Second)},
	}
	var got []string
	for _, back := range undoable(inspect.Made(list), now) {
		got = append(got, back.text)
	}
	if got, want := fmt.Sprintf("%q", got), `["store 2/1s again" "" ""]`; got != want {
		t.Errorf("undoable = %s, want %s", got, want)
	}
}

// An undo restores what is left of what was before, and nothing is offered when nothing is left.
func TestUndoRestoresWhatIsLeft(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	d.spend()
	d.book("+15550100", "a")
	do := func(verb Verb, pairs ...string) {
		t.Helper()
		f := d.forms()[verb]
		for i := 0; i < len(pairs); i += 2 {
			f.Set(pairs[i], pairs[i+1])
		}
		if verb == Undo {
			f.Set("change", refOf(d.audited()[0]))
		}
		if code := d.send(verb, f); code != http.StatusSeeOther {
			t.Fatalf("%s %q is answered with %d", verb, pairs, code)
		}
	}
	about := func(what string, got, want time.Duration) {
		t.Helper()
		if (got - want).Abs() > 10*time.Minute {
			t.Errorf("%s for another %v, want about %v", what, got, want)
		}
	}
	do(SetLimit, "value", "5/1h", "for", "2h")
	do(SetLimit, "value", "6/1h", "for", "")
	do(Undo)
	about("the limit is stored", d.rdb.PTTL(t.Context(), "hw:limit:phone").Val(), 2*time.Hour)

	do(CloseRule, "for", "3h")
	do(CloseRule, "for", "4h")
	do(Undo)
	rules := d.inspector().Rules(t.Context())
	n := slices.IndexFunc(rules, func(r inspect.RuleStatus) bool { return r.Rule == "phone" })
	about("the rule is closed", time.Until(rules[n].Closed), 3*time.Hour)
	do(OpenRule)

	do(CloseKey, "for", "3h")
	do(CloseKey, "for", "4h")
	do(Undo)
	k, err := d.inspector().Key(t.Context(), "phone", "+15550100")
	if err != nil {
		t.Fatal(err)
	}
	about("the key is closed", time.Until(k.Closed), 3*time.Hour)

	now := time.Now()
	for name, c := range map[string]struct {
		change inspect.Change
		want   string
	}{
		"a limit that has ended":             {inspect.Change{Action: inspect.ActionSetLimit, Until: now.Add(-time.Second)}, ""},
		"a limit before that would be over":  {inspect.Change{Action: inspect.ActionUnsetLimit, Before: "1/1m", BeforeUntil: now.Add(-time.Second)}, ""},
		"a limit whose forerunner would end": {inspect.Change{Action: inspect.ActionSetLimit, Before: "1/1m", BeforeUntil: now.Add(-time.Second)}, "let the limit in code count again"},
		"a limit that was there for good":    {inspect.Change{Action: inspect.ActionSetLimit, Before: "1/1m", Until: now.Add(-time.Second)}, "store 1/1m again"},
		"a limit of a policy file":           {inspect.Change{Action: inspect.ActionSetLimit, Before: "1/1m", BeforeFile: true}, ""},
		"a closing that changed nothing":     {inspect.Change{Action: inspect.ActionClose, Until: now.Add(time.Hour), BeforeUntil: now.Add(2 * time.Hour)}, ""},
		"an opening of what was open":        {inspect.Change{Action: inspect.ActionOpen}, ""},
	} {
		if got := reverse(c.change, now); got.text != c.want {
			t.Errorf("%s: %q, want %q", name, got.text, c.want)
		}
	}
}

// Of several who undo one change at once, one does; the others are told that it is undone.
func TestUndoOnce(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	if code := d.send(SetLimit, d.forms()[SetLimit]); code != http.StatusSeeOther {
		t.Fatalf("the answer is %d", code)
	}
	ref := refOf(d.audited()[0])
	codes := make(chan int, 8)
	for range cap(codes) {
		go func() {
			f := url.Values{"verb": {"undo"}, "change": {ref}, "reason": {"a mistake"}, "back": {"/audit"}}
			codes <- d.do(request("POST", "/act", f)).Code
		}()
	}
	made := 0
	for range cap(codes) {
		switch code := <-codes; code {
		case http.StatusSeeOther:
			made++
		case http.StatusBadRequest:
		default:
			t.Errorf("an undo is answered with %d", code)
		}
	}
	if n := len(d.audited()); made != 1 || n != 2 {
		t.Errorf("%d undid the change, and the audit list has %d entries, want 1 and 2", made, n)
	}
}

// A pace and a weight are undone: the batch has what it had before, also when that was a pace.
func TestUndoOfPaceAndWeight(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	d.startBatch()
	change := func(verb Verb, value, pace string, weight int) {
		t.Helper()
		f := url.Values{"queue": {"default"}, "batch": {"letter"}, "value": {value}, "reason": {"a test"}, "back": {"/batches"}}
		if verb == Undo {
			f = url.Values{"change": {refOf(d.audited()[0])}, "reason": {"a mistake"}, "back": {"/audit"}}
		}
		if code := d.send(verb, f); code != http.StatusSeeOther {
			t.Fatalf("%s %s is answered with %d", verb, value, code)
		}
		all, _, err := d.inspector().Batches(t.Context(), "default")
		if err != nil || len(all) != 1 || all[0].Pace.String() != pace || all[0].Weight != weight {
			t.Fatalf("after %s %s the batches are %+v, %v, want pace %s and weight %d", verb, value, all, err, pace, weight)
		}
	}
	none := batch.Pace{}.String()
	change(SetPace, "100/1m", "100/1m0s", 100)
	change(Undo, "", none, 100)
	change(SetPace, "100/1m", "100/1m0s", 100)
	change(SetPace, "5/1s", "5/1s", 100)
	change(Undo, "", "100/1m0s", 100)
	change(SetWeight, "40", "100/1m0s", 40)
	change(Undo, "", "100/1m0s", 100)
}

// To resume a queue that is not paused, or to pause it twice, is answered with words.
func TestPauseThatIsNone(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	d.book("+15550100", "a")
	for n, step := range []struct {
		verb Verb
		want int
	}{{ResumeQueue, http.StatusConflict}, {PauseQueue, http.StatusSeeOther}, {PauseQueue, http.StatusConflict}, {ResumeQueue, http.StatusSeeOther}} {
		if code := d.send(step.verb, d.forms()[step.verb]); code != step.want {
			t.Errorf("step %d, %s: %d, want %d", n, step.verb, code, step.want)
		}
	}
}
