package luascripts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the pages call a script is one.
func TestDocsNameScriptsThatExist(t *testing.T) {
	t.Parallel()
	exists := make(map[string]bool)
	files, err := filepath.Glob("lua/*/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, f := range files {
		exists[strings.TrimSuffix(filepath.Base(f), ".lua")] = true
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	named := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range regexp.MustCompile("`(?:[a-z/]+/)?([a-z_]+)\\.lua`").FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
		for _, m := range regexp.MustCompile("(?m)^\\| `hw:.*\\| ([a-z_, ]+) \\|$").FindAllStringSubmatch(string(text), -1) {
			names = append(names, strings.Split(m[1], ", ")...) // the scripts that use a key
		}
		for _, name := range names {
			if named++; !exists[name] && name != "none" && name != "no script" {
				t.Errorf("%s names the script %q, which does not exist", filepath.Base(page), name)
			}
		}
	}
	if named < 50 {
		t.Errorf("%d names of scripts were found, want more: did the form of the pages change?", named)
	}
}
