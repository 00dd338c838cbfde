// Package precheck asks a Redis, before it is used, whether it will do: its version, what
// the user may call, whether it evicts, its clock, and whether the client fits the server.
// It finds all faults at once. No text of it holds a key of a task, a user or a password.
package precheck

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/rediserr"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	Fault   Level = "fault"   // nothing should start
	Warning Level = "warning" // it works, and may not as expected
)

// Finding is one thing that is not as it should be.
type Finding struct {
	Name   string // of the check: connection, server, version, eviction, clock, rights, scripts, functions, replicas
	Level  Level
	What   string // is so
	Where  string // the address of the server
	Remedy string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: redis %s: %s; %s", f.Name, f.Where, f.What, f.Remedy)
}

// Needs says what the server is to be fit for.
type Needs struct {
	Role          Role
	Prefix        string        // of Headway's keys
	Queue         string        // of asynq whose keys are tried; empty for "default"
	AllowEviction bool          // an eviction policy is the caller's own will
	Replicas      int           // that must have a grant
	Functions     bool          // scripts won't do in their place
	LookOnly      bool          // nothing is tried or written, so the user's rights are not looked at
	ClockWarn     time.Duration // more than that off the local clock is a warning; zero checks no clock
	ClockMax      time.Duration // and more than that a fault
}

// What is wanted of a server.
const (
	versionMin = "6.2"
	versionFn  = "7.0" // has functions
)

// Run checks the server behind a client, on Redis Cluster every master, and answers what
// it found, faults first. The error is that of a server that could not be asked; one that
// refuses the client has a finding.
func Run(ctx context.Context, rdb redis.UniversalClient, needs Needs) ([]Finding, error) {
	needs.Queue = cmp.Or(needs.Queue, "default")
	var mu sync.Mutex
	var out []Finding
	one := func(ctx context.Context, c redis.UniversalClient, where string, sharded bool) error {
		found, err := server{c, where, sharded, needs}.check(ctx)
		mu.Lock()
		defer mu.Unlock()
		out = append(out, found...)
		return err
	}
	var err error
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
			return one(ctx, c, c.Options().Addr, true)
		})
		if found, refused := refusal(err, strings.Join(cluster.Options().Addrs, ",")); refused && len(out) == 0 {
			out, err = []Finding{found}, nil
		}
	} else {
		err = one(ctx, rdb, Address(rdb), false)
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.Where, b.Where)) // "fault" < "warning"
	})
	return out, err
}

// Err joins the faults, nil when there is none.
func Err(found []Finding) error {
	var errs []error
	for _, f := range found {
		if f.Level == Fault {
			errs = append(errs, errors.New(f.String()))
		}
	}
	return errors.Join(errs...)
}

// bySentinel stands for the address of a client that asks Sentinels for it, and shows neither
// theirs nor that of the master.
const bySentinel = "(the master that the Sentinels name)"

// Address is where a client leads, as far as it shows that.
func Address(rdb redis.UniversalClient) string {
	if c, ok := rdb.(interface{ Options() *redis.ClusterOptions }); ok {
		return strings.Join(c.Options().Addrs, ",")
	}
	if c, ok := rdb.(interface{ Options() *redis.Options }); ok && c.Options().Addr == "FailoverClient" {
		return bySentinel
	}
	if c, ok := rdb.(interface{ Options() *redis.Options }); ok {
		return c.Options().Addr
	}
	return "(address unknown)"
}

// server is one server that is asked.
type server struct {
	c       redis.UniversalClient
	where   string
	sharded bool // the client knows that it is a node of a Cluster
	needs   Needs
}

func (s server) fault(name, what, remedy string) Finding {
	return Finding{name, Fault, what, s.where, remedy}
}

func (s server) warning(name, what, remedy string) Finding {
	return Finding{name, Warning, what, s.where, remedy}
}

