package precheck_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/precheck"
	"github.com/headwayq/headway/internal/redistest"
)

var needs = precheck.Needs{Role: precheck.Worker, Prefix: "hw"}

// own is a server that the test may configure.
func own(t *testing.T) (*redistest.Server, *redis.Client) {
	t.Helper()
	s := redistest.Start(t, redistest.Own())
	return s, s.Client(t)
}

// as is a client of a user with these rules.
func as(t *testing.T, s *redistest.Server, admin *redis.Client, rules ...string) *redis.Client {
	t.Helper()
	if err := admin.Do(t.Context(), append([]any{"acl", "setuser", "app", "reset", "on", ">correct-horse"}, toAny(rules)...)...).Err(); err != nil {
		t.Fatal(err)
	}
	o := s.ClientOptions()
	o.Username, o.Password = "app", "correct-horse"
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func toAny(words []string) []any {
	out := make([]any, len(words))
	for i, w := range words {
		out[i] = w
	}
	return out
}

// want checks that each text stands in a finding of its name and level, that nothing else
// was found, and that each finding names the server and no password.
func want(t *testing.T, rdb redis.UniversalClient, n precheck.Needs, addr string, texts map[string]string) {
	t.Helper()
	found, err := precheck.Run(t.Context(), rdb, n)
	if err != nil {
		t.Fatalf("Run = %v, want nil", err)
	}
	for _, f := range found {
		text, expected := texts[f.Name+" "+string(f.Level)]
		if !expected || !strings.Contains(f.String(), text) || f.Where != addr || f.Remedy == "" || strings.Contains(f.String(), "horse") {
			t.Errorf("found %q (%s), want %q at %s", f, f.Level, texts, addr)
		}
	}
	if len(found) != len(texts) {
		t.Errorf("%d findings %v, want %d", len(found), found, len(texts))
	}
}

func TestAGoodServerHasNoFinding(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Own())
	rdb := s.Client(t)
	n := needs
	n.ClockWarn, n.ClockMax = time.Second, 5*time.Second
	want(t, rdb, n, s.Addr(), nil)
	if keys := rdb.Keys(t.Context(), "*precheck*").Val(); len(keys) != 0 {
		t.Errorf("keys = %v, want none left behind", keys)
	}
}

// Who only looks writes nothing, and is not told what its own user lacks.
func TestLookingTriesNothing(t *testing.T) {
	t.Parallel()
	s, admin := own(t)
	n := needs
	n.LookOnly = true
	want(t, as(t, s, admin, "+ping", "+hello", "+info", "+time", "+config|get"), n, s.Addr(), nil)
	if err := admin.ConfigSet(t.Context(), "maxmemory", "100mb").Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	want(t, admin, n, s.Addr(), map[string]string{"eviction fault": "allkeys-lru"})
	for _, denied := range admin.ACLLog(t.Context(), 10).Val() {
		if denied.Object != "client|setinfo" { // go-redis tries it on newer servers, and does without
			t.Errorf("%+v was refused to a user that only looks", denied)
		}
	}
}

func TestAnEmbeddedServerHasNoFinding(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	found, err := precheck.Run(t.Context(), rdb, needs)
	if err != nil || len(found) != 0 {
		t.Errorf("Run = %v, %v, want nothing", found, err)
	}
}

