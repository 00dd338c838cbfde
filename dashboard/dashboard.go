package dashboard

import (
	"bytes"
	"context"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

//go:embed templates assets
var files embed.FS

// board is the handler that New returns.
type board struct {
	cfg     Config
	rdb     redis.UniversalClient // its commands are counted
	meter   *meter
	views   *snapshots
	seal    *sealer
	pages   map[string]*template.Template
	assets  map[string]asset
	version string // of the assets, for their links
	handler http.Handler
	live    liveCount

	undoing sync.Mutex // held while a change is undone

	mu       sync.Mutex
	policies []queue.Policy // of the inspector
	known    *inspect.Inspector
}

type asset struct {
	kind string
	body []byte
}

// New returns the dashboard of the pools on a Redis. The error has all that is wrong with
// the configuration, joined; it unwraps to [ErrInvalidConfig], and to the errors of
// inspect.New. New does not ask Redis, and panics when rdb is nil.
//
// The handler owns nothing: it has no connection of its own, and runs nothing when nobody
// looks. It is safe for concurrent use.
func New(rdb redis.UniversalClient, config Config) (http.Handler, error) {
	if rdb == nil {
		panic("dashboard: nil Redis client")
	}
	cfg, err := config.fill()
	_, bad := inspect.New(rdb, inspect.Config{Policies: cfg.Policies, Throttle: cfg.Throttle})
	if err := errors.Join(err, bad); err != nil {
		return nil, err
	}
	d := &board{cfg: cfg, meter: &meter{perSecond: float64(cfg.Budget), left: float64(cfg.Budget), at: time.Now()}}
	d.rdb = metered(rdb, d.meter)
	d.views = newSnapshots(cfg.Refresh, d.meter)
	if d.seal, err = newSealer(cfg.Throttle.Secret); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	if err := d.parse(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	mux := http.NewServeMux()
	only := func(allow, path string, h http.HandlerFunc) {
		for method := range strings.SplitSeq(allow, ", ") {
			if method != http.MethodHead { // GET has it, too
				mux.HandleFunc(method+" "+cfg.Prefix+path, h)
			}
		}
		mux.HandleFunc(cfg.Prefix+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			d.fault(w, r, http.StatusMethodNotAllowed, "This address is not asked in this way.", "It answers "+allow+".")
		})
	}
	const read, write = "GET, HEAD", "POST"
	for _, p := range pages {
		only(read, p.path+suffix(p.path), func(w http.ResponseWriter, r *http.Request) { d.page(w, r, p) })
	}
	only(read, "/live", d.follow)
	only(read, "/assets/{name}", d.asset)
	only(write, "/find", d.find)
	only(write, "/act", d.act)
	if cfg.Prefix != "" {
		only(read, "", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, cfg.Prefix+"/", http.StatusMovedPermanently)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		d.fault(w, r, http.StatusNotFound, "There is no such page.", "")
	})
	d.handler = guard(d, mux)
	return d, nil
}

// suffix lets the path of the overview match itself alone.
func suffix(path string) string {
	if path == "/" {
		return "{$}"
	}
	return ""
}

func (d *board) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.ServeHTTP(w, r) }

// parse reads the templates and the assets.
func (d *board) parse() error {
	funcs := template.FuncMap{
		"safe": safe, "clip": safeIn, "key": d.shownKey, "n": count[int], "n64": count[int64], "plural": plural, "span": span, "stamp": stamp, "in": relative,
		"url": d.url, "keyURL": d.keyURL, "taskURL": d.taskURL, "taskLink": d.taskLink, "asynqmon": d.asynqmonURL,
		"clock": clockText, "does": does, "throttled": throttled, "runnable": runnable, "ahead": ahead, "secret": func() bool { return !d.cfg.ShowKeys },
		"place":   func(i int) int { return i + 1 },
		"upper":   func(s string) string { return strings.ToUpper(s[:min(1, len(s))]) + s[min(1, len(s)):] },
		"ended":   func(p batch.Progress) int64 { return p.Done + p.Failed + p.Refused + p.Dropped },
		"wide":    func(part, whole int64) float64 { return 720 * min(1, max(0, float64(part)/float64(max(1, whole)))) },
		"running": func(s batch.State) bool { return s == batch.Running || s == batch.Paused },
		"percent": func(part, whole int64) int {
			if whole <= 0 {
				return 0
			}
			return int(max(0, min(100, part*100/whole)))
		},
	}
	d.pages = make(map[string]*template.Template)
	base, err := template.New("base.html").Funcs(funcs).ParseFS(files, "templates/base.html", "templates/parts.html")
	if err != nil {
		return err
	}
	names := []string{"fault"}
	for _, p := range pages {
		names = append(names, p.name)
	}
	for _, name := range names {
		clone, err := base.Clone()
		if err != nil {
			return err
		}
		if d.pages[name], err = clone.ParseFS(files, "templates/"+name+".html"); err != nil {
			return err
		}
	}
	d.assets = make(map[string]asset)
	sum := fnv.New64a()
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		body, err := fs.ReadFile(files, "assets/"+name)
		if err != nil {
			return err
		}
		d.assets[name] = asset{kind, body}
	}
	for _, name := range []string{"style.css", "live.js", "icon.svg"} {
		_, _ = sum.Write(d.assets[name].body)
	}
	d.version = hex.EncodeToString(sum.Sum(nil))
	return nil
}

