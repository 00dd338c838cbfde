package luascripts

import (
	"strings"
	"testing"
)

// The text that Redis holds keeps the lines of the files, without comments.
func TestBareKeepsLines(t *testing.T) {
	t.Parallel()
	const text = "-- a comment\n  local a = \"-- no \\\" comment\" -- one\n\nreturn a\n"
	if got, want := bare(text), "\nlocal a = \"-- no \\\" comment\"\n\nreturn a\n"; got != want {
		t.Errorf("bare = %q, want %q", got, want)
	}
	for _, name := range ModuleNames() {
		m := modules()[name]
		if got, want := strings.Count(m.text, "\n"), strings.Count(m.raw, "\n"); got != want {
			t.Errorf("%s has %d lines in Redis, %d in its file", name, got, want)
		}
	}
}
