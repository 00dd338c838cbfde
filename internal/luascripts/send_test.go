package luascripts_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
)

// granted checks that a server grants a permit of a key, asked by a client.
func grantedBy(t *testing.T, c redis.Scripter, key string) {
	t.Helper()
	n := limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 3, Window: time.Minute}
	r, err := limitscripts.Acquire(t.Context(), c, limitscripts.AcquireArgs{Rules: one(limitscripts.NewLimitKeys("hw", "sms", key), n), Token: uint64(time.Now().UnixNano()), MaxWait: -1})
	if err != nil || r.Status != limitscripts.Granted {
		t.Errorf("Acquire = %+v, %v, want a grant", r, err)
	}
}

// calledBy are the calls that a server counted of the commands that run our code.
func calledBy(t *testing.T, c *redis.Client) map[string]bool {
	t.Helper()
	called := map[string]bool{}
	info := c.Info(t.Context(), "commandstats").Val()
	for _, name := range []string{"fcall", "evalsha", "eval"} {
		called[name] = strings.Contains(info, "cmdstat_"+name+":")
	}
	return called
}

// A server that has lost the library, or the scripts, is given them again, whichever way it is asked.
func TestServerThatLostItsScripts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.Own()).Client(t)
	for name, c := range map[string]redis.Scripter{"functions": rdb, "scripts": behind{rdb}} {
		for range 2 {
			grantedBy(t, c, name)
			if err := rdb.FunctionFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		out := limitscripts.Refresh(t.Context(), c.(redis.UniversalClient), []limitscripts.RefreshArgs{{Rules: sample().Rules, Policy: "p", Job: "a"}, {Rules: sample().Rules[:1], Job: "b"}})
		for i, r := range out {
			if r.Err != nil || r.Status != limitscripts.Refused {
				t.Errorf("%s: booking %d of a pipeline: %+v, want one that is not known", name, i, r)
			}
		}
	}
}

// Each way answers, and the server is asked no other way than it can.
func TestServersWithoutFunctions(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	embedded := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	defer embedded.Close()
	grantedBy(t, embedded, "a")
	grantedBy(t, embedded, "a")

	for name, rights := range map[string][]any{
		"no right to call functions": {"-fcall"},
		"no right to load them":      {"-function"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := redistest.Start(t, redistest.Own()).Client(t)
			rule := append([]any{"acl", "setuser", "headway", "on", ">secret", "~hw:*", "&*", "+@all"}, rights...)
			if err := admin.Do(t.Context(), rule...).Err(); err != nil {
				t.Fatal(err)
			}
			opts := *admin.Options()
			opts.Username, opts.Password = "headway", "secret"
			rdb := redis.NewClient(&opts)
			defer rdb.Close()
			grantedBy(t, rdb, "a")
			if err := admin.ConfigResetStat(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			grantedBy(t, rdb, "b")
			if called := calledBy(t, admin); !called["evalsha"] || called["fcall"] {
				t.Errorf("the second call was sent by %v, want EVALSHA alone", called)
			}
		})
	}
}

// refusing refuses the first calls of functions, as a server whose rights are mended later.
type refusing struct {
	redis.Hook
	left atomic.Int64
}

func (*refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.EqualFold(cmd.Name(), "fcall") && r.left.Add(-1) >= 0 {
			err := errors.New("NOPERM User headway has no permissions to run the 'fcall' command")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (*refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A user who may not call functions now may do so later: a call that needs them tries each time, and the others try
// again after some seconds.
func TestRightsThatAreMended(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.Own()).Client(t)
	r := &refusing{}
	r.left.Store(2)
	rdb.AddHook(r)
	grantedBy(t, rdb, "a")
	rules := one(limitscripts.NewLimitKeys("hw", "sms", "b"), limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 3, Window: time.Minute})
	args := limitscripts.AcquireArgs{Rules: rules, Token: 1, MaxWait: -1, HoldAfterFailover: true}
	if _, err := limitscripts.Acquire(t.Context(), rdb, args); err == nil {
		t.Error("Acquire that needs functions is answered, want an error while the user has no right")
	}
	if _, err := limitscripts.Acquire(t.Context(), rdb, args); err != nil {
		t.Errorf("Acquire = %v, want an answer as soon as the user has the right", err)
	}
	if !luascripts.GoesByScript(rdb) {
		t.Error("other calls go by function at once, want them to go on by script for some seconds")
	} else if luascripts.PassSeconds(rdb); luascripts.GoesByScript(rdb) {
		t.Error("other calls go by script after that, want them to try functions again")
	}
}

// Redis 7 is called by function from the first call on.
func TestServerWithFunctions(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.Own()).Client(t)
	grantedBy(t, rdb, "a")
	if called := calledBy(t, rdb); !called["fcall"] || called["evalsha"] || called["eval"] {
		t.Errorf("the call was sent by %v, want FCALL alone", called)
	}
	name, text := luascripts.Library()
	list, err := rdb.FunctionList(t.Context(), redis.FunctionListQuery{LibraryNamePattern: name, WithCode: true}).Result()
	if err != nil || len(list) != 1 || list[0].Code != text || len(list[0].Functions) != len(scriptNames()) {
		t.Errorf("the server has %d libraries, %v, want %s with %d functions", len(list), err, name, len(scriptNames()))
	}
	// Another release is another library: both stay.
	other := strings.ReplaceAll(text, name, "headway_other")
	if err := rdb.FunctionLoad(t.Context(), other).Err(); err != nil {
		t.Error(err)
	}
	grantedBy(t, rdb, "b")
}