func (d *board) asset(w http.ResponseWriter, r *http.Request) {
	a, ok := d.assets[r.PathValue("name")]
	if !ok {
		d.fault(w, r, http.StatusNotFound, "There is no such file.", "")
		return
	}
	w.Header().Set("Content-Type", a.kind)
	if r.URL.Query().Get("v") == d.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(a.body)
}

// url is a link: a path and pairs of a name and a value. The last of a name counts, and an empty
// value takes the name away.
func (d *board) url(path string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if q.Del(pairs[i]); pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	if len(q) == 0 {
		return d.cfg.Prefix + path
	}
	return d.cfg.Prefix + path + "?" + q.Encode()
}

// with is the address of a page with other values of parameters, given as pairs. An empty value
// takes a parameter away.
func (d *board) with(path string, q url.Values, pairs ...string) string {
	all := make([]string, 0, 2*len(q)+len(pairs))
	for name := range q {
		all = append(all, name, q.Get(name))
	}
	return d.url(path, append(all, pairs...)...)
}

func (d *board) keyURL(rule, id string) string {
	return d.url("/key", "rule", rule, "k", d.seal.seal(id))
}

func (d *board) taskURL(queue, id string) string { return d.url("/task", "queue", queue, "id", id) }

// asynqmonURL is the page of asynqmon about a task, or without one about a queue; empty when it is
// not known where asynqmon runs.
func (d *board) asynqmonURL(queue, id string) string {
	switch {
	case d.cfg.AsynqmonURL == "":
		return ""
	case id == "":
		return d.cfg.AsynqmonURL + "/queues/" + url.PathEscape(queue)
	}
	return d.cfg.AsynqmonURL + "/queues/" + url.PathEscape(queue) + "/tasks/" + url.PathEscape(id)
}

// taskLink is the id of a task with a link to its page. An id can be too long for an address.
func (d *board) taskLink(queue, id string, most int) template.HTML {
	text := template.HTMLEscapeString(safeIn(id, most))
	if len(id) > paramMax || len(queue) > paramMax {
		return template.HTML(text + ` <span class="small">too long for a page of its own</span>`) //nolint:gosec // escaped above
	}
	return template.HTML(`<a href="` + template.HTMLEscapeString(d.taskURL(queue, id)) + `">` + text + `</a>`) //nolint:gosec // escaped
}

// source is what all views are made from: an inspector of the policies that are given, or of
// those that the running pools say.
type source struct {
	*inspect.Inspector
	policies  []queue.Policy
	processes []inspect.Process
	all       int // processes, listed or not
}

// processesFor is how long what the processes say is used: they say it every 5 s.
const processesFor = 2 * time.Second

func (d *board) source(ctx context.Context) (*source, error) {
	got, err := d.views.get(ctx, "processes", processesFor, func(ctx context.Context) (any, error) {
		bare, err := inspect.New(d.rdb, inspect.Config{Throttle: d.cfg.Throttle})
		if err != nil {
			return nil, err
		}
		s := &source{policies: d.cfg.Policies}
		if s.processes, s.all, err = bare.Processes(ctx); err != nil {
			return nil, err
		}
		if d.cfg.Policies == nil {
			s.policies = inspect.PoliciesOf(s.processes)
		}
		s.Inspector, s.policies, err = d.inspector(s.policies)
		return s, err
	})
	if err != nil {
		return nil, err
	}
	return got.value.(*source), nil
}

// inspector is that of some policies. It is kept until others come. While no pool runs, the
// policies that were said last stay.
func (d *board) inspector(policies []queue.Policy) (*inspect.Inspector, []queue.Policy, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known != nil && (len(policies) == 0 || same(policies, d.policies)) {
		return d.known, d.policies, nil
	}
	i, err := inspect.New(d.rdb, inspect.Config{Policies: policies, Throttle: d.cfg.Throttle})
	if err != nil {
		return nil, nil, err
	}
	d.known, d.policies = i.ByID(), policies
	return d.known, policies, nil
}

