package asynqwire

// The golden test runs the real asynq and pins everything about it that the
// adapter relies on: scripts, keys, hash fields, arguments, messages, log lines.
// When asynq is upgraded it says what changed. Then read the change in asynq,
// decide whether the adapter's reasoning still holds, and pin anew.

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/headwayq/headway/internal/redistest"
)

// goldenScripts names all scripts of asynq and what each must be recognised as.
var goldenScripts = map[string]Op{
	"dequeueCmd":              OpDequeue,
	"doneCmd":                 OpDone,
	"doneUniqueCmd":           OpDone,
	"markAsCompleteCmd":       OpComplete,
	"markAsCompleteUniqueCmd": OpComplete,
	"requeueCmd":              OpRequeue,
	"retryCmd":                OpRetry,
	"archiveCmd":              OpArchive,

	"enqueueCmd": OpOther, "enqueueUniqueCmd": OpOther, "scheduleCmd": OpOther, "scheduleUniqueCmd": OpOther,
	"addToGroupCmd": OpOther, "addToGroupUniqueCmd": OpOther, "forwardCmd": OpOther, "aggregationCheckCmd": OpOther,
	"readAggregationSetCmd": OpOther, "deleteAggregationSetCmd": OpOther, "reclaimStateAggregationSetsCmd": OpOther,
	"deleteExpiredCompletedTasksCmd": OpOther, "listLeaseExpiredCmd": OpOther, "writeServerStateCmd": OpOther,
	"clearServerStateCmd": OpOther, "writeSchedulerEntriesCmd": OpOther, "recordSchedulerEnqueueEventCmd": OpOther,
	"currentStatsCmd": OpOther, "memoryUsageCmd": OpOther, "historicalStatsCmd": OpOther, "getTaskInfoCmd": OpOther,
	"groupStatsCmd": OpOther, "listMessagesCmd": OpOther, "listZSetEntriesCmd": OpOther, "runAllAggregatingCmd": OpOther,
	"runTaskCmd": OpOther, "runAllCmd": OpOther, "archiveAllAggregatingCmd": OpOther, "archiveAllPendingCmd": OpOther,
	"archiveTaskCmd": OpOther, "archiveAllCmd": OpOther, "updateTaskPayloadCmd": OpOther, "deleteTaskCmd": OpOther,
	"deleteAllCmd": OpOther, "deleteAllAggregatingCmd": OpOther, "deleteAllPendingCmd": OpOther,
	"removeQueueForceCmd": OpOther, "removeQueueCmd": OpOther, "listServerKeysCmd": OpOther, "listWorkersCmd": OpOther,
	"listSchedulerKeysCmd": OpOther,
}

// asynqDir returns the folder of asynq's source, or skips: -trimpath hides it.
func asynqDir(tb testing.TB) string {
	tb.Helper()
	file, _ := runtime.FuncForPC(reflect.ValueOf(asynq.NewTask).Pointer()).FileLine(0)
	if !filepath.IsAbs(file) {
		tb.Skipf("asynq's source is not known from %q", file)
	}
	return filepath.Dir(file)
}

// inAsynqSource calls visit for each node of asynq's own source, tests excepted.
func inAsynqSource(tb testing.TB, visit func(fset *token.FileSet, n ast.Node)) {
	tb.Helper()
	dir := asynqDir(tb)
	for _, pattern := range []string{"*.go", "internal/*/*.go"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(files) == 0 {
			tb.Fatalf("no source of asynq in %s (%v)", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, file, nil, 0)
			if err != nil {
				tb.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool { visit(fset, n); return true })
		}
	}
}

