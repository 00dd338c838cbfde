package luascripts_test

import (
	"context"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/history"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/schedulescripts"
)

// sent is what a Go function gave a script.
type sent struct {
	name       string
	keys, args int
}

// recorder is a Redis that only notes what it is asked.
type recorder struct {
	redis.Scripter
	calls []sent
}

func (r *recorder) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	r.calls = append(r.calls, sent{sha, len(keys), len(args)})
	return redis.NewCmdResult(nil, redis.Nil)
}

// shape is what a header says: how many keys and arguments there are, and
// whether the last line stands for any number of them.
type shape struct {
	keys, args         int
	moreKeys, moreArgs bool
	returns            bool
	first              string
}

var (
	headerLine = regexp.MustCompile(`^-- (KEYS|ARGV)\[(\d+)(\+?)\]  ?\S`)
	bodyUse    = regexp.MustCompile(`\b(keys|args)\[(\d+)\]`)
	indexedUse = regexp.MustCompile(`\b(keys|args)\[(\d+) ?[*+] ?`)
)

// header reads the comment at the top of a script.
func header(t *testing.T, name, text string) (h shape, body string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	h.first = lines[0]
	last := map[string]int{}
	for i, line := range lines {
		if !strings.HasPrefix(line, "--") {
			return h, strings.Join(lines[i:], "\n")
		}
		if strings.HasPrefix(line, "-- returns  ") {
			h.returns = true
		}
		m := headerLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n, _ := strconv.Atoi(m[2])
		if n != last[m[1]]+1 {
			t.Errorf("%s: %s[%d] after %d in the header", name, m[1], n, last[m[1]])
		}
		last[m[1]] = n
		more := m[3] == "+"
		if m[1] == "KEYS" {
			h.keys, h.moreKeys = n, more
		} else {
			h.args, h.moreArgs = n, more
		}
	}
	t.Fatalf("%s: no body", name)
	return h, ""
}

// scriptNames are the files that Go calls.
func scriptNames() []string {
	return slices.DeleteFunc(luascripts.ModuleNames(), func(name string) bool { return !luascripts.IsScript(name) })
}

