// Package imports holds the direction of imports by a test.
package imports

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

const (
	module = "github.com/headwayq/headway"
	root   = "../.." // of the module, from here
)

// edges lists every package directory with those packages of this module that
// its non-test files may import. "dir/*" means each directory below dir. A new
// package needs a line here, and a place in the order.
//
//	cmd, examples -> metrics, tracing, dashboard -> worker, inspect -> queue/* -> queue -> throttle -> throttle/gate, internal/memory -> internal/limitscripts -> internal/luascripts
//	                                          worker, queue -> internal/asynqwire -> internal/queuescripts -> internal/luascripts
//	                              worker, inspect, queue/* -> internal/batchscripts, internal/schedulescripts -> internal/queuescripts
//	                                          worker, queue -> internal/policyset, internal/promotion -> throttle
//	                                         worker, inspect -> internal/history -> internal/luascripts
//	                        httplimit, throttle/throttletest -> throttle
//	                                        throttle, worker -> event
//
// What each package is for stands in docs/architecture.md.
var edges = map[string][]string{
	".":                         {},
	"internal/rediserr":         {},
	"internal/bounded":          {},
	"internal/stderrlog":        {},
	"internal/redisclock":       {},
	"internal/filewatch":        {},
	"internal/luascripts":       {"internal/rediserr", "internal/slotmap"},
	"internal/limitscripts":     {"internal/luascripts", "internal/rediserr"},
	"internal/queuescripts":     {"internal/luascripts", "internal/rediserr"},
	"internal/batchscripts":     {"internal/luascripts", "internal/queuescripts"},
	"internal/schedulescripts":  {"internal/luascripts", "internal/queuescripts"},
	"internal/slotmap":          {"internal/bounded", "internal/rediserr"},
	"internal/precheck":         {"internal/rediserr"},
	"internal/childprocess":     {},
	"internal/redisserver":      {},
	"internal/redistest":        {"internal/redisserver"},
	"internal/judge":            {},
	"internal/civil":            {},
	"internal/cronspec":         {},
	"internal/asynqwire":        {"internal/queuescripts"},
	"internal/coalesce":         {"internal/rediserr"},
	"internal/memory":           {"internal/limitscripts"},
	"throttle/internal/errtext": {},
	"throttle/gate":             {"internal/civil", "internal/cronspec", "throttle/internal/errtext"},
	"throttle":                  {"internal/luascripts", "internal/limitscripts", "internal/rediserr", "internal/redisclock", "internal/memory", "internal/bounded", "internal/coalesce", "internal/giveback", "throttle/gate", "internal/civil", "throttle/internal/errtext", "internal/fake", "event"},
	"internal/fake":             {},
	"event":                     {},
	"event/eventlog":            {"event"},
	"throttle/throttletest":     {"throttle", "internal/fake"},
	"queue":                     {"throttle", "throttle/gate", "internal/policyset", "internal/promotion", "internal/luascripts", "internal/queuescripts", "internal/rediserr", "internal/asynqwire", "queue/internal/backend", "queue/internal/yamlfile", "queue/internal/zones"},
	"inspect":                   {"queue/batch", "queue/schedule", "queue", "throttle", "throttle/gate", "internal/presence", "internal/history", "internal/policyset", "internal/promotion", "internal/luascripts", "internal/limitscripts", "internal/queuescripts", "internal/batchscripts", "internal/schedulescripts", "internal/rediserr"},
	"queue/batch":               {"event", "queue", "throttle", "internal/luascripts", "internal/queuescripts", "internal/batchscripts", "internal/presence", "internal/stderrlog", "queue/internal/backend", "queue/internal/check"},
	"queue/schedule":            {"queue", "internal/filewatch", "internal/queuescripts", "internal/schedulescripts", "internal/presence", "internal/stderrlog", "internal/asynqwire", "internal/civil", "internal/cronspec", "queue/internal/backend", "queue/internal/check", "queue/internal/yamlfile", "queue/internal/zones"},
	"queue/phonezone":           {"queue", "queue/internal/zones"},
	"queue/internal/yamlfile":   {"queue/internal/check"},
	"queue/internal/zones":      {"internal/civil"},
	"queue/internal/backend":    {"throttle", "internal/queuescripts"},
	"queue/internal/check":      {},
	"internal/giveback":         {"internal/bounded"},
	"internal/policyset":        {"throttle", "internal/queuescripts"},
	"internal/promotion":        {"throttle", "internal/policyset", "internal/luascripts", "internal/queuescripts"},
	"internal/simulate":         {"queue", "throttle", "throttle/gate", "internal/policyset", "internal/fake"},
	"internal/presence":         {"internal/luascripts", "internal/limitscripts"},
	"internal/tail":             {"event"},
	"internal/history":          {"internal/luascripts"},
	"worker":                    {"queue", "throttle", "internal/tail", "internal/filewatch", "internal/precheck", "internal/presence", "internal/history", "internal/bounded", "internal/giveback", "internal/policyset", "internal/promotion", "internal/luascripts", "internal/queuescripts", "internal/batchscripts", "internal/rediserr", "internal/coalesce", "internal/asynqwire", "internal/stderrlog", "event"},
	"httplimit":                 {"throttle", "internal/giveback", "internal/stderrlog"},
	"metrics":                   {"inspect", "queue/batch", "queue/schedule", "throttle", "event"},
	"tracing":                   {"worker", "queue", "throttle", "event"},
	"dashboard":                 {"inspect", "queue/batch", "queue", "throttle", "throttle/gate", "internal/civil"},
	"internal/e2e":              {"internal/judge", "event", "worker", "queue", "queue/phonezone", "throttle", "throttle/gate"},
	"internal/faults":           {"internal/childprocess", "internal/e2e", "internal/luascripts", "internal/queuescripts", "internal/redisserver", "worker", "queue", "queue/batch", "queue/schedule", "throttle"},
	"internal/e2e/mailtest":     {"internal/e2e", "internal/judge", "queue/batch", "throttle", "throttle/gate"},
	"cmd/headway/prove":         {"internal/e2e", "internal/faults", "worker", "queue", "throttle", "throttle/gate"},
	"cmd/headway":               {"cmd/headway/prove", "dashboard", "metrics", "worker", "inspect", "queue/batch", "queue/phonezone", "queue", "throttle", "internal/precheck", "internal/rediserr", "internal/simulate", "internal/tail", "internal/e2e"},
	"examples/*":                {"internal/e2e", "internal/e2e/mailtest", "dashboard", "metrics", "httplimit", "worker", "inspect", "queue/batch", "queue/schedule", "queue/phonezone", "queue", "throttle", "throttle/gate"},
	"tools/drawlimits":          {"throttle", "internal/redisserver"},
	"e2e":                       {},
	"tools/imports":             {},
	"tools/knownfaults":         {},
	"tools/measures":            {"internal/luascripts", "internal/redisserver", "throttle"},
	"tools/measures/oneacquire": {"throttle", "tools/measures/trace"},
	"tools/measures/trace":      {},
}