// asynqScriptTexts reads the texts of asynq's scripts out of its source, by variable.
func asynqScriptTexts(tb testing.TB) map[string]string {
	tb.Helper()
	texts := map[string]string{}
	inAsynqSource(tb, func(fset *token.FileSet, n ast.Node) {
		call, ok := n.(*ast.ValueSpec)
		if !ok || len(call.Values) != 1 {
			return
		}
		expr, ok := call.Values[0].(*ast.CallExpr)
		if !ok || len(expr.Args) != 1 {
			return
		}
		if fn, ok := expr.Fun.(*ast.SelectorExpr); !ok || !strings.HasPrefix(fn.Sel.Name, "NewScript") {
			return
		}
		lit, ok := expr.Args[0].(*ast.BasicLit)
		if !ok {
			tb.Errorf("%v: the text of %s is no literal any more", fset.Position(n.Pos()), call.Names[0])
			return
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil {
			tb.Fatal(err)
		}
		texts[call.Names[0].Name] = text
	})
	return texts
}

func TestAsynqGoldenVersion(t *testing.T) {
	t.Parallel()
	if dir := asynqDir(t); !strings.HasSuffix(dir, "asynq@"+Version) && !strings.HasSuffix(dir, "/vendor/github.com/hibiken/asynq") {
		t.Errorf("asynq is built from %s, pinned is %s. The other TestAsynqGolden tests say what changed; "+
			"if they pass, change Version", dir, Version)
	}
}

func TestAsynqGoldenScripts(t *testing.T) {
	t.Parallel()
	texts := asynqScriptTexts(t)
	found := map[string]bool{}
	for name, text := range texts {
		op, known := goldenScripts[name]
		if !known {
			t.Errorf("asynq has a new script %s: does it dequeue or finish a task? Its text:\n%s", name, text)
			continue
		}
		sha := SHA(text)
		shape := scriptShapes[sha]
		switch {
		case op == OpOther && shape != nil:
			t.Errorf("asynq's script %s is pinned as %v, want not pinned", name, shape.op)
		case op != OpOther && shape == nil:
			t.Errorf("asynq's script %s (%v) changed, its SHA-1 is now %s. Compare its KEYS, ARGV and text with %s, then pin anew. Its text:\n%s",
				name, op, sha, Version, text)
		case op != OpOther && shape.op != op:
			t.Errorf("asynq's script %s is pinned as %v, want %v", name, shape.op, op)
		}
		if shape != nil {
			found[sha] = true
		}
	}
	if sha := SHA(texts["listLeaseExpiredCmd"]); !ListsExpired(sha) {
		t.Errorf("asynq's listLeaseExpiredCmd changed, its SHA-1 is now %s, pinned is %s", sha, listExpired)
	}
	withInstants := map[string]bool{}
	for _, name := range []string{"forwardCmd", "deleteExpiredCompletedTasksCmd", "markAsCompleteCmd", "markAsCompleteUniqueCmd",
		"retryCmd", "archiveCmd"} {
		sha := SHA(texts[name])
		if _, ok := instants[sha]; !ok {
			t.Errorf("asynq's script %s changed, its SHA-1 is now %s. Compare its ARGV with %s: which are instants?", name, sha, Version)
		}
		withInstants[sha] = true
	}
	for sha := range instants {
		if !withInstants[sha] {
			t.Errorf("no script of asynq has the SHA-1 %s any more, pinned with its instants", sha)
		}
	}
	for name := range goldenScripts {
		if _, ok := texts[name]; !ok {
			t.Errorf("asynq's script %s is gone", name)
		}
	}
	for sha, shape := range scriptShapes {
		if !found[sha] {
			t.Errorf("no script of asynq has the SHA-1 %s any more, pinned as %v", sha, shape.op)
		}
	}
}

// What asynqLogger promises about Fatal, and what withoutUserData cuts, was read
// out of asynq's log lines.
func TestAsynqGoldenLogLines(t *testing.T) {
	t.Parallel()
	perFile, formats, dumps := map[string]int{}, []string{}, []string{}
	inAsynqSource(t, func(fset *token.FileSet, n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		fn, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return
		}
		on, ok := fn.X.(*ast.SelectorExpr)
		if id, isVar := fn.X.(*ast.Ident); (!ok || on.Sel.Name != "logger") && (!isVar || id.Name != "logger") {
			return
		}
		if fn.Sel.Name == "SetLevel" {
			return
		}
		if strings.HasPrefix(fn.Sel.Name, "Fatal") {
			t.Errorf("%v: asynq calls Fatal now: asynqLogger does not end the process", fset.Position(n.Pos()))
		}
		perFile[filepath.Base(fset.Position(n.Pos()).Filename)]++
		var line strings.Builder
		if err := printer.Fprint(&line, fset, call); err != nil {
			t.Fatal(err)
		}
		formats = append(formats, line.String())
		if strings.Contains(line.String(), "%+v") || strings.Contains(line.String(), "%#v") {
			dumps = append(dumps, line.String())
		}
	})
	if len(dumps) != 1 || !strings.Contains(dumps[0], asynqScheduled) {
		t.Errorf("asynq dumps other values into its log than its scheduler's task; do they hold a payload?\n%s", strings.Join(dumps, "\n"))
	}
	want := map[string]int{
		"aggregator.go": 10, "forwarder.go": 3, "healthcheck.go": 2, "heartbeat.go": 6, "janitor.go": 3,
		"periodic_task_manager.go": 8, "processor.go": 17, "recoverer.go": 6, "scheduler.go": 11, "server.go": 6,
		"signals_unix.go": 3, "signals_windows.go": 2, "subscriber.go": 4, "syncer.go": 3,
	}
	if diff := cmp.Diff(want, perFile); diff != "" {
		t.Errorf("asynq's log lines changed; do new ones hold user data? (-want +got)\n%s", diff)
	}
	slices.Sort(formats)
	if got, want := SHA(strings.Join(formats, "\n")), "e945ed81670afe0272bb2679fa9461c51ddd08e6"; got != want {
		t.Errorf("asynq's log lines changed, their SHA-1 is now %s; does one hold user data?\n%s", got, strings.Join(formats, "\n"))
	}
}