// check asks once for all.
func (s server) check(ctx context.Context) ([]Finding, error) {
	pipe := s.c.Pipeline()
	infoCmd := pipe.Info(ctx)
	began := time.Now()
	clock := pipe.Time(ctx)
	var trials trials
	if !s.needs.LookOnly {
		trials = s.try(ctx, pipe)
	}
	_, err := rediserr.Exec(ctx, pipe)
	took := time.Since(began)
	if kind := rediserr.Of(err); err != nil && !kind.Answered() {
		return nil, fmt.Errorf("redis %s: %w", s.where, err)
	}
	if found, refused := refusal(infoCmd.Err(), s.where); refused {
		return []Finding{found}, nil
	}
	if kind := rediserr.Of(infoCmd.Err()); kind == rediserr.Passing {
		return nil, fmt.Errorf("redis %s: %w", s.where, infoCmd.Err())
	}
	info, err := readInfo(infoCmd)
	if port := info["tcp_port"]; s.where == bySentinel && port != "" {
		s.where = "(the master that the Sentinels name, port " + port + ")"
	}
	out := s.identity(info)
	out = append(out, s.eviction(ctx, info, err)...)
	if off := began.Add(took / 2).Sub(clock.Val()).Round(time.Millisecond); clock.Err() == nil {
		out = append(out, s.clock(off, took)...)
	}
	if s.needs.LookOnly {
		return out, nil
	}
	if s.needs.Replicas > 0 {
		out = append(out, s.replicas(ctx, info)...)
	}
	s.tryListening(ctx, &trials)
	return append(out, trials.findings(s, info)...), nil
}

// refusal is the finding of a server that refuses the connection.
func refusal(err error, where string) (Finding, bool) {
	if err == nil {
		return Finding{}, false
	}
	text := err.Error()
	f := Finding{Name: "connection", Level: Fault, Where: where}
	switch {
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"):
		f.What, f.Remedy = "the user or the password is wrong (WRONGPASS)", "set Username and Password of the client's options as the server's ACL has them"
	case strings.Contains(text, "NOAUTH"), strings.Contains(text, "unauthenticated"):
		f.What, f.Remedy = "it wants a password (NOAUTH)", "set Password, and Username where it has ACL users, in the client's options"
	case strings.Contains(text, "without any password configured"):
		f.What, f.Remedy = "the client sends a password and the server has none", "take Password out of the client's options, or set requirepass"
	case strings.Contains(text, "DB index"):
		f.What, f.Remedy = "the database of the client's options does not exist", "choose a DB below the server's `databases`; on Redis Cluster only 0"
	case strings.Contains(text, "max number of clients"):
		f.What, f.Remedy = "it takes no more connections", "raise maxclients, or lower PoolSize of the clients"
	case strings.Contains(text, "DENIED Redis is running in protected mode"):
		f.What, f.Remedy = "it is in protected mode", "give it a password, or bind it to the address of the client"
	default:
		return f, false
	}
	return f, true
}

// readInfo reads the fields of INFO.
func readInfo(cmd *redis.StringCmd) (map[string]string, error) {
	text, err := cmd.Result()
	fields := make(map[string]string)
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, err
}

// identity is what the server is.
func (s server) identity(info map[string]string) []Finding {
	var out []Finding
	if v := cmp.Or(info["valkey_version"], info["redis_version"]); v != "" && older(info["redis_version"], versionMin) {
		out = append(out, s.fault("version", "it is Redis "+v, "run Redis "+versionMin+" or newer"))
	}
	switch {
	case info["redis_mode"] == "sentinel":
		out = append(out, s.fault("server", "it is a Sentinel", "make the client with redis.NewFailoverClient, which asks the Sentinels for the master"))
	case (info["cluster_enabled"] == "1" || info["redis_mode"] == "cluster") && !s.sharded:
		if _, plain := s.c.(*redis.Client); plain {
			out = append(out, s.fault("server", "it is a node of a Redis Cluster, and the client is one for a single server",
				"make the client with redis.NewClusterClient"))
		}
	}
	if info["role"] == "slave" && !s.sharded {
		out = append(out, s.fault("server", "it is a replica", "connect to the master, or make the client with redis.NewFailoverClient"))
	}
	return out
}

// older says that a version is known and older than the one that is wanted.
func older(v, want string) bool {
	a, b := numbers(v), numbers(want)
	return len(a) >= 2 && slices.Compare(a, b) < 0
}