// testEdges are what the tests of a package may import besides.
var testEdges = map[string][]string{
	"internal/luascripts":   {"internal/limitscripts", "internal/queuescripts", "internal/batchscripts", "internal/schedulescripts", "internal/history"},
	"internal/memory":       {"internal/luascripts"},
	"throttle":              {"internal/judge", "internal/queuescripts"},
	"throttle/throttletest": {"event"},
	"worker":                {"inspect", "queue/batch", "queue/schedule", "throttle/gate", "internal/judge"},
	"internal/e2e/mailtest": {"queue/schedule"},
	"examples/batch-mailer": {"internal/judge"},
	"queue/schedule":        {"throttle"},
	"metrics":               {"worker", "queue"},
	"dashboard":             {"worker", "queue/schedule", "internal/history"},
	"cmd/headway":           {"event", "queue/schedule"},
}

// foreign says where a dependency may be imported outside of tests. A path
// covers what is below it; what has no line may be imported anywhere.
var foreign = []struct {
	path string
	in   []string
	why  string
}{
	{"github.com/alicebob/miniredis", []string{"internal/redistest", "internal/e2e"},
		"an embedded server is a choice of programs, not of libraries"},
	{"github.com/hibiken/asynq", []string{"internal/asynqwire", "inspect", "queue", "queue/batch", "queue/schedule", "queue/phonezone", "queue/internal/backend", "worker", "metrics", "tracing", "dashboard", "internal/simulate", "internal/e2e", "internal/faults", "cmd/headway", "cmd/headway/prove", "examples/*"},
		"throttle and what is below it have never heard of tasks"},
	{"golang.org/x/term", []string{"internal/e2e", "cmd/headway", "cmd/headway/prove", "examples/*"}, "a terminal is a thing of programs"},
	{"github.com/emersion", []string{"internal/e2e/mailtest", "examples/*"}, "what sends mails is a choice of programs"},
	{"github.com/goccy/go-yaml", []string{"queue", "queue/schedule", "queue/internal/yamlfile"}, "policy files and schedule files are read in one place"},
	{"github.com/nyaruka/phonenumbers", []string{"queue/phonezone"}, "numbering plans are only for programs that ask for them"},
	{"github.com/robfig/cron", []string{"throttle/gate", "queue/schedule", "internal/cronspec"}, "whether a gate is open is asked of the gate"},
	{"github.com/prometheus", []string{"metrics", "cmd/headway"},
		"whoever measures in another way does not link Prometheus"},
	{"go.opentelemetry.io/otel/sdk", nil, "which SDK takes the spans is a choice of programs"},
	{"go.opentelemetry.io", []string{"tracing"}, "whoever makes no traces does not link OpenTelemetry"},
	{"testing", []string{"internal/redistest", "throttle/throttletest"},
		"nor does a program link the testing package"},
	{"go.uber.org/goleak", nil, "it is for tests"},
	{"github.com/google/go-cmp", nil, "it is for tests"},
	{"pgregory.net/rapid", nil, "it is for tests"},
}