func TestAsynqGoldenMessage(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"type": "1 string", "payload": "2 bytes", "id": "3 string", "queue": "4 string", "retry": "5 int32",
		"retried": "6 int32", "error_msg": "7 string", "timeout": "8 int64", "deadline": "9 int64",
		"unique_key": "10 string", "last_failed_at": "11 int64", "retention": "12 int64",
		"completed_at": "13 int64", "group_key": "14 string", "headers": "15 message",
	}
	got := map[string]string{}
	fields := asynqTaskMessage(t).Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		got[string(f.Name())] = fmt.Sprintf("%d %v", f.Number(), f.Kind())
		if f.IsList() || f.ContainingOneof() != nil || f.Syntax() != protoreflect.Proto3 {
			t.Errorf("asynq's field %s is repeated, optional or not proto3 now", f.Name())
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("asynq's TaskMessage changed (-want +got):\n%s", diff)
	}
}

// goldenCall is one script call as it went over the wire.
type goldenCall struct {
	sha   string
	keys  []string
	args  []any
	op    Op
	call  Call
	reply any
}

// goldenClient records what asynq asks of Redis. Ways to run a script that the
// adapter does not override fail the test.
type goldenClient struct {
	redis.UniversalClient
	tb testing.TB

	mu      sync.Mutex
	calls   []goldenCall
	changed chan struct{} // closed at the next call
}

func newGoldenClient(tb testing.TB) *goldenClient {
	tb.Helper()
	return &goldenClient{UniversalClient: redistest.Start(tb).Client(tb), tb: tb, changed: make(chan struct{})}
}

func (c *goldenClient) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	cmd := c.UniversalClient.EvalSha(ctx, sha, keys, args...)
	if !redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") { // else go-redis sends the text next
		c.record(sha, keys, args, cmd)
	}
	return cmd
}

func (c *goldenClient) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	cmd := c.UniversalClient.Eval(ctx, text, keys, args...)
	c.record(SHA(text), keys, args, cmd)
	return cmd
}

func (c *goldenClient) record(sha string, keys []string, args []any, cmd *redis.Cmd) {
	op, call := Recognise(sha, keys, args)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, goldenCall{sha, keys, args, op, call, cmd.Val()})
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *goldenClient) unseen(name string) {
	c.tb.Errorf("asynq calls %s now: the adapter does not see scripts that go that way", name)
}

func (c *goldenClient) EvalRO(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	c.unseen("EvalRO")
	return c.UniversalClient.EvalRO(ctx, text, keys, args...)
}

func (c *goldenClient) EvalShaRO(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	c.unseen("EvalShaRO")
	return c.UniversalClient.EvalShaRO(ctx, sha, keys, args...)
}

func (c *goldenClient) ScriptLoad(ctx context.Context, text string) *redis.StringCmd {
	c.unseen("ScriptLoad")
	return c.UniversalClient.ScriptLoad(ctx, text)
}

func (c *goldenClient) FCall(ctx context.Context, fn string, keys []string, args ...any) *redis.Cmd {
	c.unseen("FCall")
	return c.UniversalClient.FCall(ctx, fn, keys, args...)
}

func (c *goldenClient) Pipeline() redis.Pipeliner {
	c.unseen("Pipeline")
	return c.UniversalClient.Pipeline()
}

func (c *goldenClient) TxPipeline() redis.Pipeliner {
	c.unseen("TxPipeline")
	return c.UniversalClient.TxPipeline()
}

func (c *goldenClient) Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	c.unseen("Pipelined")
	return c.UniversalClient.Pipelined(ctx, fn)
}

func (c *goldenClient) TxPipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	c.unseen("TxPipelined")
	return c.UniversalClient.TxPipelined(ctx, fn)
}

func (c *goldenClient) Do(ctx context.Context, args ...any) *redis.Cmd {
	c.unseen("Do")
	return c.UniversalClient.Do(ctx, args...)
}

func (c *goldenClient) Process(ctx context.Context, cmd redis.Cmder) error {
	c.unseen("Process")
	return c.UniversalClient.Process(ctx, cmd)
}

// wait returns the first call for which match is true, however long ago.
func (c *goldenClient) wait(what string, match func(goldenCall) bool) goldenCall {
	c.tb.Helper()
	timeout := time.After(20 * time.Second)
	for seen := 0; ; {
		c.mu.Lock()
		calls, changed := c.calls, c.changed
		c.mu.Unlock()
		for _, call := range calls[seen:] {
			if match(call) {
				return call
			}
		}
		seen = len(calls)
		select {
		case <-changed:
		case <-timeout:
			unknown := map[string]bool{}
			for _, call := range calls {
				if call.op == OpUnknown {
					unknown[call.sha] = true
				}
			}
			c.tb.Fatalf("no call of %s within 20 s; scripts recognised as unknown: %v", what, slices.Collect(maps.Keys(unknown)))
		}
	}
}

func (c *goldenClient) waitOp(op Op, id string) goldenCall {
	c.tb.Helper()
	return c.wait(fmt.Sprintf("%v for task %s", op, id), func(g goldenCall) bool { return g.op == op && g.call.TaskID == id })
}

func (c *goldenClient) has(op Op, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.calls, func(g goldenCall) bool { return g.op == op && g.call.TaskID == id })
}

// golden is one run of asynq on one queue.
type golden struct {
	*testing.T
	ctx  context.Context
	c    *goldenClient
	cl   *asynq.Client
	insp *asynq.Inspector
	logs *observer.ObservedLogs
	log  asynq.Logger

	notUTF8 chan struct{} // closed when asynq has logged that it can't store an error

	mu        sync.Mutex
	exhausted map[string]bool // ids of asynq's warning
}

