package main

import (
	"errors"
	"strings"
	"testing"
	"time"

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
		if got := usedOf(inspect.Point{Limit: limit, Used: 0.5}, false); got != want {
			t.Errorf("of %q used is %s, want %s", limit, got, want)
		}
	}
	if got := usedOf(inspect.Point{Limit: "sliding 1/20m"}, true); got != "-" {
		t.Errorf("where keys have limits of their own used is %s, want -", got)
	}
}

// A key that can't be asked about stands in the table with what is wrong.
func TestKeysThatCannotBeRead(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	var tab table
	keysAnswer{[]inspect.KeyStatus{{Key: "+…100", Permits: 7, Now: now, Problem: "it can't be read"}, {Key: "+…101", Waiting: 2, Next: now, Now: now}}}.table(&tab)
	lines := strings.Split(tab.String(), "\n")
	if want := "+…100 - not known - 7 it can't be read"; strings.Join(strings.Fields(lines[1]), " ") != want {
		t.Errorf("the line is %q, want %q", lines[1], want)
	}
	if want := "+…101 2 now - 0"; strings.Join(strings.Fields(lines[2]), " ") != want {
		t.Errorf("the line is %q, want %q", lines[2], want)
	}
}

// The audit list says which task, batch or key a change is about, and on which queue.
func TestAuditSaysWhatAChangeIsAbout(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]inspect.Change{
		"cancel batch default letter":   {Action: "cancel batch", Queue: "default", Batch: "letter"},
		"cancel phone +1…002 default":   {Action: inspect.ActionCancel, Rule: "phone", Key: "+1…002", Queue: "default"},
		"cancel default t1":             {Action: inspect.ActionCancel, Queue: "default", Task: "t1"},
		"close phone +1…002":            {Action: inspect.ActionClose, Rule: "phone", Key: "+1…002"},
		"pause queue default":           {Action: inspect.ActionPauseQueue, Queue: "default"},
		"set limit phone":               {Action: inspect.ActionSetLimit, Rule: "phone"},
		"set weight default letter 40%": {Action: "set weight", Queue: "default", Batch: "letter", Value: "40%"},
	} {
		c.Who = "ann"
		var tab table
		auditAnswer{[]inspect.Change{c}}.table(&tab)
		line := strings.Join(strings.Fields(strings.Split(tab.String(), "\n")[1]), " ")
		if !strings.HasPrefix(line, "- ann "+want) {
			t.Errorf("the line is %q, want %q", line, want)
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