// luaIn lists where Lua may be written. redisserver rewrites scripts for tests.
var luaIn = []string{"internal/luascripts", "internal/redisserver"}

// TestImports holds the direction of imports over all Go files of the module,
// whatever their build tags.
func TestImports(t *testing.T) {
	t.Parallel()
	files, used := 0, map[string]bool{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != root && skipDir(name) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files++
		inside, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		for _, fault := range faults(filepath.ToSlash(inside), src) {
			t.Error(fault)
		}
		noteEdges(used, filepath.ToSlash(inside), src)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, allowed := range edges {
		for _, imported := range allowed {
			if !used[dir+" "+imported] && !strings.Contains(dir, "*") {
				t.Errorf("edges let %s import %s, which it does not: take that away", dir, imported)
			}
		}
	}
	if files < 2 {
		t.Fatalf("%d Go files looked at, want the whole module", files)
	}
}

// noteEdges notes which packages of this module a file imports that is not a test.
func noteEdges(used map[string]bool, name string, src []byte) {
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil || strings.HasSuffix(name, "_test.go") {
		return
	}
	for _, spec := range file.Imports {
		if own, ok := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/"); ok {
			used[path.Dir(name)+" "+own] = true
		}
	}
}

// skipDir says what is no package of this module: hidden directories, test
// data, and modules of their own.
func skipDir(name string) bool {
	base := filepath.Base(name)
	if base == "testdata" || base[0] == '.' || base[0] == '_' {
		return true
	}
	_, err := os.Stat(filepath.Join(name, "go.mod"))
	return err == nil
}

// faults returns what one file does that it must not, in the order of lines.
func faults(name string, src []byte) []string {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	dir := path.Dir(name)
	allowed, known := allowedIn(dir)
	if !known {
		return []string{fmt.Sprintf("%s: package %s is new: give it a line in edges", name, dir)}
	}
	isTest := strings.HasSuffix(name, "_test.go")
	var found []string
	report := func(node ast.Node, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s:%d: ", name, fset.Position(node.Pos()).Line)+fmt.Sprintf(format, args...))
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			report(spec, "%v", err)
			continue
		}
		if why := refuse(dir, isTest, allowed, imported); why != "" {
			report(spec, "%s must not import %s: %s", dir, imported, why)
		}
	}
	if !isTest && !listed(luaIn, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			if what := luaOf(n); what != "" {
				report(n, "%s in %s: Lua lives in internal/luascripts", what, dir)
			}
			return true
		})
	}
	return found
}

// refuse says why dir must not import a package, or nothing.
func refuse(dir string, isTest bool, allowed []string, imported string) string {
	if own, ok := strings.CutPrefix(imported, module); ok && (own == "" || own[0] == '/') {
		own = cmp.Or(strings.TrimPrefix(own, "/"), ".")
		switch {
		case slices.Contains(allowed, own):
		case isTest && (slices.Contains(testEdges[dir], own) || dir == "." || dir == "e2e" || own == dir || own == "internal/redistest"):
		default:
			return "it may import " + cmp.Or(strings.Join(allowed, ", "), "nothing of this module")
		}
		return ""
	}
	if isTest {
		return ""
	}
	for _, f := range foreign {
		if (imported == f.path || strings.HasPrefix(imported, f.path+"/")) && !listed(f.in, dir) {
			return f.why
		}
	}
	return ""
}

// luaOf names the Lua in one node of a syntax tree: a script that is made, or
// a text that calls Redis. Comments are not looked at.
func luaOf(n ast.Node) string {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "redis" && n.Sel.Name == "NewScript" {
			return "redis.NewScript"
		}
	case *ast.BasicLit:
		for _, call := range []string{"redis.call(", "redis.pcall("} {
			if n.Kind == token.STRING && strings.Contains(n.Value, call) {
				return call
			}
		}
	}
	return ""
}

func allowedIn(dir string) (allowed []string, known bool) {
	if allowed, known = edges[dir]; known {
		return allowed, true
	}
	for pattern, allowed := range edges {
		if listed([]string{pattern}, dir) {
			return allowed, true
		}
	}
	return nil, false
}