const (
	goldenQueue  = "golden"
	goldenPrefix = "asynq:{golden}:"
)

func newGolden(t *testing.T) *golden {
	t.Helper()
	c := newGoldenClient(t)
	core, logs := observer.New(zapcore.DebugLevel)
	g := &golden{
		T: t, ctx: t.Context(), c: c, logs: logs, notUTF8: make(chan struct{}), exhausted: map[string]bool{},
		cl: asynq.NewClientFromRedisClient(c), insp: asynq.NewInspectorFromRedisClient(c),
	}
	refused := sync.OnceFunc(func() { close(g.notUTF8) })
	hook := zap.Hooks(func(e zapcore.Entry) error {
		if strings.Contains(e.Message, "Could not move task id=utf8 from") {
			refused()
		}
		return nil
	})
	g.log = NewLogger(zap.New(core, hook), func(msg string) bool {
		if id, ok := RetryExhaustedID(msg); ok {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.exhausted[id] = true
		}
		return false
	})
	return g
}

func (g *golden) enqueue(typ, id string, opts ...asynq.Option) {
	g.Helper()
	opts = append([]asynq.Option{asynq.Queue(goldenQueue), asynq.TaskID(id)}, opts...)
	if _, err := g.cl.Enqueue(asynq.NewTask(typ, []byte("payload of "+id)), opts...); err != nil {
		g.Fatalf("Enqueue(%s): %v", id, err)
	}
}

// must fails the test if err is not nil; n is what the inspector counted.
func (g *golden) must(what string) func(n any, err error) {
	g.Helper()
	return func(_ any, err error) {
		g.Helper()
		if err != nil {
			g.Fatalf("%s: %v", what, err)
		}
	}
}

// wantKeys checks the keys of a call and the types of its arguments. <day> and
// <md5> stand for what differs from run to run.
func (g *golden) wantKeys(call goldenCall, types string, keys ...string) {
	g.Helper()
	day := time.Now().UTC().Format(time.DateOnly)
	got := slices.Clone(call.keys)
	for i, key := range got {
		key = strings.TrimPrefix(key, goldenPrefix)
		for _, d := range []string{day, time.Now().UTC().Add(-time.Minute).Format(time.DateOnly)} { // midnight passes
			key = strings.Replace(key, ":"+d, ":<day>", 1)
		}
		if rest, ok := strings.CutPrefix(key, "unique:"); ok && len(rest) > 32 {
			key = "unique:" + rest[:len(rest)-32] + "<md5>"
		}
		got[i] = key
	}
	if diff := cmp.Diff(keys, got); diff != "" {
		g.Errorf("KEYS of %v changed (-want +got):\n%s", call.op, diff)
	}
	var kinds []string
	for _, a := range call.args {
		kinds = append(kinds, fmt.Sprintf("%T", a))
	}
	if got := strings.Join(kinds, " "); got != types {
		g.Errorf("ARGV of %v are %s, pinned are %s", call.op, got, types)
	}
}

// wantHash checks the fields and the state of a task's hash.
func (g *golden) wantHash(id, state string, fields ...string) {
	g.Helper()
	h, err := g.c.HGetAll(g.ctx, goldenPrefix+"t:"+id).Result()
	if err != nil {
		g.Fatal(err)
	}
	slices.Sort(fields)
	if got := slices.Sorted(maps.Keys(h)); !slices.Equal(got, fields) {
		g.Errorf("the hash of task %s has the fields %v, pinned are %v", id, got, fields)
	}
	if h["state"] != state {
		g.Errorf("the state of task %s is %q, pinned is %q", id, h["state"], state)
	}
	if m, err := DecodeMessage([]byte(h["msg"])); err != nil || m.ID != id || m.Queue != goldenQueue {
		g.Errorf("msg of task %s = %+v, %v", id, m, err)
	}
}

// wantIn checks that a task is in the sorted set or list of that name.
func (g *golden) wantIn(set, id string) {
	g.Helper()
	key := goldenPrefix + set
	var err error
	if set == "pending" || set == "active" {
		err = g.c.LPos(g.ctx, key, id, redis.LPosArgs{}).Err()
	} else {
		err = g.c.ZScore(g.ctx, key, id).Err()
	}
	if err != nil {
		g.Errorf("task %s is not in %s: %v", id, key, err)
	}
}

// goldenHandler does what the type of a task says. started receives the ids of
// tasks that wait, hang ends those that ignore their context.
func goldenHandler(started chan<- string, hang <-chan struct{}) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		switch task.Type() {
		case "fail":
			return errors.New("boom")
		case "skip":
			return fmt.Errorf("boom: %w", asynq.SkipRetry)
		case "revoke":
			return asynq.RevokeTask
		case "defer":
			return errGoldenDeferred
		case "throttle":
			return errGoldenThrottled
		case "utf8":
			return errors.New("not text: \xff")
		case "cancel":
			started <- id
			<-ctx.Done()
			return ctx.Err()
		case "hang":
			started <- id
			<-hang
		}
		return nil
	}
}

