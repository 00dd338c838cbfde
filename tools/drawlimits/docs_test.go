package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headwayq/headway/throttle"
)

var docs = filepath.Join("..", "..", "docs")

// TestDocs: the page shows every picture, and each is of the limit it names.
func TestDocs(t *testing.T) {
	t.Parallel()
	page := read(t, "algorithms.md")
	for _, p := range pictures {
		if link := "](algorithms/" + p.file() + ")"; !strings.Contains(page, link) {
			t.Errorf("algorithms.md is without %s", link)
		}
		svg := read(t, filepath.Join("algorithms", p.file()))
		if got := elements(t, svg); got["grant"] != len(pattern) {
			t.Errorf("%s shows %d grants, want %d", p.file(), got["grant"], len(pattern))
		}
		if !strings.Contains(svg, ">"+p.limit.String()+"</title>") {
			t.Errorf("%s is not of %s: run `make docs`", p.file(), p.limit)
		}
		if len(svg) > 40_000 {
			t.Errorf("%s has %d bytes, want less than 40 KB", p.file(), len(svg))
		}
	}
	for _, limit := range sized {
		if !strings.Contains(page, "`"+limit.String()+"`") {
			t.Errorf("algorithms.md does not say what `%s` costs: run `make docs`", limit)
		}
	}
}

// TestEveryKind: what the parser knows is drawn. Its error names all kinds.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	_, err := throttle.ParseLimit("unknown 1/1s")
	if err == nil {
		t.Fatal("a limit of kind unknown was read")
	}
	_, list, ok := strings.Cut(err.Error(), "want ")
	list, _, _ = strings.Cut(list, ", or n/duration")
	kinds := strings.Split(list, ", ")
	drawn := map[string]bool{}
	for _, p := range pictures {
		drawn[p.limit.Kind()] = true
	}
	if !ok || len(kinds) < 8 {
		t.Fatalf("kinds %q of %q, want at least eight", kinds, err)
	}
	for _, kind := range kinds {
		if kind == "concurrent" { // it has no window to draw: leases end when they end
			continue
		}
		if !drawn[kind] {
			t.Errorf("%s has no picture", kind)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docs, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
