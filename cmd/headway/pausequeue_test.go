package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headwayq/headway/internal/redistest"
)

// A queue that does not exist is not paused in silence. One exists when something was enqueued there,
// when a pool serves it, or when it is paused.
func TestPauseOfAQueueThatDoesNotExist(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	rdb := srv.Client(t)
	if err := rdb.SAdd(t.Context(), "asynq:queues", "default").Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), "asynq:{mistyped}:paused", "1", 0).Err(); err != nil { // by an earlier release
		t.Fatal(err)
	}
	sayProcesses(t, rdb, `{"kind":"pool","queues":{"served":1}}`, `{"kind":"feeder","queues":{"fed":1}}`)
	for _, tt := range []struct {
		does, queue, format string
		code                int
		stdout, stderr      string
	}{
		{"pause", "default", "table", exitOK, "queue default is paused\n", ""},
		{"resume", "default", "json", exitOK, "\"queue\": \"default\",\n  \"is\": \"resumed\"\n", ""},
		{"pause", "served", "table", exitOK, "queue served is paused\n", ""},
		{"resume", "served", "table", exitOK, "queue served is resumed\n", ""},
		{"resume", "mistyped", "table", exitOK, "queue mistyped is resumed\n", ""},
		{"pause", "mistyped", "table", exitMissing, "", `not found: queue "mistyped"`},
		{"pause", "nowhere", "table", exitMissing, "", `not found: queue "nowhere"`},
		{"resume", "nowhere", "table", exitMissing, "", `not found: queue "nowhere"`},
		{"pause", "fed", "table", exitMissing, "", `not found: queue "fed"`},
		{"pause", "", "table", exitUsage, "", "--queue is blank"},
		{"resume", " ", "table", exitUsage, "", "--queue is blank"},
	} {
		var stdout, stderr bytes.Buffer
		args := []string{tt.does, "-q", tt.queue, "-o", tt.format, "--write", "--reason", "x", "--redis", srv.Addr()}
		if code := command(t.Context(), args, env{stdout: &stdout, stderr: &stderr}); code != tt.code ||
			!strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) || (tt.stdout == "") != (stdout.Len() == 0) {
			t.Errorf("%s %q: exit code %d, want %d; %q, %q", tt.does, tt.queue, code, tt.code, &stdout, &stderr)
		}
	}
	if paused, err := rdb.Keys(t.Context(), "asynq:*:paused").Result(); err != nil || len(paused) > 0 {
		t.Errorf("at the end %q are paused, %v", paused, err)
	}
}
