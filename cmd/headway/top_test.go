package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/headwayq/headway/inspect"
)

// busyView has more of everything than fits on a small terminal.
func busyView() topView {
	now := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	v := topView{now: now, all: 3}
	for n := range 6 {
		v.queues = append(v.queues, inspect.QueueStatus{
			Queue: fmt.Sprint("queue", n), Pending: n, Active: 1, Waiting: 10 * n, Overdue: n, Next: now.Add(time.Duration(n) * time.Second), Paused: n == 2,
		})
		v.rules = append(v.rules, topRule{rule: fmt.Sprint("rule", n), is: "gcra 100/1s burst 20", hour: inspect.Point{
			Granted: 100, Deferred: int64(60 - n), WaitedP99: 90 * time.Second, Used: 0.5, Limit: "gcra 100/1s burst 20",
		}})
	}
	v.rules[0].closed = now.Add(time.Hour)
	v.rules[1].problem = "the stored limit can't be read: it has a text that is far too long to be shown in a column"
	for n := range 20 {
		v.keys = append(v.keys, topKey{rule: "rule0", key: fmt.Sprintf("+1…%03d", n), waiting: n, last: now.Add(time.Duration(20-n) * time.Minute)})
		v.planned[3*n] = n
	}
	for n := range 3 {
		v.processes = append(v.processes, inspect.Process{
			Kind: "pool", Host: "app", PID: 100 + n, Since: now.Add(-time.Hour), Busy: n, Workers: 10, Queues: map[string]int{"queue0": 1},
		})
	}
	return v
}

// A view fits on its terminal, and looks as it did when somebody looked at it.
func TestTopFits(t *testing.T) {
	t.Parallel()
	away := busyView()
	away.fault = "redis: connection \x1b[31mrefused"
	for name, tt := range map[string]struct {
		view          topView
		width, height int
	}{
		"80x24": {busyView(), 80, 24}, "120x40": {busyView(), 120, 40}, "40x9": {busyView(), 40, 9},
		"away": {away, 80, 24}, "nothing": {topView{now: busyView().now}, 80, 24},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines := tt.view.lines(tt.width, tt.height, 2*time.Second)
			if len(lines) > tt.height {
				t.Errorf("%d lines, want at most %d", len(lines), tt.height)
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); n > tt.width || strings.ContainsRune(line, '\x1b') {
					t.Errorf("a line of %d, want at most %d: %q", n, tt.width, line)
				}
			}
			want, err := os.ReadFile(filepath.Join("testdata", "top", name+".txt"))
			if got := strings.Join(lines, "\n") + "\n"; err != nil || got != string(want) {
				t.Errorf("%v\n%s", err, got)
			}
		})
	}
	for _, size := range [][2]int{{0, 0}, {1, 1}, {3, 5}, {500, 200}} {
		for _, line := range busyView().lines(size[0], size[1], time.Second) {
			if utf8.RuneCountInString(line) > size[0] {
				t.Errorf("%v: a line %q", size, line)
			}
		}
	}
}

// What was not looked at is told as such, and not as nothing.
func TestTopSaysWhatItDidNotSee(t *testing.T) {
	t.Parallel()
	v := busyView()
	v.left, v.rules[5].unasked = 7, true
	text := strings.Join(v.lines(120, 60, time.Second), "\n")
	for _, want := range []string{"of the first 6 queues by name: 7 more were not looked at", "the last hour of 1 rule was not asked for"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "rule5" && (f[1] != "-" || f[2] != "-") {
			t.Errorf("a rule that was not asked is shown as %q", line)
		}
	}
}

// Without a terminal it says what to use instead.
func TestTopNeedsTerminal(t *testing.T) {
	t.Parallel()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var stdout, stderr bytes.Buffer
	for _, e := range []env{{stdin: strings.NewReader("q"), stdout: &stdout, stderr: &stderr}, {stdin: file, stdout: file, stderr: &stderr}} {
		stderr.Reset()
		if code := command(t.Context(), []string{"top"}, e); code != exitUsage || !strings.Contains(stderr.String(), "use status --watch") {
			t.Errorf("exit code %d, want %d; %s", code, exitUsage, &stderr)
		}
	}
	stderr.Reset()
	code := command(t.Context(), []string{"top", "-o", "json"}, env{stdin: file, stdout: file, stderr: &stderr})
	if code != exitUsage || !strings.Contains(stderr.String(), "status -o json") {
		t.Errorf("exit code %d, want %d; %s", code, exitUsage, &stderr)
	}
}
