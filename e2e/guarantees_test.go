package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/guarantees.md names tests for each guarantee, and all of them exist.
func TestGuaranteesNameTheirTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "## What Headway guarantees")
	promised, rest, _ := strings.Cut(rest, "## What shows it")
	shown, _, _ := strings.Cut(rest, "## Where the guarantees end")
	rows := regexp.MustCompile(`(?m)^\| ([A-Z][^|]*) \| (.*) \|$`)
	names := func(table string) (all []string) {
		for _, row := range rows.FindAllStringSubmatch(table, -1) {
			all = append(all, row[1])
		}
		return all
	}
	has := names(shown)
	for _, name := range names(promised) {
		if !slices.Contains(has, name) {
			t.Errorf("no test is named for %q", name)
		}
	}
	tests := regexp.MustCompile("`([a-z0-9/]+)\\.(Test\\w+)`").FindAllStringSubmatch(shown, -1)
	if len(tests) < len(has) {
		t.Errorf("%d tests are named for %d guarantees", len(tests), len(has))
	}
	for _, test := range tests {
		files, err := os.ReadDir("../" + test[1])
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(f os.DirEntry) bool {
			text, err := os.ReadFile("../" + test[1] + "/" + f.Name())
			return err == nil && strings.HasSuffix(f.Name(), "_test.go") && strings.Contains(string(text), "\nfunc "+test[2]+"(t *testing.T) {")
		}) {
			t.Errorf("there is no test %s in %s", test[2], test[1])
		}
	}
}
