package worker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/stderrlog"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// ErrInvalidConfig is what every fault of a [Config] unwraps to.
var ErrInvalidConfig = errors.New("worker: invalid configuration")

// Bounds of a [Config].
const (
	ServersMax = 64
)

// Config is the configuration of a pool or an adapter. The zero Config runs asynq
// without limits. It is not read again after New.
type Config struct {
	// Asynq configures the servers, as in asynq. Concurrency is that of the
	// whole pool, shared out over its servers; it defaults to runtime.NumCPU, or Servers
	// when that is more. The other defaults are asynq's. IsFailure, RetryDelayFunc and
	// ErrorHandler work as ever and never see a throttle. TaskCheckInterval is
	// ours: an idle server is woken, it does not sleep. A Logger of your own gets
	// asynq's lines without group keys, one of those that are alike each 3 s, fatal ones as errors,
	// and not the warning about retries for what was only deferred. For an
	// [Adapter] it is what [Adapter.Server] takes where it is given nothing else.
	Asynq asynq.Config

	// Servers is how many asynq servers run in this process, 1 to [ServersMax]
	// and at most Concurrency. Defaults to 1, which is enough: while a queue has
	// tasks, a server of a pool fetches several in one round trip. asynq's
	// Inspector.Servers lists each.
	Servers int

	// Policies say which task types need permits, and which. Types are compared exactly.
	// A policy needs at least one limit: one of gates alone is refused.
	Policies []queue.Policy

	// PolicyFiles are paths of YAML files with more policies, see docs/policies.md. They must be
	// there and right when the pool is made. While it runs it looks every second whether they
	// have changed. A limit with other numbers then counts in all processes, as with
	// [throttle.Limiter.SetLimit]; a file with a fault changes nothing, and neither does one with
	// a change that needs a restart, see [queue.ChangedLimits]. Both are logged, with the line.
	// A limit that an operator stored goes before the file, and that is logged too.
	PolicyFiles []string

	// PolicyFuncs are the functions that the files name.
	PolicyFuncs queue.Funcs

	// Unlimited is what happens to a task whose type has no policy. Defaults to
	// [UnlimitedWarn]. A policy that no task came for in a quarter of an hour, and one that
	// the [asynq.ServeMux] has no handler for, are named in the log unless it is
	// [UnlimitedAllow].
	Unlimited Unlimited

	// Throttle is common to the limiters of all policies.
	Throttle throttle.Config

	// NoSignals lets [Pool.Run] heed no signals: the program does, and ends Run's
	// context or calls [Pool.Shutdown]. By default Run heeds them as an
	// asynq.Server's Run does, see there.
	NoSignals bool

	// AllowEviction starts on a Redis that evicts keys when it is full (a maxmemory-policy
	// other than noeviction). It then forgets what limits have counted, and they grant too
	// much: see docs/production.md. Defaults to a refusal.
	AllowEviction bool

	// WaitForRedis lets Start and Run wait while Redis does not answer, as at a deploy that
	// starts both, until it does or the context ends. A Redis that refuses the pool, by a wrong
	// password for instance, is an error all the same. Defaults to an error at once.
	WaitForRedis bool

	// NoHistory keeps the pool from writing the history that inspect.Inspector.History and
	// inspect.Inspector.Keys read: one short call for each rule in use every 5 s.
	NoHistory bool

	// Logger takes the pool's and asynq's lines. Defaults to zap's production lines on
	// stderr, warnings and errors only; zap.NewNop() silences them.
	Logger *zap.Logger

	// Observer hears what happens to tasks and rules, see package event. It must not block:
	// event.Buffer takes what is slow. Throttle.Observer hears each answer to an admission
	// besides, also of one that is asked again; most programs leave that one alone.
	// The zero Observer hears nothing.
	Observer event.Observer
}

// fill puts the defaults where c is zero.
func (c Config) fill() Config {
	if c.Asynq.Concurrency == 0 {
		c.Asynq.Concurrency = max(runtime.NumCPU(), c.Servers) // NumCPU as in asynq
	}
	if c.Servers == 0 {
		c.Servers = 1
	}
	if len(c.Asynq.Queues) == 0 {
		c.Asynq.Queues = map[string]int{"default": 1}
	}
	c.Asynq.Queues = maps.Clone(c.Asynq.Queues)
	c.Asynq.ShutdownTimeout = cmp.Or(c.Asynq.ShutdownTimeout, 8*time.Second)
	c.Policies = slices.Clone(c.Policies)
	for i, p := range c.Policies {
		c.Policies[i].Rules = slices.Clone(p.Rules)
	}
	c.PolicyFiles = slices.Clone(c.PolicyFiles)
	c.Throttle = throttle.ForWorkers.FillConfig(c.Throttle)
	c.Logger = stderrlog.Or(c.Logger)
	return c
}

// Validate returns everything that is wrong with c, joined: nothing is silently
// corrected. Faults of asynq's part that asynq itself would drop or panic about
// are among them. It does not read PolicyFiles, as [New] does.
func (c Config) Validate() error {
	c = c.fill()
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalidConfig}, a...)...))
	}
	if c.Servers < 1 || c.Servers > ServersMax {
		bad("Servers is %d, want 1 to %d", c.Servers, ServersMax)
	}
	if c.Asynq.Concurrency < c.Servers {
		bad("Asynq.Concurrency is %d, want at least one worker for each of %d servers", c.Asynq.Concurrency, c.Servers)
	}
	checkQueues("Asynq.Queues", c.Asynq.Queues, bad)
	if c.Asynq.TaskCheckInterval != 0 {
		bad("Asynq.TaskCheckInterval is %v, want 0: an idle server is woken, it does not sleep", c.Asynq.TaskCheckInterval)
	}
	if g := c.Asynq.GroupGracePeriod; g != 0 && g < time.Second {
		bad("Asynq.GroupGracePeriod is %v, want at least 1s", g)
	}
	if c.Asynq.ShutdownTimeout < 0 {
		bad("Asynq.ShutdownTimeout is %v, want 0 or more", c.Asynq.ShutdownTimeout)
	}
	switch {
	case c.Unlimited < UnlimitedWarn || c.Unlimited > UnlimitedRefuse:
		bad("Unlimited is %d, want UnlimitedWarn, UnlimitedAllow or UnlimitedRefuse", c.Unlimited)
	case c.Unlimited == UnlimitedRefuse && len(c.Policies) == 0 && len(c.PolicyFiles) == 0:
		bad("Unlimited is UnlimitedRefuse and there are no Policies: each task would be refused")
	}
	errs = append(errs, queue.ValidatePolicies(c.Policies), throttle.ForWorkers.ValidateConfig(c.Throttle))
	return errors.Join(errs...)
}

// checkQueues reports queues that asynq would drop without a word.
func checkQueues(field string, queues map[string]int, bad func(format string, a ...any)) {
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		switch {
		case strings.TrimSpace(name) == "":
			bad("%s has a queue without a name", field)
		case strings.ContainsAny(name, "{}"):
			bad("%s: queue %q has braces, which break its hash tag", field, name)
		case queues[name] < 1:
			bad("%s: queue %q has priority %d, want at least 1", field, name, queues[name])
		}
	}
}