func TestEvictionIsRefused(t *testing.T) {
	t.Parallel()
	s, admin := own(t)
	for _, policy := range []string{"allkeys-lru", "volatile-ttl", "volatile-lru", "allkeys-random"} {
		if err := admin.ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
			t.Fatal(err)
		}
		want(t, admin, needs, s.Addr(), map[string]string{"eviction warning": policy})
		if err := admin.ConfigSet(t.Context(), "maxmemory", "100mb").Err(); err != nil {
			t.Fatal(err)
		}
		want(t, admin, needs, s.Addr(), map[string]string{"eviction fault": "set maxmemory-policy to noeviction"})
		allowed := needs
		allowed.AllowEviction = true
		want(t, admin, allowed, s.Addr(), nil)
		if err := admin.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// All faults are told at once.
func TestMissingRightsAreNamed(t *testing.T) {
	t.Parallel()
	s, admin := own(t)
	want(t, as(t, s, admin, "~hw:*", "~asynq:*", "&*", "+@all", "-zadd", "-publish", "-fcall"), needs, s.Addr(),
		map[string]string{"rights fault": "+zadd on Headway's keys, +publish on Headway's channels, +zadd on asynq's keys", "scripts warning": "+fcall"})
	want(t, as(t, s, admin, "~asynq:*", "&*", "+@all"), needs, s.Addr(), map[string]string{"rights fault": "add ~hw:* with"})
	want(t, as(t, s, admin, "~hw:*", "~asynq:*", "resetchannels", "+@all"), needs, s.Addr(), map[string]string{"rights fault": "add &hw:* &asynq:* with"})
	want(t, as(t, s, admin, "resetchannels", "+@all"), needs, s.Addr(), map[string]string{"rights fault": "add ~hw:* &hw:* ~asynq:* &asynq:* with"})
	want(t, as(t, s, admin, "~hw:*", "~asynq:*", "&*", "+@all", "-fcall", "-eval"), needs, s.Addr(),
		map[string]string{"scripts fault": "neither functions nor scripts: it lacks +fcall, +eval"})
	if err := admin.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	want(t, as(t, s, admin, "~hw:*", "~asynq:*", "&*", "+@all", "-info", "-config", "-hset"), needs, s.Addr(),
		map[string]string{"rights fault": "+hset", "eviction warning": "can't be read"})
	want(t, as(t, s, admin, "~hw:*", "~asynq:*", "&*", "+@all", "-config", "-hset"), needs, s.Addr(),
		map[string]string{"rights fault": "+hset", "eviction warning": "allkeys-lru"})
}

// A pool listens to its own channel and to that by which asynq cancels tasks.
func TestMissingRightsToListenAreNamed(t *testing.T) {
	t.Parallel()
	s, admin := own(t)
	want(t, as(t, s, admin, "~hw:*", "~asynq:*", "&hw:*", "+@all"), needs, s.Addr(), map[string]string{"rights fault": "add &asynq:* with"})
	want(t, as(t, s, admin, "~hw:*", "~asynq:*", "&asynq:*", "&*:trial", "+@all"), needs, s.Addr(), nil)
	lacks := as(t, s, admin, "~hw:*", "~asynq:*", "&*", "+@all", "-subscribe")
	want(t, lacks, needs, s.Addr(), map[string]string{"rights fault": "needed: +subscribe on Headway's channels, +subscribe on asynq's channels"})
	n := needs
	n.Role = precheck.Enqueuer
	want(t, lacks, n, s.Addr(), map[string]string{"rights fault": "needed: +subscribe on Headway's channels"})
	want(t, as(t, s, admin, "~hw:*", "~asynq:*", "&hw:*", "+@all"), n, s.Addr(), nil)
}

// Functions stand in for Headway's scripts, and for none of asynq's.
func TestRolesThatRunAsynqsScriptsNeedEval(t *testing.T) {
	t.Parallel()
	s, admin := own(t)
	for _, role := range []precheck.Role{precheck.Limiter, precheck.Enqueuer, precheck.Worker} {
		for lacks, faulty := range map[string]bool{"-script|load": false, "-eval": role >= precheck.Enqueuer, "-evalsha": role >= precheck.Enqueuer} {
			n, texts := needs, map[string]string{}
			n.Role = role
			if faulty {
				texts["scripts fault"] = "may not run asynq's scripts: it lacks +" + lacks[1:]
			}
			want(t, as(t, s, admin, "~hw:*", "~asynq:*", "&*", "+@all", lacks), n, s.Addr(), texts)
		}
	}
}

// Who needs functions is told so, and does not get by with scripts.
func TestFunctionsAreNeeded(t *testing.T) {
	t.Parallel()
	s, admin := own(t)
	n := needs
	n.Functions = true
	want(t, admin, n, s.Addr(), nil)
	want(t, as(t, s, admin, "~hw:*", "~asynq:*", "&*", "+@all", "-fcall", "-function"), n, s.Addr(), map[string]string{
		"functions fault": "HoldAfterFailover needs: it lacks +fcall, +function|load", "scripts warning": "+fcall",
	})
}

func TestARefusedConnectionIsToldWithItsRemedy(t *testing.T) {
	t.Parallel()
	s, admin := own(t)
	_ = as(t, s, admin, "+@all", "~*", "&*")
	for text, change := range map[string]func(o *redis.Options){
		"WRONGPASS":      func(o *redis.Options) { o.Username, o.Password = "app", "wrong-horse" },
		"does not exist": func(o *redis.Options) { o.DB = 99_999 },
	} {
		o := s.ClientOptions()
		change(o)
		rdb := redis.NewClient(o)
		want(t, rdb, needs, s.Addr(), map[string]string{"connection fault": text})
		_ = rdb.Close()
	}
	if err := admin.ConfigSet(t.Context(), "requirepass", "correct-horse").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := s.Client(t)
	want(t, rdb, needs, s.Addr(), map[string]string{"connection fault": "NOAUTH"})
}

func TestAReplicaIsRefused(t *testing.T) {
	t.Parallel()
	s, rdb := own(t)
	if err := rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	want(t, rdb, needs, s.Addr(), map[string]string{"server fault": "it is a replica"})
}

func TestANodeOfAClusterBehindAPlainClientIsRefused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Arg("cluster-enabled", "yes"))
	want(t, s.Client(t), needs, s.Addr(), map[string]string{"server fault": "redis.NewClusterClient"})
}