var errGoldenDeferred = errors.New("worker: deferred")

// errGoldenThrottled is an error as a throttle has it: a long cause, and the token last.
var errGoldenThrottled = errors.New(strings.Repeat("a cause that is as long as causes are; ", 30) + "[token]")

func (g *golden) server() *asynq.Server {
	return asynq.NewServerFromRedisClient(g.c, asynq.Config{
		Concurrency: 8, Queues: map[string]int{goldenQueue: 1},
		Logger: g.log, LogLevel: asynq.DebugLevel,
		TaskCheckInterval: 10 * time.Millisecond, DelayedTaskCheckInterval: 20 * time.Millisecond,
		JanitorInterval: 50 * time.Millisecond, ShutdownTimeout: 100 * time.Millisecond,
		IsFailure: func(err error) bool {
			return !errors.Is(err, errGoldenDeferred) && !errors.Is(err, errGoldenThrottled)
		},
		RetryDelayFunc:   func(int, error, *asynq.Task) time.Duration { return time.Hour },
		GroupGracePeriod: time.Second, GroupMaxSize: 2,
		GroupAggregator: asynq.GroupAggregatorFunc(func(group string, tasks []*asynq.Task) *asynq.Task {
			return asynq.NewTask("aggregated", nil, asynq.TaskID("sum of "+group))
		}),
	})
}

const (
	hashMsg, hashState, hashSince, hashUnique, hashGroup = "msg", "state", "pending_since", "unique_key", "group"

	uniqueKeyPin = "unique:ok:<md5>"
	doneArgs     = "string int64 int64"
	completeArgs = "string int64 int64 []uint8 int64"
	retryArgs    = "string []uint8 int64 int64 bool int64"
	archiveArgs  = "string []uint8 int64 int64 int int64 int64"
)

func retryKeys(id string) []string {
	return []string{"t:" + id, "active", "lease", "retry", "processed:<day>", "failed:<day>", "processed", "failed"}
}

func archiveKeys(id string) []string {
	return []string{"t:" + id, "active", "lease", "archived", "processed:<day>", "failed:<day>", "processed", "failed", "t:"}
}

// TestAsynqGolden drives every script of asynq.
func TestAsynqGolden(t *testing.T) {
	t.Parallel()
	g := newGolden(t)
	g.inspect()
	g.produce()

	started, hang := make(chan string), make(chan struct{})
	release := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(release)
	srv := g.server()
	t.Cleanup(srv.Shutdown)
	if err := srv.Start(goldenHandler(started, hang)); err != nil {
		t.Fatal(err)
	}
	g.process()
	g.cancel(started)
	g.schedule()
	g.enqueue("hang", "hang")
	<-started
	srv.Shutdown()
	release()
	g.requeued()

	g.recognised()
}

// produce enqueues in every way, before a server runs.
func (g *golden) produce() {
	g.enqueue("ok", "done")
	g.wantHash("done", "pending", hashMsg, hashState, hashSince)
	g.wantIn("pending", "done")

	g.enqueue("ok", "unique", asynq.Unique(time.Hour))
	g.wantHash("unique", "pending", hashMsg, hashState, hashSince, hashUnique)
	unique, _ := g.c.HGet(g.ctx, goldenPrefix+"t:unique", hashUnique).Result()
	if got, err := g.c.Get(g.ctx, unique).Result(); got != "unique" {
		g.Errorf("the unique lock %s holds %q, %v, pinned is the task id", unique, got, err)
	}

	g.enqueue("ok", "later", asynq.ProcessIn(time.Hour))
	g.wantHash("later", "scheduled", hashMsg, hashState)
	g.wantIn("scheduled", "later")
	g.enqueue("ok", "later unique", asynq.ProcessIn(time.Hour), asynq.Unique(time.Hour))
	g.wantHash("later unique", "scheduled", hashMsg, hashState, hashUnique)

	g.enqueue("ok", "grouped", asynq.Group("g"))
	g.wantHash("grouped", "aggregating", hashMsg, hashState, hashGroup)
	g.wantIn("g:g", "grouped")
	g.enqueue("ok", "grouped unique", asynq.Group("g"), asynq.Unique(time.Hour))
	// unlike the other two it stores no unique_key, only the message knows
	g.wantHash("grouped unique", "aggregating", hashMsg, hashState, hashGroup)

	// an id without a task, as an eviction or a deletion by hand leaves it
	if err := g.c.LPush(g.ctx, goldenPrefix+"pending", "ghost").Err(); err != nil {
		g.Fatal(err)
	}

	// two tasks of a worker that died
	for id, retry := range map[string]int{"lost": 1, "lost last": 0} {
		g.enqueue("ok", id, asynq.MaxRetry(retry))
		expired := redis.Z{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: id}
		for _, err := range []error{
			g.c.LRem(g.ctx, goldenPrefix+"pending", 0, id).Err(),
			g.c.LPush(g.ctx, goldenPrefix+"active", id).Err(),
			g.c.ZAdd(g.ctx, goldenPrefix+"lease", expired).Err(),
			g.c.HSet(g.ctx, goldenPrefix+"t:"+id, hashState, "active").Err(),
			g.c.HDel(g.ctx, goldenPrefix+"t:"+id, hashSince).Err(),
		} {
			if err != nil {
				g.Fatal(err)
			}
		}
	}
}