// same says that policies have the same rules with the same numbers.
func same(a, b []queue.Policy) bool { return reflect.DeepEqual(texts(a), texts(b)) }

func texts(policies []queue.Policy) (all []string) {
	for _, p := range policies {
		all = append(all, p.Type)
		for _, r := range p.Rules {
			all = append(all, r.Name, numbersOf(r), fmt.Sprint(r.LimitOf != nil))
		}
	}
	return all
}

func numbersOf(r queue.Rule) string {
	if r.Gate.IsZero() {
		return r.Limit.String()
	}
	return r.Gate.String()
}

// page is one of the pages.
type page struct {
	name, path, title string
	nav               bool
	params            []string // of its address; others are not looked at
	skips             []string // parameters that say how many rows of a list are skipped
	load              func(ctx context.Context, d *board, q url.Values) (any, error)
	asks              []Verb // changes that it offers; no other page does
}

// view is what a template is filled with.
type view struct {
	Root, Version, Page, Title string
	Nav                        []navItem
	Data                       any
	At                         time.Time // when the data was read
	Cost, Budget               int
	Every                      time.Duration
	Live                       string // address of the events; empty for none
	Self                       string // address of the page
	Done                       string // what was changed just now
	Writes, ShowKeys           bool
	Asynqmon                   string
	Code                       int
	What, Next                 string // of a fault

	may func(Action) bool
}

// Can says whether the reader may change something that the page shows, and Authorize is asked
// as it will be when the form is sent.
func (v view) Can(verb Verb, of any) bool {
	f := form{verb: verb}
	switch of := of.(type) {
	case queuePage:
		f.queue = of.Queue
	case rulePage:
		f.rule = of.Rule
	case keyPage:
		f.rule, f.queue = of.Rule, of.Queue
	case taskPage:
		f.queue, f.task = of.Queue, of.ID
	case batchRow:
		f.queue, f.batchID = of.Queue, of.ID
	case auditRow:
		f.rule, f.queue, f.task, f.batchID = of.Rule, of.Queue, of.Task, of.Batch
		if of.back.text == "" || slices.ContainsFunc(of.back.steps, func(step form) bool { return !v.may(step.action()) }) {
			return false
		}
	}
	return v.may(f.action())
}

// CanAny says whether the reader may make some of the page's changes on something.
func (v view) CanAny(of any) bool {
	for _, p := range pages {
		if p.name == v.Page {
			return slices.ContainsFunc(p.asks, func(verb Verb) bool { return v.Can(verb, of) })
		}
	}
	return false
}

type navItem struct {
	Title, URL string
	Here       bool
}

// paramMax bounds a value in an address.
const paramMax = 2048