// A server that is full refuses functions before they begin. A refusal by a limit, and what
// frees memory, need none.
func TestFullServerIsAskedByScript(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.Own()).Client(t)
	n, k := limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Minute}, limitscripts.NewLimitKeys("hw", "sms", "a")
	call := limitscripts.AcquireArgs{Rules: one(k, n), Token: 1, MaxWait: -1}
	if _, err := limitscripts.Acquire(t.Context(), rdb, call); err != nil {
		t.Fatal(err)
	}
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	call.Token = 2
	if r, err := limitscripts.Acquire(t.Context(), rdb, call); err != nil || r.Status != limitscripts.Refused {
		t.Errorf("Acquire = %+v, %v, want a refusal", r, err)
	}
	if r, err := limitscripts.Cancel(t.Context(), rdb, limitscripts.CancelArgs{Rules: call.Rules, Token: 1}); err == nil && r.Status != limitscripts.Granted {
		t.Errorf("Cancel = %+v, %v", r, err)
	}
	call.Rules[0].LimitKeys = limitscripts.NewLimitKeys("hw", "sms", "b")
	if _, err := limitscripts.Acquire(t.Context(), rdb, call); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Acquire of a fresh key: %v, want Redis' word that it is full", err)
	}
}

// On Cluster each master has the library, also one that lost it.
func TestClusterMastersHaveTheLibrary(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	for round := range 2 {
		calls := make([]*limitscripts.Call, 12)
		for i := range calls {
			n := limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Minute}
			calls[i] = &limitscripts.Call{AcquireArgs: limitscripts.AcquireArgs{Rules: one(limitscripts.NewLimitKeys("hw", "sms", fmt.Sprint(round, "-", i)), n), Token: uint64(i + 1), MaxWait: -1}}
		}
		limitscripts.AcquireHashSlots(t.Context(), rdb, calls)
		for i, c := range calls {
			if c.Err != nil || c.Status != limitscripts.Granted {
				t.Errorf("round %d, call %d: %+v, %v, want a grant", round, i, c.AcquireReply, c.Err)
			}
		}
		err := rdb.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
			list, err := c.FunctionList(ctx, redis.FunctionListQuery{}).Result()
			if err == nil && len(list) != 1 {
				err = fmt.Errorf("%v has %d libraries", c, len(list))
			}
			if err == nil {
				err = c.FunctionFlush(ctx).Err()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// An error of Redis leads to a file and a line in it.
func TestErrorsNameFileAndLine(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	k := limitscripts.NewLimitKeys("hw", "sms", "a")
	if err := rdb.LPush(t.Context(), k.Ledger(), "not a ledger").Err(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(luascripts.ModuleText("limit/ledger"), "\n")
	reads := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `call("GETRANGE", key, "0", limit.last_byte)`) })
	want := fmt.Sprintf("limit/peek.lua at limit/ledger.lua:%d: WRONGTYPE", reads+1)
	for name, c := range map[string]redis.Scripter{"functions": rdb, "scripts": behind{rdb}} {
		_, err := limitscripts.Peek(t.Context(), c, k, limitscripts.PeekArgs{Numbers: limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Second}, Cost: 1, Most: 1})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: Peek: %v, want an error that begins with %s", name, err, want)
		}
	}
}