// process waits until a running server has finished tasks in every way.
func (g *golden) process() {
	call := g.c.wait("dequeue", func(c goldenCall) bool { return c.op == OpDequeue && c.reply != nil })
	g.wantKeys(call, "int64 string", "pending", "paused", "active", "lease")
	if s, ok := call.reply.(string); !ok {
		g.Errorf("a dequeue answers a %T, pinned is the encoded message as a string", call.reply)
	} else if m, err := DecodeMessage([]byte(s)); err != nil || m.Queue != goldenQueue {
		g.Errorf("a dequeue answers %+v, %v", m, err)
	}

	g.wantKeys(g.c.waitOp(OpDone, "done"), doneArgs, "active", "lease", "t:done", "processed:<day>", "processed")
	g.wantKeys(g.c.waitOp(OpDone, "unique"), doneArgs, "active", "lease", "t:unique", "processed:<day>", "processed", uniqueKeyPin)
	g.c.waitOp(OpDone, "sum of g")

	// the recoverer, with a context that never ends
	g.failed(g.c.waitOp(OpRetry, "lost"), "lost", asynq.ErrLeaseExpired.Error(), true)
	g.failed(g.c.waitOp(OpArchive, "lost last"), "lost last", asynq.ErrLeaseExpired.Error(), true)

	g.enqueue("fail", "fail")
	g.failed(g.c.waitOp(OpRetry, "fail"), "fail", "boom", true)
	g.enqueue("defer", "defer")
	g.failed(g.c.waitOp(OpRetry, "defer"), "defer", errGoldenDeferred.Error(), false)
	g.enqueue("skip", "skip")
	g.failed(g.c.waitOp(OpArchive, "skip"), "skip", "boom: "+asynq.SkipRetry.Error(), true)
	// archived although IsFailure says that it is none: why the adapter exists
	g.enqueue("defer", "last", asynq.MaxRetry(0))
	g.failed(g.c.waitOp(OpArchive, "last"), "last", errGoldenDeferred.Error(), true)
	// the text of an error is written whole, however long: the token at its end tells a throttle from a failure
	g.enqueue("throttle", "throttled")
	g.failed(g.c.waitOp(OpRetry, "throttled"), "throttled", errGoldenThrottled.Error(), false)
	g.enqueue("throttle", "throttled last", asynq.MaxRetry(0))
	g.failed(g.c.waitOp(OpArchive, "throttled last"), "throttled last", errGoldenThrottled.Error(), true)
	g.enqueue("revoke", "revoke")
	g.c.waitOp(OpDone, "revoke")

	g.enqueue("ok", "keep", asynq.Retention(time.Hour))
	call = g.c.waitOp(OpComplete, "keep")
	g.wantKeys(call, completeArgs, "active", "lease", "completed", "t:keep", "processed:<day>", "processed")
	g.wantHash("keep", "completed", hashMsg, hashState)
	g.wantIn("completed", "keep")
	if m, err := DecodeMessage(call.call.Message); err != nil || m.ID != "keep" || m.Retention != 3600 {
		g.Errorf("a complete writes %+v, %v", m, err)
	}
	g.enqueue("ok", "keep unique", asynq.Retention(time.Hour), asynq.Unique(time.Hour))
	call = g.c.waitOp(OpComplete, "keep unique")
	g.wantKeys(call, completeArgs, "active", "lease", "completed", "t:keep unique", "processed:<day>", "processed", uniqueKeyPin)

	// the janitor and the forwarder look at scores
	for set, id := range map[string]string{"completed": "keep", "scheduled": "later"} {
		if err := g.c.ZAddXX(g.ctx, goldenPrefix+set, redis.Z{Score: 1, Member: id}).Err(); err != nil {
			g.Fatal(err)
		}
	}
	g.c.waitOp(OpDone, "later")
	g.c.wait("the janitor", func(c goldenCall) bool {
		return len(c.keys) == 1 && c.keys[0] == goldenPrefix+"completed" && c.reply == int64(1)
	})
	if err := g.insp.DeleteTask(goldenQueue, "keep"); !errors.Is(err, asynq.ErrTaskNotFound) {
		g.Errorf("the janitor left the completed task: %v", err)
	}
	g.invalidUTF8()

	// a dequeue that answers nil may have taken an id: nil is not "empty", and
	// asynq never looks at the ghost again
	g.wantIn("active", "ghost")
	g.wantIn("lease", "ghost")
	ghost, err := g.c.HGetAll(g.ctx, goldenPrefix+"t:ghost").Result()
	if diff := cmp.Diff(map[string]string{hashState: "active"}, ghost); diff != "" || err != nil {
		g.Errorf("dequeued ghost (%v), -want +got:\n%s", err, diff)
	}
}

