package imports

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestDocsNameFilesThatExist: each Go file that a page names by its path is there, and so is each file
// that the comment of a package says to read.
func TestDocsNameFilesThatExist(t *testing.T) {
	t.Parallel()
	const root = "../.."
	look := func(pages string, name *regexp.Regexp, dir func(page string) string) {
		found, err := filepath.Glob(filepath.Join(root, pages))
		if err != nil || len(found) == 0 {
			t.Fatalf("%d files %s, %v", len(found), pages, err)
		}
		named := 0
		for _, page := range found {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range name.FindAllStringSubmatch(string(text), -1) {
				named++
				if files, err := filepath.Glob(filepath.Join(dir(page), m[1])); err != nil || len(files) == 0 {
					t.Errorf("%s names %s, which does not exist", page, m[1])
				}
			}
		}
		if named == 0 {
			t.Errorf("no file is named in %s", pages)
		}
	}
	inText := regexp.MustCompile("`((?:[a-z0-9_-]+/)+[a-z0-9_]+\\.go)`")
	look("*.md", inText, func(string) string { return root })
	look("docs/*.md", inText, func(string) string { return root })
	inList := regexp.MustCompile(`(?m)^//\t([a-z0-9_*]+\.go) +[A-Za-z]`)
	look("*/doc.go", inList, filepath.Dir)
	look("internal/*/doc.go", inList, filepath.Dir)
}
