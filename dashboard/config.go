package dashboard

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Defaults and bounds of a [Config].
const (
	RefreshDefault = 2 * time.Second
	RefreshMin     = 500 * time.Millisecond
	RefreshMax     = time.Minute
	BudgetDefault  = 2000 // Redis commands a second
	BudgetMin      = 100
)

// ErrInvalidConfig says that a [Config] makes no sense.
var ErrInvalidConfig = errors.New("dashboard: invalid configuration")

// Config are the options of a dashboard. The zero value is for this machine alone, and
// changes nothing.
type Config struct {
	// Prefix is the path under which the handler is mounted, such as "/headway".
	// Defaults to none: it is mounted at "/".
	Prefix string

	// Policies are those of the pools. With them it can tell what a pending task will
	// need. Defaults to what the running pools say.
	Policies []queue.Policy

	// Throttle is that of the pools: Prefix and Secret say where their limits and lines
	// are. Defaults to the zero throttle.Config.
	Throttle throttle.Config

	// AllowWrites lets operators change something: limits, closings, tasks, batches.
	// Every change needs a reason, which is kept in the audit list. Defaults to false.
	AllowWrites bool

	// Authorize says whether a request may do something: look at a page, or make a change.
	// An error refuses it; its text is not shown. It is called for every request, for every
	// change that a page could offer, and again before a page that is followed is sent anew,
	// so it must be fast and safe for concurrent use. Required when Hosts is given. Defaults to
	// letting everything through.
	Authorize func(*http.Request, Action) error

	// Who names the person behind a request for the audit list: 1 to 128 bytes of one line.
	// Defaults to "dashboard".
	Who func(*http.Request) string

	// ShowKeys shows keys and the errors of handlers in full. They may be
	// personal data. Defaults to masking them.
	ShowKeys bool

	// Hosts are the names by which other machines reach the dashboard, as in the Host
	// header, without a port. Defaults to none: only requests from this machine to
	// localhost are answered.
	Hosts []string

	// TrustedProxies are the addresses of proxies whose X-Forwarded-For and
	// X-Forwarded-Host are believed. Those of others are not. Defaults to none.
	TrustedProxies []netip.Prefix

	// Refresh is how old a page may be, and how often a live page changes: RefreshMin to
	// RefreshMax. Defaults to RefreshDefault.
	Refresh time.Duration

	// Budget is how many Redis commands a second all viewers together may cost, at least
	// BudgetMin. Defaults to BudgetDefault.
	Budget int

	// AsynqmonURL is where asynqmon runs, for links to it. Defaults to none.
	AsynqmonURL string
}

// fill returns c with its defaults, and all that is wrong with it, joined.
func (c Config) fill() (Config, error) {
	var errs []error
	bad := func(field, format string, a ...any) {
		errs = append(errs, fmt.Errorf("%w: %s %s", ErrInvalidConfig, field, fmt.Sprintf(format, a...)))
	}
	if c.Prefix = strings.TrimRight(c.Prefix, "/"); c.Prefix != "" {
		if u, err := url.Parse(c.Prefix); err != nil || !strings.HasPrefix(c.Prefix, "/") || strings.HasPrefix(c.Prefix, "//") || u.Path != c.Prefix ||
			strings.ContainsAny(c.Prefix, "{}") {
			bad("Prefix", "is %q, want a path such as \"/headway\"", clip(c.Prefix, 80))
		}
	}
	c.Refresh = cmp.Or(c.Refresh, RefreshDefault)
	if c.Refresh < RefreshMin || c.Refresh > RefreshMax {
		bad("Refresh", "is %v, want %v to %v", c.Refresh, RefreshMin, RefreshMax)
	}
	c.Budget = cmp.Or(c.Budget, BudgetDefault)
	if c.Budget < BudgetMin {
		bad("Budget", "is %d commands a second, want at least %d", c.Budget, BudgetMin)
	}
	if len(c.Hosts) > 0 && c.Authorize == nil {
		bad("Authorize", "is missing, and Hosts lets other machines in: say who may do what")
	}
	for _, h := range c.Hosts {
		if h == "" || strings.ContainsAny(h, "/:@ ") && !strings.Contains(h, "::") {
			bad("Hosts", "has %q, want a name without a port", clip(h, 80))
		}
	}
	if c.AsynqmonURL != "" {
		if u, err := url.Parse(c.AsynqmonURL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			bad("AsynqmonURL", "is %q, want an http or https URL", clip(c.AsynqmonURL, 80))
		}
		c.AsynqmonURL = strings.TrimRight(c.AsynqmonURL, "/")
	}
	if c.Authorize == nil {
		c.Authorize = func(*http.Request, Action) error { return nil }
	}
	if c.Who == nil {
		c.Who = func(*http.Request) string { return "dashboard" }
	}
	return c, errors.Join(errs...)
}

// Verb is what a request wants to do.
type Verb string

// The verbs. All but View change something, and need Config.AllowWrites.
const (
	View        Verb = "view"
	CloseKey    Verb = "close key"
	OpenKey     Verb = "open key"
	PauseKey    Verb = "pause key"
	CancelKey   Verb = "cancel all on a key"
	FrontKey    Verb = "all on a key to the front"
	CloseRule   Verb = "close rule"
	OpenRule    Verb = "open rule"
	SetLimit    Verb = "set limit"
	UnsetLimit  Verb = "unset limit"
	PauseQueue  Verb = "pause queue"
	ResumeQueue Verb = "resume queue"
	CancelTask  Verb = "cancel task"
	FrontTask   Verb = "task to the front"
	RunTask     Verb = "run task now"
	PauseBatch  Verb = "pause batch"
	ResumeBatch Verb = "resume batch"
	CancelBatch Verb = "cancel batch"
	SetPace     Verb = "set pace"
	SetWeight   Verb = "set weight"
	Undo        Verb = "undo"
)

// Action is what Config.Authorize is asked about. It names no key, which may be personal
// data.
type Action struct {
	Verb  Verb
	Page  string // that is looked at, or that offers the change: "overview", "rule" ...
	Rule  string // where it is about one
	Queue string
	Task  string
	Batch string
}