// failed checks a retry or archive of a task.
func (g *golden) failed(call goldenCall, id, errorMsg string, isFailure bool) {
	g.Helper()
	retried := 0
	switch call.op {
	case OpRetry:
		g.wantKeys(call, retryArgs, retryKeys(id)...)
		if call.args[4] != isFailure {
			g.Errorf("ARGV[5] of the retry of %s is %v, pinned is what IsFailure said: %v", id, call.args[4], isFailure)
		}
		if isFailure {
			retried = 1
		}
		g.wantHash(id, "retry", hashMsg, hashState)
		g.wantIn("retry", id)
	case OpArchive:
		g.wantKeys(call, archiveArgs, archiveKeys(id)...)
		g.wantHash(id, "archived", hashMsg, hashState)
		g.wantIn("archived", id)
	}
	m, err := DecodeMessage(call.call.Message)
	if err != nil || m.ID != id || m.ErrorMsg != errorMsg || m.Retried != retried {
		g.Errorf("%v of %s writes %+v, %v, want error %q and %d retried", call.op, id, m, err, errorMsg, retried)
	}
	stored, err := g.c.HGet(g.ctx, goldenPrefix+"t:"+id, hashMsg).Bytes()
	if err != nil || !slices.Equal(stored, call.call.Message) {
		g.Errorf("%v of %s stored another message than its argument (%v)", call.op, id, err)
	}
	// the line comes before the script; the recoverer archives without one
	g.mu.Lock()
	defer g.mu.Unlock()
	if want := call.op == OpArchive && id != "lost last"; g.exhausted[id] != want {
		g.Errorf("asynq's warning of exhausted retries for %s: %v, pinned is %v", id, g.exhausted[id], want)
	}
}

// An error whose text is not UTF-8 can't be encoded: asynq writes nothing, so
// the adapter sees no call, and the task stays active until its lease is lost.
func (g *golden) invalidUTF8() {
	g.Helper()
	g.enqueue("utf8", "utf8")
	select {
	case <-g.notUTF8:
	case <-time.After(10 * time.Second):
		g.Fatal("asynq stores errors that are not UTF-8 now, or says otherwise that it can't")
	}
	g.wantHash("utf8", "active", hashMsg, hashState)
	g.wantIn("active", "utf8")
	g.wantIn("lease", "utf8")
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	for _, c := range g.c.calls {
		if c.call.TaskID == "utf8" {
			g.Errorf("asynq writes %v for an error that is not UTF-8", c.op)
		}
	}
}

