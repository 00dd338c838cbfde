package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
)

// finding is what a check found.
type finding struct {
	Check string `json:"check"`
	Level string `json:"level"` // ok, warn or bad
	Says  string `json:"says"`
	Do    string `json:"do,omitempty"` // what would be right
}

type doctorAnswer struct {
	Findings []finding `json:"findings"`
}

func (d doctorAnswer) table(t *table) {
	for _, f := range d.Findings {
		level := t.good("ok  ")
		switch f.Level {
		case "warn":
			level = t.warn("warn")
		case "bad":
			level = t.bad("bad ")
		}
		says := f.Says
		if f.Do != "" {
			says += ": " + f.Do
		}
		t.row(level, f.Check, says)
	}
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "look for what breaks limits or loses jobs; exit code 1 if something is bad", Args: cobra.NoArgs,
		Long: `doctor looks at the version of Redis, its eviction and persistence, the rights of this
user, the clocks, pools with other numbers, queues without a pool, task types without a
policy (in a sample of 100 tasks of each queue) and keys without a life (in a sample of
about 10,000 keys).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				e := &examination{rdb: a.rdb, i: i, prefix: cmp.Or(a.prefix, "hw"), cluster: a.redis.cluster}
				if err := e.run(ctx); err != nil {
					return nil, err
				}
				got := doctorAnswer{e.found}
				if slices.ContainsFunc(e.found, func(f finding) bool { return f.Level == "bad" }) {
					return got, errNotWell
				}
				return got, nil
			})
		},
	}
}

// examination is one run of the doctor.
type examination struct {
	rdb     redis.UniversalClient
	i       *inspect.Inspector
	prefix  string
	cluster bool
	found   []finding
	queues  []inspect.QueueStatus
	running []inspect.Process
}

func (e *examination) add(check, level, do, says string, a ...any) {
	e.found = append(e.found, finding{Check: check, Level: level, Says: fmt.Sprintf(says, a...), Do: do})
}

func (e *examination) run(ctx context.Context) (err error) {
	before := time.Now()
	now, err := e.rdb.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("redis: %w", errAway(err))
	}
	e.clock(before.Add(time.Since(before)/2), now)
	e.server(ctx)
	e.eviction(ctx)
	if e.queues, err = e.i.Queues(ctx); err != nil {
		if !strings.Contains(err.Error(), "NOPERM") {
			return err
		}
		e.add("rights", "bad", "see the rights in docs/tuning.md", "this user may not run Headway's scripts")
		return nil
	}
	e.add("rights", "ok", "", "scripts and functions may run")
	if e.running, _, err = e.i.Processes(ctx); err != nil {
		return err
	}
	e.pools()
	e.types()
	e.lives(ctx)
	return nil
}

// clock: asynq's leases and schedules go by local clocks.
func (e *examination) clock(here, there time.Time) {
	skew := here.Sub(there).Round(time.Millisecond)
	switch {
	case skew.Abs() > 5*time.Second:
		e.add("clock", "bad", "run NTP on both; a pool refuses to start with more than 5s", "this machine is %v ahead of Redis", skew)
	case skew.Abs() > time.Second:
		e.add("clock", "warn", "run NTP on both", "this machine is %v ahead of Redis", skew)
	default:
		e.add("clock", "ok", "", "this machine and Redis differ by %v", skew.Abs())
	}
}

// info reads the fields of INFO sections.
func (e *examination) info(ctx context.Context, section string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(e.rdb.Info(ctx, section).Val()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

func (e *examination) server(ctx context.Context) {
	server := e.info(ctx, "server")
	version := server["redis_version"]
	major, minor := numbers(version)
	switch {
	case version == "":
		e.add("version", "warn", "allow INFO to this user", "the version of Redis can't be read")
	case major < 6 || major == 6 && minor < 2:
		e.add("version", "bad", "use Redis 6.2 or later", "Redis %s", version)
	case major < 7:
		e.add("version", "ok", "", "Redis %s: scripts run by EVALSHA, for functions need 7.0", version)
	default:
		e.add("version", "ok", "", "Redis %s", version)
	}
	switch mode := server["redis_mode"]; {
	case mode == "cluster" && !e.cluster:
		e.add("cluster", "bad", "give --cluster, and use a cluster client in the program", "Redis is a cluster and this client is not")
	case mode == "cluster":
		e.add("cluster", "ok", "", "Redis is a cluster")
	}
	p := e.info(ctx, "persistence")
	switch p["aof_enabled"] {
	case "1":
		e.add("persistence", "ok", "", "the append-only file is on")
	case "0":
		e.add("persistence", "warn", "set appendonly yes", "the append-only file is off: a restart loses jobs and what was spent since the last snapshot")
	}
}

// numbers are the first two of a version.
func numbers(version string) (major, minor int) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return 0, 0
	}
	major, _ = strconv.Atoi(parts[0])
	minor, _ = strconv.Atoi(parts[1])
	return major, minor
}

// eviction: a ledger that is evicted is a limit that forgets.
func (e *examination) eviction(ctx context.Context) {
	m := e.info(ctx, "memory")
	policy, limit := m["maxmemory_policy"], m["maxmemory"]
	switch {
	case policy == "":
		e.add("eviction", "warn", "allow INFO to this user", "the eviction of Redis can't be read")
	case policy != "noeviction":
		e.add("eviction", "bad", "set maxmemory-policy noeviction", "maxmemory-policy is %s: a full Redis forgets what was spent, and limits break", policy)
	case limit == "0":
		e.add("eviction", "warn", "set maxmemory, so that a full Redis refuses instead of being killed", "nothing is evicted, and maxmemory is not set")
	default:
		e.add("eviction", "ok", "", "nothing is evicted")
	}
}

func (e *examination) pools() {
	served := make(map[string]bool)
	n := 0
	for _, p := range e.running {
		for queue := range p.Queues {
			served[queue] = true
		}
		if p.Kind == "pool" {
			n++
		}
	}
	for _, d := range inspect.Differences(nil, e.running) {
		e.add("numbers", "bad", "deploy one policy to all pools; each decides by its own", "pool %s runs %s with %s, most have %s", d.Pool, d.Rule, d.Got, d.Want)
	}
	for _, q := range e.queues {
		switch {
		case (q.Waiting > 0 || q.Pending > 0) && !served[q.Queue]:
			e.add("pools", "bad", "start a pool that serves it", "no pool serves queue %s, where %d tasks are pending and %d wait", q.Queue, q.Pending, q.Waiting)
		case q.Paused:
			e.add("pools", "warn", "\"headway resume\" ends that", "queue %s is paused", q.Queue)
		case q.Overdue > 100:
			e.add("pools", "warn", "look whether workers are missing", "%d tasks of queue %s are overdue", q.Overdue, q.Queue)
		}
	}
	if n == 0 {
		e.add("pools", "warn", "start one", "no pool runs")
		return
	}
	e.add("pools", "ok", "", "%d pools run", n)
}

// typesMost is how many tasks of a queue are looked at.
const typesMost = 100

// types: a task type without a policy runs without limits.
func (e *examination) types() {
	limited, some := make(map[string]bool), false
	for _, p := range e.running {
		for _, policy := range p.Policies {
			limited[policy.Type], some = true, true
		}
	}
	if !some {
		return
	}
	insp := asynq.NewInspectorFromRedisClient(e.rdb)
	unlimited := make(map[string]bool)
	for _, q := range e.queues {
		tasks, err := insp.ListPendingTasks(q.Queue, asynq.PageSize(typesMost))
		if err != nil {
			continue
		}
		for _, task := range tasks {
			if !limited[task.Type] {
				unlimited[task.Type] = true
			}
		}
	}
	for typ := range unlimited {
		e.add("types", "warn", "give it a policy, or leave it if it needs none", "tasks of type %q run without limits", typ)
	}
}

// keysMost is about how many keys are looked at.
const keysMost = 10_000

// lives: each key of Headway expires, but for stored limits and batches.
func (e *examination) lives(ctx context.Context) {
	seen, endless := 0, 0
	for cursor := uint64(0); seen < keysMost; {
		keys, next, err := e.rdb.Scan(ctx, cursor, e.prefix+":*", 1000).Result()
		if err != nil {
			e.add("keys", "warn", "allow SCAN to this user", "keys can't be listed")
			return
		}
		lives := make([]*redis.DurationCmd, len(keys))
		_, _ = e.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, key := range keys {
				lives[i] = p.PTTL(ctx, key)
			}
			return nil
		})
		for i, key := range keys {
			if lives[i].Val() == -1 && !strings.HasPrefix(key, e.prefix+":limit:") && !strings.Contains(key, "}:batch") {
				endless++
			}
		}
		seen += 1000
		if cursor = next; cursor == 0 {
			break
		}
	}
	if endless > 0 {
		e.add("keys", "bad", "report it: only stored limits and batches live without end", "%d keys of Headway never expire", endless)
		return
	}
	e.add("keys", "ok", "", "the keys that were looked at expire")
}
