package main

import (
	"errors"
	"strings"
	"testing"
)

// Whatever stands in Redis or in a file, a table does nothing to a terminal but colour what the
// command colours, and its columns stay below each other.
func TestTablesShowHostileText(t *testing.T) {
	t.Parallel()
	const nasty = "a\x1b[31mb\x1b[2J\u202e\nc\x00\xffd"
	const seen = `a\x1b[31mb\x1b[2J\u202e\nc\x00\xffd`
	for _, c := range []struct {
		colour     bool
		begin, end string
	}{{}, {true, "\x1b[31m", "\x1b[0m"}} {
		tab := &table{colour: c.colour}
		tab.row(nasty, 7, tab.bad(nasty))
		tab.row("x", "y", "z")
		tab.line("%s, %v, %d", nasty, errors.New(nasty), 5)
		want := seen + "  7  " + c.begin + seen + c.end + "\n" + "x" + strings.Repeat(" ", len(seen)-1) + "  y  z\n" + seen + ", " + seen + ", 5\n"
		if got := tab.String(); got != want {
			t.Errorf("with colours: %t, the table is\n%q, want\n%q", c.colour, got, want)
		}
	}
	for _, text := range []string{"", "µs → 5…", `"quoted" \ back`, "日本語"} {
		if got := shown(text); got != text {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
}
