package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
)

// Unlimited says what a pool does with a task whose type has no policy.
type Unlimited int

const (
	// UnlimitedWarn runs such a task without limits, and names its type in the log, once.
	UnlimitedWarn Unlimited = iota
	// UnlimitedAllow runs such a task without limits and without a word.
	UnlimitedAllow
	// UnlimitedRefuse fails such a task with a [NoPolicyError]. asynq retries it like any
	// task that failed, and archives it when no attempt is left: it runs as soon as a pool
	// has a policy for it.
	UnlimitedRefuse
)

// ErrNoPolicy is what a [NoPolicyError] unwraps to.
var ErrNoPolicy = errors.New("worker: task type without a policy")

// NoPolicyError fails a task whose type has no policy, under [UnlimitedRefuse].
type NoPolicyError struct{ Type string }

func (e *NoPolicyError) Error() string {
	return fmt.Sprintf("worker: task type %q has no policy, and Config.Unlimited refuses such tasks", e.Type)
}

func (e *NoPolicyError) Unwrap() error { return ErrNoPolicy }

const (
	// typesNamed bounds how many task types without a policy are named in the log.
	typesNamed = 100
	// unseenAfter is how long a pool waits for the first task of each policy.
	unseenAfter = 15 * time.Minute
)

// typeWatch finds task types without a policy, and policies without tasks: a misspelt type
// is both. It is safe for concurrent use.
type typeWatch struct {
	*core
	seen map[string]*atomic.Bool // by the type of a policy: whether a task came

	mu      sync.Mutex
	named   map[string]bool // types without a policy that are in the log
	muxes   []taskMux       // to be looked at when the pool starts
	started time.Time       // zero before the pool starts
	told    bool            // which policies had no task
}

// taskMux is the part of an [asynq.ServeMux] that says which tasks it handles.
type taskMux interface {
	Handler(task *asynq.Task) (h asynq.Handler, pattern string)
}

// handles says whether a mux has a handler for a task.
func handles(mux taskMux, task *asynq.Task) bool {
	_, pattern := mux.Handler(task)
	return pattern != ""
}

func newTypeWatch(c *core) *typeWatch {
	w := &typeWatch{core: c, seen: make(map[string]*atomic.Bool), named: make(map[string]bool)}
	for _, p := range c.cfg.Policies {
		w.seen[p.Type] = new(atomic.Bool)
	}
	return w
}

// saw notes that a task of a policy came.
func (w *typeWatch) saw(typ string) {
	if seen := w.seen[typ]; !seen.Load() { // most find it set: no write that all cores share
		seen.Store(true)
	}
}

// noPolicy is called for each task that has no policy. It returns why the task does not run.
func (w *typeWatch) noPolicy(ctx context.Context, task event.Task) error {
	typ := task.Type
	w.counters.unlimited.Add(1)
	if tell := w.cfg.Observer.Unlimited; tell != nil {
		tell(ctx, event.Unlimited{Task: task, Fails: w.cfg.Unlimited == UnlimitedRefuse && !w.cfg.Throttle.Shadow})
	}
	switch w.cfg.Unlimited {
	case UnlimitedAllow:
	case UnlimitedRefuse:
		err := &NoPolicyError{Type: typ}
		if !w.cfg.Throttle.Shadow {
			w.name(typ, "a task type has no policy: its tasks fail")
			return writable(err)
		}
		w.counters.shadowed.add(err)
		w.name(typ, "a task type has no policy: its tasks run without limits, and would fail if this were not shadow mode")
	default:
		if len(w.seen) > 0 { // otherwise the log says at the start that nothing has limits
			w.name(typ, "a task type has no policy: its tasks run without limits. Write a policy for it, or set Config.Unlimited")
		}
	}
	return nil
}

// name logs a type the first time that it is seen.
func (w *typeWatch) name(typ, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.named[typ] || len(w.named) > typesNamed {
		return
	}
	w.named[typ] = true
	if len(w.named) > typesNamed {
		w.log.Warn("more task types have no policy: they are counted, and not named any more", zap.Int("named", typesNamed))
		return
	}
	w.log.Warn(what, zap.String("type", typ), zap.Strings("policies", w.types()))
}

// bypassed is called for a task that ended while the adapter's handler was not called for it.
// For a type with a policy there are two causes: the server's handler lacks Adapter.Handler, or a middleware
// before it answered in its stead. If the adapter's handler has never seen the type, it is the first.
func (w *typeWatch) bypassed(typ string) {
	seen := w.seen[typ]
	if seen == nil {
		return
	}
	w.counters.bypassed.Add(1)
	if seen.Load() {
		w.logOnce("bypassed at times "+typ, func() {
			w.log.Warn("a task ended before the adapter's handler was called, so its limits were not asked: "+
				"a middleware around Adapter.Handler answered for it, or one of several servers has a handler without Adapter.Handler", zap.String("type", typ))
		})
		return
	}
	w.logOnce("bypassed "+typ, func() {
		w.log.Error("a task with a policy ran without limits: the adapter's handler was not called. "+
			"Wrap the handler of the server with Adapter.Handler: srv.Start(a.Handler(mux))", zap.String("type", typ))
	})
}

// types are those of some policies, for the log.
func (w *typeWatch) types() []string {
	all := slices.Sorted(maps.Keys(w.seen))
	return all[:min(len(all), 20)]
}

// watchMux compares a mux with the policies once the pool starts: a handler may be
// registered until then.
func (w *typeWatch) watchMux(mux taskMux) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started.IsZero() {
		w.muxes = append(w.muxes, mux)
		return
	}
	w.compareLocked(mux)
}

// start is called when the pool starts.
func (w *typeWatch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started = time.Now()
	for _, mux := range w.muxes {
		w.compareLocked(mux)
	}
	if len(w.seen) == 0 && w.cfg.Unlimited == UnlimitedWarn {
		w.log.Warn("there are no policies: all tasks run without limits. Set Config.Policies, or Config.Unlimited to UnlimitedAllow")
	}
}

func (w *typeWatch) compareLocked(mux taskMux) {
	if w.cfg.Unlimited == UnlimitedAllow {
		return
	}
	var unhandled []string
	for _, typ := range slices.Sorted(maps.Keys(w.seen)) {
		if !handles(mux, asynq.NewTask(typ, nil)) {
			unhandled = append(unhandled, typ)
		}
	}
	if len(unhandled) > 0 {
		w.log.Warn("policies are for task types that the mux has no handler for: is a type misspelt?", zap.Strings("types", unhandled))
	}
}

// tellUnseen names the policies that no task came for, once.
func (w *typeWatch) tellUnseen(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told || now.Sub(w.started) < unseenAfter {
		return
	}
	w.told = true
	var unseen []string
	for _, typ := range slices.Sorted(maps.Keys(w.seen)) {
		if !w.seen[typ].Load() {
			unseen = append(unseen, typ)
		}
	}
	if len(unseen) > 0 && w.cfg.Unlimited != UnlimitedAllow {
		w.log.Warn("no task came for these policies: is a type misspelt?", zap.Strings("types", unseen), zap.Duration("since", unseenAfter))
	}
}
