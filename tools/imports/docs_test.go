package imports

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	pathInText = regexp.MustCompile("`((?:[a-z0-9_-]+/)+[a-z0-9_]+\\.go)`")
	listLine   = regexp.MustCompile(`(?m)^//\t.*`)
	nameInList = regexp.MustCompile(`[a-z0-9_*]+\.go\b`)
)

// TestDocsNameFilesThatExist: each Go file that a page names by its path is there, and so is each file
// in the lists of the packages' comments.
func TestDocsNameFilesThatExist(t *testing.T) {
	t.Parallel()
	named := 0
	each := func(pages string, check func(page, text string)) {
		found, err := filepath.Glob(filepath.Join(root, pages))
		if err != nil || len(found) == 0 {
			t.Fatalf("%d files %s, %v", len(found), pages, err)
		}
		for _, page := range found {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			check(page, string(text))
		}
	}
	exists := func(page, dir, name string) {
		named++
		if files, err := filepath.Glob(filepath.Join(dir, name)); err != nil || len(files) == 0 {
			t.Errorf("%s names %s, which does not exist", page, name)
		}
	}
	inText := func(page, text string) {
		for _, m := range pathInText.FindAllStringSubmatch(text, -1) {
			exists(page, root, m[1])
		}
	}
	inLists := func(page, text string) {
		for _, line := range listLine.FindAllString(text, -1) {
			for _, name := range nameInList.FindAllString(line, -1) {
				exists(page, filepath.Dir(page), name)
			}
		}
	}
	each("*.md", inText)
	each("docs/*.md", inText)
	each("*/doc.go", inLists)
	each("*/*/doc.go", inLists)
	if named < 50 {
		t.Errorf("%d files are named, want the many that there were", named)
	}
}
