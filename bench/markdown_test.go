package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWriteDocs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "benchmarks"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "benchmarks", "gone.svg"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := sample(&bytes.Buffer{}).writeDocs(dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, filepath.Join(dir, "benchmarks")); !slices.Equal(got, []string{"acquire-hot.svg"}) {
		t.Errorf("pictures = %v, want the one of this run", got)
	}
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, part := range []string{
		"# Benchmarks\n", "Redis 7.0.15", "5 rounds", "make bench", "## Targets\n", "## Acquires a second\n",
		"![Acquires a second](benchmarks/acquire-hot.svg)",
		"| acquires | 100 /s | other | 50 /s | 2.00 | ≥ 2.5 x | **no** |",
		`| a \| key | 104 bytes |  |  |  |  |  |`,
		"mennanov",
	} {
		if !strings.Contains(page, part) {
			t.Errorf("the page is without %q:\n%s", part, page)
		}
	}
	if n := strings.Count(page, "| acquires |"); n != 2 { // with the targets, and in its section
		t.Errorf("the row with a target stands %d times, want 2", n)
	}
	if host, err := os.Hostname(); err == nil && len(host) > 3 && strings.Contains(page, host) {
		t.Errorf("the page names the host")
	}
	if !strings.HasSuffix(page, "\n") || strings.HasSuffix(page, "\n\n") {
		t.Errorf("the page ends %q", page[max(0, len(page)-10):])
	}
}

func TestParagraph(t *testing.T) {
	t.Parallel()
	const word = "word "
	got := paragraph(strings.Repeat(word, 100))
	if strings.Join(strings.Fields(got), " ")+" " != strings.Repeat(word, 100) {
		t.Errorf("paragraph lost words: %q", got)
	}
	for line := range strings.Lines(got) {
		if n := len(strings.TrimSuffix(line, "\n")); n > lineMax {
			t.Errorf("a line has %d characters, want %d at most", n, lineMax)
		}
	}
	if got := paragraph("one  two\nthree"); got != "one two three\n\n" {
		t.Errorf("paragraph = %q", got)
	}
}

// names lists a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}
