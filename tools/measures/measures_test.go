package main

import (
	"errors"
	"go/parser"
	"go/token"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/redisserver"
)

func TestExportedNamesAndSpread(t *testing.T) {
	t.Parallel()
	p := &sourcePackage{methodFiles: make(map[string]map[string]bool)}
	for name, src := range map[string]string{
		"a.go": "package p\ntype T struct{ F int }\ntype u int\nconst A, b = 1, 2\nfunc (t *T) M() {}\nfunc (t T) m() {}\nfunc (u) N() {}\nfunc F() {}\n",
		"b.go": "package p\nfunc (t *T) O() {}\ntype G[K any] struct{}\nfunc (g *G[K]) P() {}\nvar V int\n",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.read(name, file)
	}
	if want := 8; p.exported != want { // T, A, T.M, F; T.O, G, G.P, V
		t.Errorf("%d exported names, want %d", p.exported, want)
	}
	want := map[string]map[string]bool{"T": {"a.go": true, "b.go": true}, "u": {"a.go": true}, "G": {"b.go": true}}
	if diff := cmp.Diff(want, p.methodFiles); diff != "" {
		t.Errorf("files of methods (-want +got):\n%s", diff)
	}
}

// A reader who follows the calls reads each file, and comes back to some.
func TestWayOf(t *testing.T) {
	t.Parallel()
	got := wayOf([]string{"a.go", "a.go", "b.go", "a.go", "c.go", "b.go", "b.go"})
	if got.stays != 5 || got.returns != 2 || !slices.Equal(got.files, []string{"a.go", "b.go", "c.go"}) {
		t.Errorf("%+v, want 5 stays, 2 returns, in a.go, b.go and c.go", got)
	}
}

// Each function of more than one statement notes its file first.
func TestTraceFunctions(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"package a\n\nimport \"fmt\"\n\nfunc f() { defer fmt.Println(); fmt.Println(func() int { return 1 }()) }\n": "package a; import headwaytrace \"" + module + "/tools/measures/trace\"\n\nimport \"fmt\"\n\n" +
			"func f() {headwaytrace.Enter(\"a.go\"); defer fmt.Println(); fmt.Println(func() int { return 1 }()) }\n",
		"package a\n\nconst c = 1\n": "package a\n\nconst c = 1\n",
	} {
		got, err := traceFunctions("a.go", []byte(source))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// A reader of one Acquire is not sent to and fro.
func TestOneAcquirePassesThroughFewFiles(t *testing.T) {
	t.Parallel()
	entered, err := enteredByOneAcquire("../..")
	if errors.Is(err, redisserver.ErrNoServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if w := wayOf(entered); len(w.files) > acquireFilesGoal || w.returns > acquireReturnsGoal {
		t.Errorf("one Acquire passes through %d files and returns %d times to a file already left, want at most %d and %d: `make measures` lists the files",
			len(w.files), w.returns, acquireFilesGoal, acquireReturnsGoal)
	}
}

// No package of the repository has more source files than a reader can keep in mind, and no type has its methods in more files.
func TestPackagesAndTypesAreNotScattered(t *testing.T) {
	t.Parallel()
	packages, err := readTree("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 20 {
		t.Fatalf("%d packages, want those of the repository", len(packages))
	}
	for name, p := range packages {
		if p.files > filesGoal {
			t.Errorf("%s has %d source files, want at most %d", name, p.files, filesGoal)
		}
		for typ, files := range p.methodFiles {
			if len(files) > filesOfTypeGoal {
				t.Errorf("the methods of %s.%s lie in %d files, want at most %d", name, typ, len(files), filesOfTypeGoal)
			}
		}
	}
}

// What a script needs is found over several steps, and nothing else is counted.
func TestAcquireLua(t *testing.T) {
	t.Parallel()
	const a, b, c = "\nlocal b = require(\"limit/b\")\nend\n", "\nlocal f = tokens.spend\nlocal other = \"limit/acquire\"\nend\n", "\nlocal f = tokens.spend_all\nend\n"
	bytes, ways := acquireLua("#!lua\nmodules[\"limit/b\"] = function()" + b + "modules[\"limit/acquire\"] = function()" + a + "modules[\"limit/c\"] = function()" + c)
	if bytes != len(a)+len(b) || ways != 1 {
		t.Errorf("%d bytes and %d ways, want %d and 1", bytes, ways, len(a)+len(b))
	}
}

// The sources of the repository have what the table of goals counts.
func TestMeasuresFindTheirSources(t *testing.T) {
	t.Parallel()
	if n, err := retryLayers("../.."); err != nil || n < 1 || n > 4 {
		t.Errorf("%d retry layers, %v, want 1 to 4", n, err)
	}
	if n, err := asynqPins("../.."); err != nil || n != 1 {
		t.Errorf("%d packages pin asynq's scripts, %v, want 1", n, err)
	}
}

// A line number in an error of Redis leads to the line of Lua that failed.
func TestErrorLeadsToFile(t *testing.T) {
	t.Parallel()
	ok, err := errorLeadsToFile("../..")
	if errors.Is(err, redisserver.ErrNoServer) {
		t.Skip(err)
	}
	if err != nil || !ok {
		t.Errorf("it leads to a file: %v, %v", ok, err)
	}
	for _, text := range []string{"WRONGTYPE", "acquire.lua at limit/acquire.lua:1: WRONGTYPE", "acquire.lua at limit/none.lua:1: WRONGTYPE"} {
		if leadsToCall("../..", text) {
			t.Errorf("%q leads to a call of Redis, want not", text)
		}
	}
}