// A server that is away has no finding: it may come.
func TestAServerThatIsAwayIsAnError(t *testing.T) {
	t.Parallel()
	rdb, proxy := redistest.Behind(t, redistest.Start(t), func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
	proxy.Refuse(true)
	if found, err := precheck.Run(t.Context(), rdb, needs); err == nil || len(found) != 0 || !strings.Contains(err.Error(), proxy.Addr()) {
		t.Errorf("Run = %v, %v, want an error with the address", found, err)
	}
}

// A client that asks Sentinels calls itself FailoverClient where others have an address.
func TestAMasterBehindSentinelsIsNamed(t *testing.T) {
	t.Parallel()
	s, admin := own(t)
	if err := admin.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	o := s.ClientOptions()
	o.Dialer = func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", s.Addr()) }
	o.Addr = "FailoverClient" // as redis.NewFailoverClient has it
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	_, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	want(t, rdb, needs, "(the master that the Sentinels name, port "+port+")", map[string]string{"eviction warning": "allkeys-lru"})
	failover := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{s.Addr()}})
	t.Cleanup(func() { _ = failover.Close() })
	if got := precheck.Address(failover); got != "(the master that the Sentinels name)" {
		t.Errorf("Address = %q", got)
	}
}

// docs/production.md shows the rights of each role as they are tried.
func TestTheDocsListTheRights(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/production.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]precheck.Role{
		"limiter": precheck.Limiter, "enqueuer": precheck.Enqueuer, "feeder": precheck.Feeder, "worker": precheck.Worker, "viewer": precheck.Viewer, "operator": precheck.Operator,
	} {
		line := "ACL SETUSER " + name + " on >PASSWORD " + strings.Join(precheck.ACL(role, "hw"), " ")
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("docs/production.md lacks this line:\n%s", line)
		}
	}
}

// Each role may call the commands that its scripts call: Redis holds what a script does against the rights of who runs it.
func TestRolesMayCallWhatTheirScriptsCall(t *testing.T) {
	t.Parallel()
	for role, scripts := range map[precheck.Role][]string{
		precheck.Limiter:  {"lib/*", "limit/*"},
		precheck.Enqueuer: {"lib/*", "limit/*", "queue/enqueue", "queue/insert_task", "queue/deferred", "batch/batchstart", "batch/batchpeek"},
		precheck.Feeder:   {"lib/*", "limit/*", "batch/*", "queue/tick", "queue/enqueue", "queue/insert_task", "queue/deferred", "queue/get_task", "queue/retime"},
		precheck.Worker:   {"*/*"},
	} {
		may, seen := precheck.ACL(role, "hw"), 0
		for _, pattern := range scripts {
			files, err := filepath.Glob("../luascripts/lua/" + pattern + ".lua")
			if err != nil || len(files) == 0 {
				t.Fatalf("%s: %d files, %v", pattern, len(files), err)
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, call := range regexp.MustCompile(`redis\.p?call\("([A-Z]+)"`).FindAllSubmatch(text, -1) {
					seen++
					if name := strings.ToLower(string(call[1])); !slices.Contains(may, "+"+name) {
						t.Errorf("%s calls %s, and role %d has no right to", file, call[1], role)
					}
				}
			}
		}
		if seen < 5 {
			t.Errorf("only %d calls of commands are seen in the scripts of role %d", seen, role)
		}
	}
}