// calls asks every Go function for one script call, some twice with other
// numbers of things.
func calls(r *recorder) {
	ctx, k, q := context.Background(), limitscripts.NewLimitKeys("hw", "rule", "id"), queuescripts.NewQueueKeys("hw", "default")
	n := limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Second}
	_, _ = limitscripts.Acquire(ctx, r, limitscripts.AcquireArgs{Rules: one(k, n)})
	_, _ = limitscripts.Acquire(ctx, r, limitscripts.AcquireArgs{Rules: one(k, n), Known: make([]limitscripts.KnownLimit, 1)})
	_, _ = limitscripts.Cancel(ctx, r, limitscripts.CancelArgs{Rules: one(k, n), Back: true})
	several := append(one(k, n), limitscripts.RuleCall{LimitKeys: limitscripts.NewLimitKeys("hw", "wide", "all"), Numbers: n, Cost: 1})
	_, _ = limitscripts.Acquire(ctx, r, limitscripts.AcquireArgs{Rules: several, Policy: "p", Gate: limitscripts.Gate{Until: time.Now()}})
	_, _ = limitscripts.Cancel(ctx, r, limitscripts.CancelArgs{Rules: several, Policy: "p"})
	_, _ = limitscripts.Close(ctx, r, limitscripts.CloseArgs{Rules: several, Rule: 2, Policy: "p", For: time.Second})
	_, _ = limitscripts.Adjust(ctx, r, limitscripts.AdjustArgs{Rules: several, Policy: "p"})
	_, _ = limitscripts.Release(ctx, r, several[0], 1)
	_, _ = limitscripts.Peek(ctx, r, k, limitscripts.PeekArgs{Numbers: n, Cost: 1, Most: 10})
	_, _ = limitscripts.Lookup(ctx, r, limitscripts.RefreshArgs{Rules: one(k, n), Job: "a"}, false)
	_, _ = limitscripts.Lookup(ctx, r, limitscripts.RefreshArgs{Rules: several, Policy: "p", Job: "a"}, true)
	_, _ = limitscripts.List(ctx, r, k, limitscripts.ListArgs{Numbers: n, Most: 10})
	_, _ = queuescripts.GetTask(ctx, r, q, "a")
	_, _ = limitscripts.Reset(ctx, r, k, n)
	_, _ = queuescripts.Enqueue(ctx, r, q, 1, make([]queuescripts.EnqueueTask, 1))
	_, _ = queuescripts.Enqueue(ctx, r, q, 1, make([]queuescripts.EnqueueTask, 3))
	_, _ = schedulescripts.Tick(ctx, r, q, "nightly", schedulescripts.TickArgs{At: time.Now(), ID: "a"})
	_, _ = queuescripts.Fetch(ctx, r, q, queuescripts.FetchArgs{Call: 1, Most: 1})
	_, _ = queuescripts.Requeue(ctx, r, q, queuescripts.RequeueArgs{Call: 1, IDs: []string{"a"}})
	_, _ = queuescripts.Requeue(ctx, r, q, queuescripts.RequeueArgs{Call: 1, IDs: []string{"a", "b", "c"}})
	queuescripts.Defer(ctx, r, q, queuescripts.DeferArgs{})
	_, _ = queuescripts.Due(ctx, r, q, queuescripts.DueArgs{Lead: time.Second, Room: 10})
	_, _ = queuescripts.Wake(ctx, r, q, []queuescripts.DueTask{{ID: "a"}}, time.Now(), false)
	_, _ = queuescripts.Wake(ctx, r, q, []queuescripts.DueTask{{ID: "a"}, {ID: "b"}, {ID: "c"}}, time.Now(), false)
	_, _ = queuescripts.RetimeEarlier(ctx, r, q, make([]queuescripts.Retiming, 1))
	_, _ = queuescripts.Retime(ctx, r, q, make([]queuescripts.Retiming, 3))
	_ = queuescripts.Forget(ctx, r, q, "a", "")
	_, _ = queuescripts.RunNow(ctx, r, q, "a", time.Now())
	_, _ = queuescripts.Rules(ctx, r, "hw", time.Second, nil)
	_, _ = queuescripts.Rules(ctx, r, "hw", time.Second, []string{"a", "b"})
	_, _, _ = limitscripts.SetLimit(ctx, r, "hw", "sms", limitscripts.SetLimitArgs{})
	_, _, _ = limitscripts.CloseRule(ctx, r, "hw", "sms", time.Second)
	_, _ = queuescripts.ScanDeferred(ctx, r, q, time.Now(), 0, 10)
	_, _ = queuescripts.Count(ctx, r, q, time.Second, time.Minute)
	_, _, _ = queuescripts.ReplanClaim(ctx, r, q, "me", time.Second, make([]queuescripts.RuleVersion, 1))
	_, _, _ = queuescripts.ReplanClaim(ctx, r, q, "me", time.Second, make([]queuescripts.RuleVersion, 3))
	_, _ = queuescripts.ReplanDone(ctx, r, q, "me", make([]queuescripts.RuleVersion, 2))
	_, _ = batchscripts.Start(ctx, r, q, batchscripts.StartArgs{})
	_, _ = batchscripts.Claim(ctx, r, q, batchscripts.ClaimArgs{ID: "b"})
	_, _ = batchscripts.Feed(ctx, r, q, batchscripts.FeedArgs{Batch: "b", Tasks: make([]batchscripts.FeedTask, 1)})
	_, _ = batchscripts.Feed(ctx, r, q, batchscripts.FeedArgs{Batch: "b", Tasks: make([]batchscripts.FeedTask, 3)})
	_, _, _ = batchscripts.Count(ctx, r, q, "b", batchscripts.OutcomeDone, "a")
	_, _, _ = batchscripts.Count(ctx, r, q, "b", batchscripts.OutcomeDone, "a", "b", "c")
	_, _, _, _ = batchscripts.Sweep(ctx, r, q, "b", []string{"a"})
	_, _, _, _ = batchscripts.Sweep(ctx, r, q, "b", []string{"a", "b", "c"})
	_, _ = batchscripts.UnfinishedElements(ctx, r, q, "b", 0, 10)
	_, _ = batchscripts.Set(ctx, r, q, batchscripts.SetArgs{ID: "b"})
	_, _ = batchscripts.Drop(ctx, r, q, "b", []string{"a"})
	_, _ = batchscripts.Drop(ctx, r, q, "b", []string{"a", "b", "c"})
	_ = history.Record(ctx, r, "hw", "sms", history.RecordArgs{})
	_ = history.Record(ctx, r, "hw", "sms", history.RecordArgs{Busy: make([]history.Key, 2), Waiting: make([]history.Key, 3)})
	// These take a client for its pipeline.
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer c.Close()
	c.AddHook(hookRecorder{r})
	limitscripts.Renew(ctx, c, []limitscripts.RenewArgs{{RuleCall: several[0], Token: 1}})
	limitscripts.Refresh(ctx, c, []limitscripts.RefreshArgs{{Rules: one(k, n), Job: "a"}})
	limitscripts.Refresh(ctx, c, []limitscripts.RefreshArgs{{Rules: several, Policy: "p", Job: "a"}, {Rules: several, Policy: "p", Job: "b"}})
	_, _ = batchscripts.Read(ctx, c, q, []string{"b"})
}

// hookRecorder notes the functions that a client of go-redis is asked for.
type hookRecorder struct{ *recorder }