// listed reports whether dir is in patterns, by name or below a "parent/*".
func listed(patterns []string, dir string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		parent, below := strings.CutSuffix(p, "*")
		return p == dir || below && strings.HasPrefix(dir, parent)
	})
}

// TestImportRulesBite shows each rule a file that breaks it.
func TestImportRulesBite(t *testing.T) {
	t.Parallel()
	const (
		own   = `import _ "` + module + `/`
		other = `import _ "`
	)
	for _, tc := range []struct {
		name, body string
		want       string // in the only fault; "" for none
	}{
		{"throttle/a.go", own + `internal/luascripts"`, ""},
		{"throttle/a.go", own + `queue"`, "it may import internal/luascripts"},
		{"throttle/a_test.go", own + `queue"`, "it may import internal/luascripts"},
		{"throttle/a_test.go", own + `throttle"`, ""},
		{"throttle/a_test.go", own + `internal/redistest"`, ""},
		{"throttle/a.go", own + `internal/redistest"`, "it may import internal/luascripts"},
		{"throttle/a.go", other + `github.com/hibiken/asynq"`, "never heard of tasks"},
		{"throttle/a.go", other + `github.com/hibiken/asynq/x/rate"`, "never heard of tasks"},
		{"throttle/a.go", other + `github.com/hibiken/asynqmon"`, ""},
		{"throttle/a.go", other + `testing"`, "testing package"},
		{"internal/luascripts/a.go", own + `throttle"`, "it may import internal/rediserr"},
		{"internal/limitscripts/a.go", own + `internal/queuescripts"`, "it may import internal/luascripts"},
		{"internal/queuescripts/a.go", own + `internal/limitscripts"`, "it may import internal/luascripts"},
		{"throttle/a.go", own + `internal/queuescripts"`, "it may import internal/luascripts"},
		{"internal/luascripts/a_test.go", other + `github.com/hibiken/asynq"`, ""},
		{"queue/a.go", own + `worker"`, "it may import throttle"},
		{"queue/a.go", other + `github.com/alicebob/miniredis/v2"`, "not of libraries"},
		{"queue/a.go", other + `github.com/goccy/go-yaml/ast"`, ""},
		{"queue/phonezone/a.go", other + `github.com/nyaruka/phonenumbers"`, ""},
		{"queue/a.go", other + `github.com/nyaruka/phonenumbers"`, "numbering plans"},
		{"throttle/gate/a.go", other + `github.com/robfig/cron/v3"`, ""},
		{"throttle/a.go", other + `github.com/goccy/go-yaml"`, "read in one place"},
		{"worker/a.go", other + `github.com/nyaruka/phonenumbers"`, "numbering plans"},
		{"worker/a.go", other + `github.com/robfig/cron/v3"`, "asked of the gate"},
		{"worker/a.go", own + `queue"`, ""},
		{"worker/a.go", own + `queue/batch"`, "it may import queue"},
		{"worker/a_test.go", own + `queue/batch"`, ""},
		{"queue/a.go", own + `queue/batch"`, "it may import throttle"},
		{"worker/a.go", other + `github.com/prometheus/client_golang/prometheus"`, "does not link Prometheus"},
		{"worker/a.go", other + `go.opentelemetry.io/otel/trace"`, "does not link OpenTelemetry"},
		{"tracing/a.go", other + `go.opentelemetry.io/otel/trace"`, ""},
		{"tracing/a.go", other + `go.opentelemetry.io/otel/sdk/trace"`, "a choice of programs"},
		{"worker/a.go", other + module + `"`, "it may import queue"},
		{"internal/e2e/a.go", other + `github.com/alicebob/miniredis/v2"`, ""},
		{"examples/sms-sender/a.go", own + `internal/luascripts"`, "it may import internal/e2e, internal/e2e/mailtest"},
		{"a_test.go", own + `internal/luascripts"`, ""},
		{"a.go", own + `throttle"`, "nothing of this module"},
		{"throttle/sub/a.go", ``, "throttle/sub is new"},
		{"worker/a.go", "// redis.call( is fine here\nvar _ = redis.NewScript", "a.go:3: redis.NewScript in worker"},
		{"worker/a.go", "var _ = `return redis.call('TIME')`", "redis.call( in worker"},
		{"worker/a_test.go", "var _ = `return redis.call('TIME')`", ""},
		{"internal/luascripts/a.go", "var _ = redis.NewScript(`redis.call('TIME')`)", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := faults(tc.name, []byte("package p\n"+tc.body+"\n"))
			if tc.want == "" {
				if diff := gocmp.Diff([]string(nil), got); diff != "" {
					t.Errorf("faults of %q (-want +got):\n%s", tc.body, diff)
				}
				return
			}
			if len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Errorf("faults of %q = %q, want one with %q", tc.body, got, tc.want)
			}
		})
	}
}
