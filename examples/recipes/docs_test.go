package recipes

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages are those whose code is here. Of the README only YAML is: its program is
// examples/quickstart.
var pages = []string{"policies.md", "booking.md", "inspect.md", "httplimit.md", "schedules.md", "batches.md", readme}

const readme = "../README.md"

// block is a piece of code in a page.
type block struct{ page, heading, language, text string }

var fence = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$|^#+ ([^\n]+)$")

// blocks are all pieces of code of the pages, each with the heading above it.
func blocks(t *testing.T) []block {
	t.Helper()
	var out []block
	for _, page := range pages {
		heading := ""
		for _, m := range fence.FindAllStringSubmatch(read(t, filepath.Join("..", "..", "docs", page)), -1) {
			if m[3] != "" {
				heading = m[3]
				continue
			}
			out = append(out, block{page, heading, m[1], m[2]})
		}
	}
	return out
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blockOf is the one block of a language under a heading.
func blockOf(t *testing.T, heading, language string) string {
	t.Helper()
	var found []string
	for _, b := range blocks(t) {
		if b.heading == heading && b.language == language {
			found = append(found, b.text)
		}
	}
	if len(found) != 1 {
		t.Fatalf("the pages have %d blocks of %s under %q, want 1", len(found), language, heading)
	}
	return found[0]
}

func yamlOf(t *testing.T, heading string) string {
	t.Helper()
	return blockOf(t, heading, "yaml")
}

// sources are the files of this package that are, or are not, tests.
func sources(t *testing.T, tests bool) (names []string, all string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") == tests && name != "docs_test.go" {
			names = append(names, name)
			all += read(t, name)
		}
	}
	return names, all
}

// importsOf is the import declaration that a function needs: packages of Go, of others, and
// of this module.
func importsOf(file *ast.File, fn *ast.FuncDecl) string {
	used := make(map[string]bool)
	ast.Inspect(fn, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Obj == nil { // no variable of the function
				used[id.Name] = true
			}
		}
		return true
	})
	var groups [3][]string
	for _, spec := range file.Imports {
		name := strings.Trim(spec.Path.Value, `"`)
		base := name[strings.LastIndex(name, "/")+1:]
		if base == "v9" {
			base = "redis"
		}
		if !used[base] {
			continue
		}
		group := 0
		switch {
		case strings.HasPrefix(name, "github.com/headwayq/"):
			group = 2
		case strings.Contains(name, "."):
			group = 1
		}
		groups[group] = append(groups[group], "\t"+spec.Path.Value+"\n")
	}
	var parts []string
	for _, g := range groups {
		if len(g) > 0 {
			parts = append(parts, strings.Join(g, ""))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "import (\n" + strings.Join(parts, "\n") + ")\n\n"
}

// TestPagesShowTheRecipes: each function of this package is in one page, as it
// stands here, under the imports that it needs, and has a test of its name; no page has
// other code.
func TestPagesShowTheRecipes(t *testing.T) {
	t.Parallel()
	shown := blocks(t)
	names, _ := sources(t, false)
	_, tests := sources(t, true)
	var recipes []string
	for _, name := range names {
		src := read(t, name)
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			text := importsOf(file, fn) + src[fset.Position(fn.Pos()).Offset:fset.Position(fn.End()).Offset] + "\n"
			recipes = append(recipes, text)
			is := func(b block) bool { return b.language == "go" && b.text == text }
			if !slices.ContainsFunc(shown, is) {
				t.Errorf("no page shows %s as it is in %s, under its imports; copy this there:\n%s", fn.Name.Name, name, text)
			}
			if !strings.Contains(tests, "\nfunc Test"+fn.Name.Name+"(") {
				t.Errorf("%s has no Test%s", fn.Name.Name, fn.Name.Name)
			}
		}
	}
	for _, b := range shown {
		if b.language == "go" && b.page != readme && !slices.Contains(recipes, b.text) {
			t.Errorf("%s, %q: this code is no recipe of this package:\n%s", b.page, b.heading, b.text)
		}
	}
}

// TestPagesYAMLIsUsed: each YAML of the pages is read and used by a test.
func TestPagesYAMLIsUsed(t *testing.T) {
	t.Parallel()
	_, tests := sources(t, true)
	n := 0
	for _, b := range blocks(t) {
		if b.language != "yaml" {
			continue
		}
		n++
		if !strings.Contains(tests, `Of(t, "`+b.heading+`")`) {
			t.Errorf("%s, %q: no test uses this YAML", b.page, b.heading)
		}
	}
	if n < 5 {
		t.Errorf("the pages have %d blocks of YAML, want more", n)
	}
}