func (hookRecorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hookRecorder) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		keys, _ := strconv.Atoi(fmt.Sprint(cmd.Args()[2]))
		h.calls = append(h.calls, sent{fmt.Sprint(cmd.Args()[1]), keys, len(cmd.Args()) - luascripts.FirstKey - keys})
		return nil
	}
}

func (h hookRecorder) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			_ = h.ProcessHook(nil)(ctx, cmd)
		}
		return nil
	}
}

// Header, body and Go function of each script agree.
func TestHeaderBodyAndFunctionAgree(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	calls(r)
	byName := map[string][]sent{}
	for _, c := range r.calls {
		byName[c.name] = append(byName[c.name], c)
	}
	for _, script := range scriptNames() {
		s := luascripts.NewScript(script)
		name := s.File()
		h, body := header(t, name, luascripts.ModuleText(script))
		if !strings.HasPrefix(h.first, "-- "+path.Base(name)+": ") || !h.returns {
			t.Errorf("%s: the header opens with %q, returns %v; want its name, and what it returns", name, h.first, h.returns)
		}
		for call, module := range map[string]string{"rules_at": "limit/rulecall", "read_stated": "limit/tokens"} {
			if strings.Contains(body, call+"(") { // the loop over a call's rules
				_, read, _ := strings.Cut(luascripts.ModuleText(module), "local function "+call+"(")
				body += read
			}
		}
		used := map[string]bool{}
		for _, m := range bodyUse.FindAllStringSubmatch(body, -1) {
			used[strings.NewReplacer("keys", "KEYS", "args", "ARGV").Replace(m[1])+m[2]] = true
		}
		for kind, fixed := range map[string]int{"KEYS": h.keys, "ARGV": h.args} {
			if kind == "KEYS" && h.moreKeys || kind == "ARGV" && h.moreArgs {
				fixed-- // the last line stands for a group that a loop reads
				if !indexedUse.MatchString(body) {
					t.Errorf("%s: no loop over its %s[%d+]", name, kind, fixed+1)
				}
			}
			for i := 1; i <= fixed; i++ {
				if !used[kind+strconv.Itoa(i)] {
					t.Errorf("%s: %s[%d] is in the header and not in the body", name, kind, i)
				}
				delete(used, kind+strconv.Itoa(i))
			}
			for u := range used {
				n, _ := strconv.Atoi(u[4:])
				more := kind == "KEYS" && h.moreKeys || kind == "ARGV" && h.moreArgs
				if strings.HasPrefix(u, kind) && (n > fixed+1 || !more && n > fixed) {
					t.Errorf("%s: %s[%d] is in the body and not in the header", name, kind, n)
				}
			}
		}
		got := slices.Concat(byName[s.Hash()], byName[s.Function()])
		if len(got) == 0 {
			t.Errorf("%s: no Go function runs it", name)
		}
		for i, c := range got {
			keysOK := c.keys == h.keys || h.moreKeys && c.keys >= h.keys
			argsOK := c.args == h.args || h.moreArgs && c.args >= h.args-1
			if !keysOK || !argsOK {
				t.Errorf("%s: call %d has %d keys and %d arguments, its header %d and %d", name, i, c.keys, c.args, h.keys, h.args)
			}
		}
		delete(byName, s.Hash())
		delete(byName, s.Function())
	}
	for name, c := range byName {
		t.Errorf("script %s is run, %+v, and is no file", name, c)
	}
}

// Each file is a script that Go calls or is needed by one, and doc.go lists it.
func TestEveryFileIsUsedAndListed(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	calls(r)
	var called []string
	for _, name := range luascripts.ModuleNames() {
		s := luascripts.NewScript(name)
		if slices.ContainsFunc(r.calls, func(c sent) bool { return c.name == s.Hash() || c.name == s.Function() }) {
			called = append(called, name)
		}
	}
	used := luascripts.WithNeeds(called...)
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z]+/[a-z_]+)  +\S`).FindAllStringSubmatch(string(doc), -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(listed)
	if want := luascripts.ModuleNames(); !slices.Equal(listed, want) {
		t.Errorf("doc.go lists %v, want %v", listed, want)
	}
	for _, name := range luascripts.ModuleNames() {
		if !slices.Contains(used, name) {
			t.Errorf("%s.lua is needed by no script", name)
		}
		if luascripts.IsScript(name) != slices.Contains(called, name) {
			t.Errorf("%s.lua is a script: %v, and Go calls it: %v", name, luascripts.IsScript(name), slices.Contains(called, name))
		}
		if first, _, _ := strings.Cut(luascripts.ModuleText(name), "\n"); !strings.HasPrefix(first, "-- "+path.Base(name)+".lua: ") {
			t.Errorf("%s.lua opens with %q, want its name", name, first)
		}
	}
}
