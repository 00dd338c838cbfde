// Package presence says that a process runs, and what it runs, so that an operator sees
// the pools, feeders and schedulers of an application without asking each of them: list.go has
// the list of those that run.
package presence

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
)

// Every is how often a process says that it runs.
const Every = 5 * time.Second

// The kinds of processes.
const (
	Pool      = "pool"
	Feeder    = "feeder"
	Scheduler = "scheduler"
)

// Process is what a process says of itself.
type Process struct {
	ID      string    `json:"id"` // random, of this start
	Kind    string    `json:"kind"`
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Version string    `json:"version"` // of the program's build, as Go knows it
	Since   time.Time `json:"since"`
	Seen    time.Time `json:"seen"` // by its own clock

	// ClockAhead is how far its clock is ahead of Redis', and ClockWithin how exact that is: half
	// of the time that the question took. ClockWithin is 0 when the clock could not be asked.
	ClockAhead  time.Duration `json:"clock_ahead_ns,omitempty"`
	ClockWithin time.Duration `json:"clock_within_ns,omitempty"`

	// Connections is how many its Redis client has open; 0 where the client does not say.
	Connections int `json:"connections,omitempty"`

	// Of a pool.
	Servers  int            `json:"servers,omitempty"`
	Workers  int            `json:"workers,omitempty"`
	Busy     int            `json:"busy,omitempty"`
	Queues   map[string]int `json:"queues,omitempty"`
	Policies []Policy       `json:"policies,omitempty"`
	KeyForm  string         `json:"key_form,omitempty"` // see [KeyForm]
	// Hold names the library of Redis Functions that knows until when keys are held, where
	// throttle.Config.HoldAfterFailover is set. Each release of Headway has a library of its own, and each
	// library begins a hold by itself.
	Hold string `json:"hold,omitempty"`

	// Of a feeder or a scheduler: sources, or entries.
	Entries []Entry `json:"entries,omitempty"`
}

// Policy is the policy of a task type, in the words of a policy file.
type Policy struct {
	Type   string `json:"type"`
	Rules  []Rule `json:"rules"`
	Charge string `json:"charge"`
}

// Rule is a rule with a limit or a gate.
type Rule struct {
	Name  string `json:"name"`
	Limit string `json:"limit,omitempty"`
	Gate  string `json:"gate,omitempty"`
	// Constant is the key by the rule that all tasks have, such as a provider's, as it stands in Redis;
	// empty where keys differ.
	Constant string `json:"constant,omitempty"`
	// PerKey says that keys have limits of their own, which a function of the process finds.
	PerKey bool `json:"per_key,omitempty"`
}

// PerClient is the [KeyForm] of a process whose keys nobody else has.
const PerClient = "per client"

// KeyForm is how one fixed key stands in Redis. Programs with the same answer find each other's keys: they have
// the same Secret, or none, and nothing else shows that.
func KeyForm(secret []byte, perClient bool) string {
	if perClient {
		return PerClient
	}
	return limitscripts.KeyID(secret, "headway")
}

// Entry is a source of a feeder, or an entry of a schedule.
type Entry struct {
	Name  string    `json:"name"`
	Queue string    `json:"queue,omitempty"`
	Type  string    `json:"type,omitempty"`
	Spec  string    `json:"spec,omitempty"`
	Next  time.Time `json:"next,omitzero"` // the next tick
}

// New returns what every process says of itself.
func New(kind string) Process {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return Process{
		ID:   fmt.Sprintf("%016x", rand.Uint64()), //nolint:gosec // it only names a process
		Kind: kind, Host: host, PID: os.Getpid(), Version: version(), Since: time.Now(),
	}
}

// version is that of this module in the program, and the program's commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	const module = "github.com/headwayq/headway"
	text := info.Main.Version
	for _, dep := range info.Deps {
		if dep.Path == module {
			text = dep.Version
		}
	}
	if text == "" {
		text = "(devel)"
	}
	return text
}

// Run says every few seconds that the process runs, until ctx ends, and then that it has
// ended. now adds what changes. Nothing depends on it: when Redis can't be told, the
// process is not listed.
func Run(ctx context.Context, rdb redis.Cmdable, prefix string, p Process, now func(*Process)) {
	ahead := time.Duration(0) // when the clock was asked last
	say := func() {
		p.ClockAhead, p.ClockWithin = clock(ctx, rdb)
		if p.ClockWithin > 0 {
			ahead = p.ClockAhead
		}
		p.Seen = time.Now()
		if c, ok := rdb.(interface{ PoolStats() *redis.PoolStats }); ok {
			p.Connections = int(c.PoolStats().TotalConns)
		}
		now(&p)
		text, err := json.Marshal(p)
		if err != nil {
			return
		}
		call, cancel := context.WithTimeout(ctx, Every)
		defer cancel()
		// By Redis' clock: a process whose own clock is ahead would take all others off the list.
		_ = Say(call, rdb, prefix, p.ID, p.Seen.Add(-ahead), text)
	}
	t := time.NewTicker(Every)
	defer t.Stop()
	for say(); ; say() {
		select {
		case <-ctx.Done():
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = forget(end, rdb, prefix, p.ID)
			return
		case <-t.C:
		}
	}
}

// clockFor is how long an answer about the clock is waited for.
const clockFor = time.Second

// clock compares the clock of the process with Redis', which showed its time at some moment while
// the question was on its way.
func clock(ctx context.Context, rdb redis.Cmdable) (ahead, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, clockFor)
	defer cancel()
	began := time.Now()
	server, err := luascripts.Now(ctx, rdb)
	if err != nil {
		return 0, 0
	}
	within = max(time.Since(began)/2, time.Microsecond)
	return began.Add(within).Sub(server), within
}