func numbers(v string) []int {
	var out []int
	for part := range strings.SplitSeq(v, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// eviction is whether the server may throw away what was counted.
func (s server) eviction(ctx context.Context, info map[string]string, infoErr error) []Finding {
	policy, most := info["maxmemory_policy"], info["maxmemory"]
	if policy == "" {
		got, err := s.c.ConfigGet(ctx, "maxmemory*").Result()
		policy, most = got["maxmemory-policy"], got["maxmemory"]
		if policy == "" && (rediserr.NoPermission(infoErr) || rediserr.NoPermission(err)) {
			return []Finding{s.warning("eviction", "whether it evicts keys can't be read: INFO and CONFIG GET are refused",
				"make sure that maxmemory-policy is noeviction, and allow +info")}
		}
	}
	const remedy = "set maxmemory-policy to noeviction; to run on it all the same set Config.AllowEviction"
	switch {
	case policy == "" || policy == "noeviction" || s.needs.AllowEviction:
		return nil
	case most == "0":
		return []Finding{s.warning("eviction", "maxmemory-policy is "+policy+": as soon as it has a maxmemory, it evicts what limits have counted", remedy)}
	}
	return []Finding{s.fault("eviction", "maxmemory-policy is "+policy+": when it is full, it evicts what limits have counted, and they grant too much", remedy)}
}

// replicas is whether enough of them follow.
func (s server) replicas(ctx context.Context, info map[string]string) []Finding {
	if err := s.c.Do(ctx, "wait", 0, 1).Err(); rediserr.NoPermission(err) {
		return []Finding{s.fault("replicas", "its user may not wait for replicas, as Config.Replicas wants: it lacks +wait", "grant it with ACL SETUSER")}
	}
	if n, err := strconv.Atoi(info["connected_slaves"]); err == nil && n < s.needs.Replicas {
		return []Finding{s.warning("replicas", fmt.Sprintf("it has %d of %d replicas that Config.Replicas wants", n, s.needs.Replicas),
			"add replicas: until then nothing is granted")}
	}
	return nil
}

// clock compares the server's clock with the local one.
func (s server) clock(off, took time.Duration) []Finding {
	n := s.needs
	if n.ClockMax == 0 || off.Abs() <= n.ClockWarn+took/2 {
		return nil
	}
	what := fmt.Sprintf("the local clock is %v ahead of its clock", off)
	const remedy = "keep both clocks right with NTP: asynq's leases and schedules follow the local one"
	if off.Abs() > n.ClockMax+took/2 {
		return []Finding{s.fault("clock", fmt.Sprintf("%s, at most %v are allowed", what, n.ClockMax), remedy)}
	}
	return []Finding{s.warning("clock", what, remedy)}
}

// trials are commands that were sent to see whether the user may call them.
type trials struct {
	rights  []right
	sent    []*redis.Cmd
	scripts map[string]*redis.Cmd
}

// try puts the trials into a pipeline. They change nothing but two keys with a life of ten
// seconds, which the last of them take away.
func (s server) try(ctx context.Context, pipe redis.Pipeliner) trials {
	id := "precheck-" + rand.Text()
	key, channel := s.needs.Prefix+":{"+id+"}:trial", s.needs.Prefix+":{"+id+"}:trial"
	task := "asynq:{" + s.needs.Queue + "}:t:" + id
	var t trials
	for _, r := range rights {
		if r.from <= s.needs.Role {
			t.rights = append(t.rights, r)
			t.sent = append(t.sent, pipe.Do(ctx, r.args(key, task, channel)...))
		}
	}
	t.scripts = map[string]*redis.Cmd{
		"+fcall":         pipe.Do(ctx, "fcall", "headway_precheck", 0),
		"+function|load": pipe.Do(ctx, "function", "load", ""),
		"+evalsha":       pipe.Do(ctx, "evalsha", strings.Repeat("0", 40), 0),
		"+eval":          pipe.Do(ctx, "eval", "return 1", 0),
		"+script|load":   pipe.Do(ctx, "script", "load", "return 1"),
	}
	return t
}

// listenFor bounds the wait for the answer to a SUBSCRIBE.
const listenFor = time.Second

// tryListening subscribes to a channel of Headway and, as a worker does, to that by which asynq
// cancels tasks, on a connection of its own.
func (s server) tryListening(ctx context.Context, t *trials) {
	sub := s.c.Subscribe(ctx)
	defer func() { _ = sub.Close() }()
	for _, listen := range []struct {
		from           Role
		trial, channel string
	}{
		{Limiter, "subscribe CHANNEL", s.needs.Prefix + ":{precheck}:trial"},
		{Worker, "subscribe ASYNQS", "asynq:cancel"},
	} {
		if listen.from > s.needs.Role {
			continue
		}
		err := sub.Subscribe(ctx, listen.channel)
		if err == nil {
			_, err = sub.ReceiveTimeout(ctx, listenFor)
		}
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(err)
		t.rights, t.sent = append(t.rights, right{listen.from, listen.trial}), append(t.sent, cmd)
	}
}

// findings says what the user lacks: all of it in one finding.
func (t trials) findings(s server, info map[string]string) []Finding {
	var lacks, patterns []string
	for _, kind := range []struct{ word, pattern string }{
		{"KEY", "~" + s.needs.Prefix + ":*"}, {"CHANNEL", "&" + s.needs.Prefix + ":*"}, {"TASK", "~asynq:*"}, {"ASYNQS", "&asynq:*"}, {"", ""},
	} {
		refused, all := t.refused(kind.word)
		if all && kind.pattern != "" {
			patterns = append(patterns, kind.pattern)
		} else {
			lacks = append(lacks, refused...)
		}
	}
	var out []Finding
	if len(patterns) > 0 {
		out = append(out, s.fault("rights", "its user may use none of the keys or channels "+strings.Join(patterns, ", "),
			"add "+strings.Join(patterns, " ")+" with ACL SETUSER; docs/production.md lists the rights of each role"))
	}
	if len(lacks) > 0 {
		out = append(out, s.fault("rights", "its user may not call what is needed: "+strings.Join(lacks, ", "),
			"grant these with ACL SETUSER; docs/production.md lists the rights of each role"))
	}
	may := func(names ...string) (missing []string) {
		for _, name := range names {
			if rediserr.NoPermission(t.scripts[name].Err()) {
				missing = append(missing, name)
			}
		}
		return missing
	}
	functions, asynqs, ours := may("+fcall", "+function|load"), may("+evalsha", "+eval"), may("+script|load")
	if s.needs.Role < Enqueuer {
		asynqs, ours = nil, may("+evalsha", "+eval", "+script|load") // it runs no script of asynq
	}
	has := info["redis_version"] == "" || !older(info["redis_version"], versionFn)
	if s.needs.Functions && !has {
		out = append(out, s.fault("functions", "it has no functions, which HoldAfterFailover needs", "run Redis "+versionFn+" or newer, or do without"))
	} else if s.needs.Functions && len(info) == 0 {
		out = append(out, s.fault("functions", "its user may not call INFO, which HoldAfterFailover needs", "grant +info, or do without"))
	} else if s.needs.Functions && len(functions) > 0 {
		out = append(out, s.fault("functions", "its user may not use functions, which HoldAfterFailover needs: it lacks "+strings.Join(functions, ", "),
			"grant these, or do without"))
	}
	switch {
	case len(asynqs) > 0 && has && len(functions) == 0:
		out = append(out, s.fault("scripts", "its user may not run asynq's scripts: it lacks "+strings.Join(asynqs, ", "),
			"grant +evalsha and +eval: functions stand in for Headway's scripts only"))
	case len(asynqs)+len(ours) > 0 && (len(functions) > 0 || !has):
		remedy := "grant +fcall and +function|load, or +evalsha, +eval and +script|load"
		if s.needs.Role >= Enqueuer {
			remedy = "grant +evalsha, +eval and +script|load"
		}
		lacks := slices.Concat(functions, asynqs, ours)
		out = append(out, s.fault("scripts", "its user may run neither functions nor scripts: it lacks "+strings.Join(lacks, ", "), remedy))
	case len(functions) > 0 && has && info["redis_version"] != "":
		out = append(out, s.warning("scripts", "its user may not use functions: it lacks "+strings.Join(functions, ", "),
			"grant these: until then scripts run in their place, which cost Redis more"))
	}
	return out
}

// refused are the rights that the user lacks on one kind of keys, "" for commands without a key.
// all says that it may not use those keys at all: then the pattern is missing, and Redis'
// answers speak of access and not of a command.
func (t trials) refused(kind string) (lacks []string, all bool) {
	tried, shut := 0, 0
	for i, cmd := range t.sent {
		if t.rights[i].kind() != kind {
			continue
		}
		tried++
		if rediserr.NoPermission(cmd.Err()) {
			lacks = append(lacks, t.rights[i].String())
			if strings.Contains(cmd.Err().Error(), "to access") {
				shut++
			}
		}
	}
	return lacks, tried > 0 && shut == tried
}