// query takes the values of a page out of an address.
func (p page) query(all url.Values) (url.Values, error) {
	q := url.Values{}
	for _, name := range p.skips {
		if _, err := skipOf(all, name); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Concat(p.params, p.skips) {
		v := all.Get(name)
		if len(v) > paramMax {
			return nil, fmt.Errorf("%w: %s has %d bytes, want at most %d", errRequest, name, len(v), paramMax)
		}
		if v != "" {
			q.Set(name, v)
		}
	}
	if q.Has("id") && !q.Has("queue") { // Authorize is to be told which
		q.Set("queue", "default")
	}
	return q, nil
}

// errRequest says that an address or a form makes no sense. Its text may be shown.
var errRequest = errors.New("this can't be answered")

// errGone says that what was asked for is not there.
var errGone = errors.New("not found")

// show loads a view through the snapshots.
func (d *board) show(ctx context.Context, p page, q url.Values) (snapshot, error) {
	return d.views.get(ctx, p.name+"?"+q.Encode(), d.cfg.Refresh, func(ctx context.Context) (any, error) { return p.load(ctx, d, q) })
}

func (d *board) page(w http.ResponseWriter, r *http.Request, p page) {
	q, err := p.query(r.URL.Query())
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if !d.allowed(r, Action{Verb: View, Page: p.name, Rule: q.Get("rule"), Queue: q.Get("queue"), Task: q.Get("id")}) {
		d.refuse(w, r)
		return
	}
	got, err := d.show(r.Context(), p, q)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v := d.view(p.name, p.title)
	v.Data, v.At, v.Cost = got.value, got.at, got.cost
	v.Self = d.cfg.Prefix + p.path
	if len(q) > 0 {
		v.Self += "?" + q.Encode()
	}
	v.Live = d.url("/live", "view", v.Self)
	v.may = func(a Action) bool { return d.allowed(r, a) }
	v.Done = doneText(r.URL.Query().Get("done"))
	d.render(w, http.StatusOK, p.name, "base.html", v)
}

// view has what all pages have.
func (d *board) view(name, title string) view {
	v := view{
		Root: d.cfg.Prefix, Version: d.version, Page: name, Title: title, Budget: d.cfg.Budget, Every: d.cfg.Refresh,
		Writes: d.cfg.AllowWrites, ShowKeys: d.cfg.ShowKeys, Asynqmon: d.cfg.AsynqmonURL,
	}
	for _, p := range pages {
		if p.nav {
			v.Nav = append(v.Nav, navItem{p.title, d.cfg.Prefix + p.path, p.name == name})
		}
	}
	return v
}

func (d *board) render(w http.ResponseWriter, code int, name, block string, v view) {
	var b bytes.Buffer
	if err := d.pages[name].ExecuteTemplate(&b, block, v); err != nil {
		http.Error(w, "This page can’t be shown.", http.StatusInternalServerError) // the error may quote what it shows
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes())
}

// refuse answers who may not.
func (d *board) refuse(w http.ResponseWriter, r *http.Request) {
	d.fault(w, r, http.StatusForbidden, "You may not do this here.", "Whoever runs the dashboard decides who may do what.")
}

// fault answers with a page that says what is wrong, and what can be done.
func (d *board) fault(w http.ResponseWriter, _ *http.Request, code int, what, next string) {
	v := d.view("fault", http.StatusText(code))
	v.Code, v.What, v.Next = code, what, next
	d.render(w, code, "fault", "base.html", v)
}

// fail answers with what an error means.
func (d *board) fail(w http.ResponseWriter, r *http.Request, err error) {
	code, what, next := explained(err)
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	d.fault(w, r, code, what, next)
}

// explained is what an error means for a reader. Errors of this module contain no key.
func explained(err error) (code int, what, next string) {
	text := safeIn(err.Error(), 300)
	_, exceeds := errors.AsType[*throttle.ExceedsLimitError](err)
	switch {
	case errors.Is(err, throttle.ErrUnavailable):
		return http.StatusServiceUnavailable, "Redis does not answer as it should.", text
	case errors.Is(err, throttle.ErrStoredLimit) && strings.Contains(text, "the limit of the key is not known"):
		return http.StatusConflict, "The limit of the key is not known here.", "A function of the program finds it: a dashboard in the program, " +
			"with its policies in Config.Policies, can call it. " + text
	case errors.Is(err, throttle.ErrStoredLimit):
		return http.StatusConflict, "The stored limit can't be read.", "Nothing is granted by it. Store another one on the page of its rule, or " +
			"take it away there: then the limit in code counts again. " + text
	case errors.Is(err, errBusy), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable, "Too much is asked at once.", "Reload the page in a moment. " + text
	case errors.Is(err, errGone), errors.Is(err, inspect.ErrNotWaiting), errors.Is(err, batch.ErrNotFound):
		return http.StatusNotFound, "It is not there.", text
	case strings.Contains(text, "no policy here has a limit"):
		return http.StatusNotFound, "There is no such rule.", "No pool that runs, and no policy that is given, has it."
	case errors.Is(err, inspect.ErrPaused), errors.Is(err, inspect.ErrNotPaused):
		return http.StatusConflict, "There is nothing to do.", text
	case errors.Is(err, errSeal):
		return http.StatusGone, "This link has ended.", "It was made before the dashboard was started anew. Find the key on the page of its rule."
	case errors.Is(err, errRequest), errors.Is(err, inspect.ErrInvalidCursor), errors.Is(err, inspect.ErrInvalidReason), errors.Is(err, throttle.ErrInvalidKey),
		errors.Is(err, throttle.ErrInvalidLimit), errors.Is(err, throttle.ErrInvalidConfig), errors.Is(err, queue.ErrInvalidPolicy), errors.Is(err, batch.ErrInvalid),
		errors.Is(err, batch.ErrState), exceeds:
		return http.StatusBadRequest, "This can't be done as it was asked.", text
	}
	return http.StatusInternalServerError, "Something went wrong.", text
}

// shownKey is a key as far as it may be shown.
func (d *board) shownKey(id string) string {
	if d.cfg.ShowKeys {
		return safe(id)
	}
	return safe(inspect.Mask(id))
}

// allowed asks whether a request may do something.
func (d *board) allowed(r *http.Request, a Action) bool {
	return (a.Verb == View || d.cfg.AllowWrites) && d.cfg.Authorize(r, a) == nil
}
