package main

import (
	"go/parser"
	"go/token"
	"testing"

	"github.com/google/go-cmp/cmp"
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

func TestCoveredFiles(t *testing.T) {
	t.Parallel()
	profile := "mode: atomic\n" +
		module + "/throttle/limiter.go:10.2,12.3 2 1\n" +
		module + "/throttle/limiter.go:14.2,15.3 1 0\n" +
		module + "/throttle/charge.go:1.2,3.4 1 0\n" +
		module + "/tools/measures/oneacquire/main.go:1.2,3.4 1 1\n" +
		module + "/internal/luascripts/acquire.go:1.2,3.4 1 12\n"
	want := []string{"internal/luascripts/acquire.go", "throttle/limiter.go"}
	if diff := cmp.Diff(want, coveredFiles([]byte(profile))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
