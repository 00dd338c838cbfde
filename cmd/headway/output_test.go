package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/tail"
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

// The share of a limit that was used is not known of slots, and where nothing happened.
func TestUsedOf(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]string{"sliding 1/20m": "50%", "concurrent 3 lease 5s": "-", "": "-"} {
		if got := usedOf(inspect.Point{Limit: limit, Used: 0.5}); got != want {
			t.Errorf("of %q used is %s, want %s", limit, got, want)
		}
	}
}

// A decision does nothing to a terminal, whatever its texts hold.
func TestTailLineShowsHostileText(t *testing.T) {
	t.Parallel()
	const nasty = "a\x1b[2J\nb"
	line := tailLine(&table{}, tail.Line{Process: nasty, Queue: nasty, Type: nasty, Task: nasty, Outcome: nasty, Rules: []string{nasty}, Reason: nasty})
	if strings.ContainsAny(line, "\x1b\n") || strings.Count(line, `a\x1b[2J\nb`) != 7 {
		t.Errorf("the line is %q", line)
	}
}
