package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/precheck"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/worker"
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

func doctorCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "look for what breaks limits or loses jobs; exit code 1 if something is bad", Args: cobra.NoArgs,
		Long: `doctor looks at the version of Redis, its eviction and persistence, the rights of this
user, the clocks, pools with other numbers, queues without a pool, task types without a
policy (in a sample of 100 tasks of each queue) and keys without a life (in a sample of
about 10,000 keys). On Redis Cluster it looks at every master, and a finding names the node.
Of more than 100 queues it looks at the first 100 by name, and of more than 500 processes at
500. A queue that a server of asynq serves without Headway is not reported as unserved.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				rdb, err := a.open()
				if err != nil {
					return nil, err
				}
				e := &examination{
					rdb: rdb, inspector: a.inspector, prefix: cmp.Or(a.prefix, "hw"),
				}
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
	rdb       redis.UniversalClient
	inspector func(context.Context) (*inspect.Inspector, error)
	served    func() (inspect.Served, error)
	prefix    string
	nodes     []node
	found     []finding
	queues    []inspect.QueueStatus
	running   []inspect.Process // those that are listed
	unlisted  int               // processes that run besides
}

// node is a server of Redis, on a Cluster one of its masters.
type node struct {
	redis.UniversalClient
	name string // before what a finding says about it; empty for the only one
}

// nodesOf are the servers behind a client.
func nodesOf(ctx context.Context, rdb redis.UniversalClient) ([]node, error) {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return []node{{rdb, ""}}, nil
	}
	var mu sync.Mutex
	var all []node
	err := cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, node{c, nodeName(c.Options().Addr)})
		return nil
	})
	slices.SortFunc(all, func(a, b node) int { return cmp.Compare(a.name, b.name) })
	return all, err
}

func nodeName(addr string) string { return "node " + addr + ": " }

func (e *examination) add(check, level, do, says string, a ...any) {
	e.found = append(e.found, finding{Check: check, Level: level, Says: fmt.Sprintf(says, a...), Do: do})
}

func (e *examination) run(ctx context.Context) error {
	connected, err := e.server(ctx)
	if err != nil || !connected {
		return err
	}
	e.settings(ctx)
	i, err := e.inspector(ctx)
	if err != nil {
		return err
	}
	left := 0
	if e.queues, left, err = countQueues(ctx, i); err != nil {
		if !rediserr.NoPermission(err) {
			return err
		}
		e.add("rights", "bad", "docs/production.md lists the rights of each role", "this user may not run Headway's scripts")
		return nil
	}
	e.add("rights", "ok", "", "scripts and functions may run")
	if left > 0 {
		e.add("queues", "warn", "the dashboard lists all of them", "%s not looked at", counted(left, "queue was", "queues were"))
	}
	all := 0
	if e.running, all, err = i.Processes(ctx); err != nil {
		return err
	}
	e.unlisted = all - len(e.running)
	e.served = func() (inspect.Served, error) { return i.ServedQueues(ctx) }
	if err := e.pools(); err != nil {
		return err
	}
	e.types()
	e.lives(ctx)
	return nil
}

// server is what a pool looks at when it starts, without the trial of its rights: whoever
// asks here may have others. It says whether the server lets this user in.
func (e *examination) server(ctx context.Context) (connected bool, err error) {
	found, err := precheck.Run(ctx, e.rdb, precheck.Needs{LookOnly: true, ClockWarn: worker.ClockSkewWarn, ClockMax: worker.ClockSkewMax})
	if err != nil {
		return false, errAway(err)
	}
	wrong := make(map[string]bool)
	for _, f := range found {
		wrong[f.Name] = true
		level := "bad"
		if f.Level == precheck.Warning {
			level = "warn"
		}
		says := f.What
		if _, cluster := e.rdb.(*redis.ClusterClient); cluster {
			says = nodeName(f.Where) + says
		}
		e.add(f.Name, level, f.Remedy, "%s", says)
	}
	if wrong["connection"] {
		return false, nil
	}
	if e.nodes, err = nodesOf(ctx, e.rdb); err != nil {
		return false, errAway(err)
	}
	for _, ok := range []struct{ check, says string }{
		{"clock", fmt.Sprintf("this machine and Redis differ by less than %v", worker.ClockSkewWarn)},
		{"version", e.versions(ctx)},
		{"eviction", "nothing is evicted"},
	} {
		switch {
		case wrong[ok.check]:
		case ok.says == "":
			e.add(ok.check, "warn", "allow INFO to this user", "it can't be read")
		default:
			e.add(ok.check, "ok", "", "%s", ok.says)
		}
	}
	return true, nil
}

// versions are those of the servers; empty when one does not say.
func (e *examination) versions(ctx context.Context) string {
	var all []string
	for _, n := range e.nodes {
		v := n.info(ctx, "server")["redis_version"]
		if v == "" {
			return ""
		}
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return "Redis " + strings.Join(all, ", ")
}

// settings looks at what a pool can live with, and an operator should know.
func (e *examination) settings(ctx context.Context) {
	on := 0
	for _, n := range e.nodes {
		switch n.info(ctx, "persistence")["aof_enabled"] {
		case "1":
			on++
		case "0":
			e.add("persistence", "warn", "set appendonly yes",
				"%sthe append-only file is off: a restart loses jobs and what was spent since the last snapshot", n.name)
		}
	}
	if on == len(e.nodes) {
		e.add("persistence", "ok", "", "the append-only file is on")
	}
	for _, n := range e.nodes {
		if n.info(ctx, "memory")["maxmemory"] == "0" {
			e.add("memory", "warn", "set maxmemory, so that a full Redis refuses instead of being killed", "%smaxmemory is not set", n.name)
		}
	}
}

// info reads the fields of INFO sections.
func (n node) info(ctx context.Context, section string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(n.Info(ctx, section).Val()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

func (e *examination) pools() error {
	pools := inspect.Pools(e.running)
	for _, d := range inspect.Differences(nil, e.running) {
		e.add("numbers", "bad", "deploy one policy to all pools; each decides by its own", "pool %s runs %s with %s, most have %s", d.Pool, d.Rule, d.Got, d.Want)
	}
	unserved, err := e.unserved()
	if err != nil {
		return err
	}
	for _, q := range e.queues {
		switch {
		case unserved[q.Queue] != nil:
			e.found = append(e.found, *unserved[q.Queue])
		case q.Paused:
			e.add("pools", "warn", "\"headway resume\" ends that", "queue %s is paused", q.Queue)
		case q.Overdue > 100:
			e.add("pools", "warn", "look whether workers are missing", "%d tasks of queue %s are overdue", q.Overdue, q.Queue)
		}
	}
	if e.unlisted > 0 {
		e.add("pools", "warn", "", "%s not looked at, because only 500 are listed", counted(e.unlisted, "process was", "processes were"))
	}
	switch {
	case len(pools) > 0:
		e.add("pools", "ok", "", "%s", counted(len(pools), "pool runs", "pools run"))
	case e.unlisted == 0:
		e.add("pools", "warn", "start one", "no pool runs")
	}
	return nil
}

// unserved finds the queues that hold tasks and that nothing serves, as far as that is known. asynq's
// list of servers is read only when a queue is served by no pool: a viewer may not read it.
func (e *examination) unserved() (map[string]*finding, error) {
	var open []inspect.QueueStatus
	byPools := inspect.ServedByPools(e.running)
	for _, q := range e.queues {
		if (q.Waiting > 0 || q.Pending > 0) && !byPools[q.Queue] {
			open = append(open, q)
		}
	}
	if len(open) == 0 {
		return nil, nil
	}
	served, err := e.served()
	if err != nil {
		return nil, err
	}
	found := make(map[string]*finding)
	for _, q := range open {
		holds := fmt.Sprintf("queue %s, where %d tasks are pending and %d wait", q.Queue, q.Pending, q.Waiting)
		f := &finding{Check: "pools", Level: "warn", Says: "it is not known whether a pool serves " + holds}
		switch {
		case served.Queues[q.Queue]:
			continue
		case served.Unlisted > 0: // another finding says so
		case served.AsynqErr != nil:
			f.Do = "asynq's list of servers could not be read, which takes the rights of an operator"
		default:
			f.Level, f.Says, f.Do = "bad", "no pool serves "+holds, "start a pool that serves it"
		}
		found[q.Queue] = f
	}
	return found, nil
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
	for _, typ := range slices.Sorted(maps.Keys(unlimited)) {
		e.add("types", "warn", "give it a policy, or leave it if it needs none", "tasks of type %q run without limits", typ)
	}
}

// keysMost is about how many keys of a server are looked at.
const keysMost = 10_000

// lives: each key of Headway expires, but for stored limits and batches.
func (e *examination) lives(ctx context.Context) {
	well := true
	for _, n := range e.nodes {
		endless, err := n.endless(ctx, e.prefix)
		switch {
		case err != nil:
			e.add("keys", "warn", "allow SCAN to this user", "%skeys can't be listed", n.name)
		case endless > 0:
			e.add("keys", "bad", "report it: only stored limits and batches live without end", "%s%s", n.name,
				counted(endless, "key of Headway never expires", "keys of Headway never expire"))
		}
		well = well && err == nil && endless == 0
	}
	if well {
		e.add("keys", "ok", "", "the keys that were looked at expire")
	}
}

// endless counts among the first keys of a server those that should expire, and don't.
func (n node) endless(ctx context.Context, prefix string) (endless int, err error) {
	seen := 0
	for cursor := uint64(0); seen < keysMost; {
		keys, next, err := n.Scan(ctx, cursor, prefix+":*", 1000).Result()
		if err != nil {
			return 0, err
		}
		lives := make([]*redis.DurationCmd, len(keys))
		_, _ = n.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, key := range keys {
				lives[i] = p.PTTL(ctx, key)
			}
			return nil
		})
		for i, key := range keys {
			if lives[i].Val() == -1 && !strings.HasPrefix(key, prefix+":limit:") && !strings.Contains(key, "}:batch") {
				endless++
			}
		}
		seen += 1000
		if cursor = next; cursor == 0 {
			break
		}
	}
	return endless, nil
}