func (g *golden) cancel(started <-chan string) {
	g.enqueue("cancel", "cancel")
	<-started
	for !g.c.has(OpRetry, "cancel") { // asynq's subscriber may not have subscribed yet
		if err := g.insp.CancelProcessing("cancel"); err != nil {
			g.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	g.failed(g.c.waitOp(OpRetry, "cancel"), "cancel", context.Canceled.Error(), true)
}

// schedule runs asynq's scheduler and its debug line, which holds the payload.
func (g *golden) schedule() {
	s := asynq.NewSchedulerFromRedisClient(g.c, &asynq.SchedulerOpts{
		HeartbeatInterval: 20 * time.Millisecond, Logger: g.log, LogLevel: asynq.DebugLevel})
	if _, err := s.Register("@every 1s", asynq.NewTask("ok", []byte("secret")), asynq.Queue(goldenQueue), asynq.TaskID("periodic")); err != nil {
		g.Fatal(err)
	}
	if err := s.Start(); err != nil {
		g.Fatal(err)
	}
	for _, key := range []string{"asynq:scheduler_history:", "asynq:schedulers:{"} {
		g.c.wait("the scheduler on "+key, func(c goldenCall) bool {
			return len(c.keys) == 1 && strings.HasPrefix(c.keys[0], key)
		})
	}
	g.must("SchedulerEntries")(g.insp.SchedulerEntries())
	s.Shutdown()
	if g.logs.FilterMessage("scheduler enqueued a task").Len() == 0 {
		g.Error("asynq's scheduler logs its tasks in another way now; does the line hold the payload?")
	}
	for _, e := range g.logs.All() {
		if strings.Contains(e.Message, "secret") || strings.Contains(e.Message, "115 101 99 114 101 116") || strings.Contains(e.Message, "payload of") {
			g.Errorf("asynq logs a payload: %q", e.Message)
		}
	}
}

func (g *golden) requeued() {
	call := g.c.waitOp(OpRequeue, "hang")
	g.wantKeys(call, "string", "active", "lease", "pending", "t:hang")
	g.wantHash("hang", "pending", hashMsg, hashState)
	if next, err := g.c.LIndex(g.ctx, goldenPrefix+"pending", -1).Result(); next != "hang" {
		g.Errorf("next to be dequeued is %q, %v, want the requeued task", next, err)
	}
}

// inspect calls the inspector as an administrator might while no server runs.
func (g *golden) inspect() {
	q := goldenQueue
	pending := func() { g.enqueue("ok", "p") }
	scheduled := func() { g.enqueue("ok", "s", asynq.ProcessIn(time.Hour)) }
	grouped := func() { g.enqueue("ok", "a", asynq.Group("g")) }
	for _, step := range []struct {
		name    string
		prepare func()
		call    func() (any, error)
	}{
		{"ListPendingTasks", pending, func() (any, error) { return g.insp.ListPendingTasks(q) }},
		{"GetTaskInfo", nil, func() (any, error) { return g.insp.GetTaskInfo(q, "p") }},
		{"GetQueueInfo", nil, func() (any, error) { return g.insp.GetQueueInfo(q) }},
		{"History", nil, func() (any, error) { return g.insp.History(q, 3) }},
		{"ArchiveTask", nil, func() (any, error) { return nil, g.insp.ArchiveTask(q, "p") }},
		{"RunTask", nil, func() (any, error) { return nil, g.insp.RunTask(q, "p") }},
		{"ArchiveAllPendingTasks", nil, func() (any, error) { return g.insp.ArchiveAllPendingTasks(q) }},
		{"ListArchivedTasks", nil, func() (any, error) { return g.insp.ListArchivedTasks(q) }},
		{"RunAllArchivedTasks", nil, func() (any, error) { return g.insp.RunAllArchivedTasks(q) }},
		{"DeleteAllPendingTasks", nil, func() (any, error) { return g.insp.DeleteAllPendingTasks(q) }},
		{"ListScheduledTasks", scheduled, func() (any, error) { return g.insp.ListScheduledTasks(q) }},
		{"UpdateTaskPayload", nil, func() (any, error) { return nil, g.insp.UpdateTaskPayload(q, "s", []byte("new")) }},
		{"ArchiveAllScheduledTasks", nil, func() (any, error) { return g.insp.ArchiveAllScheduledTasks(q) }},
		{"DeleteAllArchivedTasks", nil, func() (any, error) { return g.insp.DeleteAllArchivedTasks(q) }},
		{"DeleteTask", scheduled, func() (any, error) { return nil, g.insp.DeleteTask(q, "s") }},
		{"Groups", grouped, func() (any, error) { return g.insp.Groups(q) }},
		{"ListAggregatingTasks", nil, func() (any, error) { return g.insp.ListAggregatingTasks(q, "g") }},
		{"RunAllAggregatingTasks", nil, func() (any, error) { return g.insp.RunAllAggregatingTasks(q, "g") }},
		{"DeleteAllPendingTasks", nil, func() (any, error) { return g.insp.DeleteAllPendingTasks(q) }},
		{"ArchiveAllAggregatingTasks", grouped, func() (any, error) { return g.insp.ArchiveAllAggregatingTasks(q, "g") }},
		{"DeleteAllArchivedTasks", nil, func() (any, error) { return g.insp.DeleteAllArchivedTasks(q) }},
		{"DeleteAllAggregatingTasks", grouped, func() (any, error) { return g.insp.DeleteAllAggregatingTasks(q, "g") }},
		{"Servers", nil, func() (any, error) { return g.insp.Servers() }},
		{"PauseQueue", nil, func() (any, error) { return nil, g.insp.PauseQueue(q) }},
		{"EXISTS paused", nil, func() (any, error) {
			n, err := g.c.Exists(g.ctx, goldenPrefix+"paused").Result()
			if n != 1 {
				g.Errorf("a paused queue has no key %spaused", goldenPrefix)
			}
			return nil, err
		}},
		{"UnpauseQueue", nil, func() (any, error) { return nil, g.insp.UnpauseQueue(q) }},
		{"DeleteQueue", nil, func() (any, error) { return nil, g.insp.DeleteQueue(q, false) }},
		{"DeleteQueue forced", func() { // the client remembers that it has published the queue
			g.cl = asynq.NewClientFromRedisClient(g.c)
			pending()
		}, func() (any, error) { return nil, g.insp.DeleteQueue(q, true) }},
	} {
		if step.prepare != nil {
			step.prepare()
		}
		g.must(step.name)(step.call())
	}
	g.cl = asynq.NewClientFromRedisClient(g.c)
}

// recognised checks every call of the whole run, and that no script was left out.
func (g *golden) recognised() {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range g.c.calls {
		seen[c.sha] = true
		if c.op == OpUnknown {
			g.Errorf("the script %s of asynq with KEYS %q is recognised as unknown", c.sha, c.keys)
		}
		if c.op != OpOther && c.call.Queue != goldenQueue {
			g.Errorf("the queue of %v is %q, want %q", c.op, c.call.Queue, goldenQueue)
		}
	}
	for sha, shape := range scriptShapes {
		if !seen[sha] {
			g.Errorf("asynq does not send the script %s any more, pinned as %v", sha, shape.op)
		}
	}

	names := map[string]string{} // some scripts share one text
	for name, text := range asynqScriptTexts(g) {
		names[SHA(text)] = name
	}
	for _, c := range g.c.calls {
		name, ok := names[c.sha]
		if want := goldenScripts[name]; !ok || c.op != want {
			g.Errorf("asynq's script %q with KEYS %q is recognised as %v, want %v", name, c.keys, c.op, want)
		}
	}
	for sha, name := range names {
		if !seen[sha] {
			g.Errorf("this test does not drive asynq's script %s", name)
		}
	}
}
