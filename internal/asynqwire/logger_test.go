package asynqwire

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// observedAsynqLogger returns a logger, what it wrote, and its clock.
func observedAsynqLogger(level zapcore.Level, drop func(string) bool) (*logger, *observer.ObservedLogs, *time.Time) {
	core, logs := observer.New(level)
	l := NewLogger(zap.New(core), drop).(*logger)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l.now = func() time.Time { return now }
	return l, logs, &now
}

// linesOf renders entries as "level message suppressed".
func linesOf(logs *observer.ObservedLogs) []string {
	var out []string
	for _, e := range logs.TakeAll() {
		s := e.Level.String() + " " + e.Message
		if n, ok := e.ContextMap()["suppressed"]; ok {
			s += fmt.Sprintf(" suppressed=%d", n)
		}
		out = append(out, s)
	}
	return out
}

func TestLogLevels(t *testing.T) {
	t.Parallel()
	l, logs, _ := observedAsynqLogger(zapcore.InfoLevel, nil)
	l.Debug("not enabled")
	l.Info("a", "b", 1, 2)
	l.Warn("warned")
	l.Error("failed")
	l.Fatal("fatal, yet we go on")
	for _, e := range logs.All() {
		if got := e.ContextMap()["component"]; got != "asynq" {
			t.Errorf("component of %q = %v, want asynq", e.Message, got)
		}
	}
	want := []string{"info ab1 2", "warn warned", "error failed", "error fatal, yet we go on"}
	if diff := cmp.Diff(want, linesOf(logs)); diff != "" {
		t.Errorf("lines differ (-want +got):\n%s", diff)
	}
}

func TestLogNil(t *testing.T) {
	t.Parallel()
	// a nil asynq.Logger would make asynq log to stderr
	l := NewLogger(nil, func(string) bool { t.Error("drop was asked"); return false })
	l.Debug("a")
	l.Error("b")
	l.Fatal("c")
}

func TestLogDrop(t *testing.T) {
	t.Parallel()
	l, logs, _ := observedAsynqLogger(zapcore.DebugLevel, func(msg string) bool {
		id, ok := RetryExhaustedID(msg)
		return ok && id == "deferred"
	})
	l.Warn("Retry exhausted for task id=deferred")
	l.Warn("Retry exhausted for task id=failed") // a dropped line starts no quiet time
	l.Warn("Retry exhausted for task id=deferred")
	if diff := cmp.Diff([]string{"warn Retry exhausted for task id=failed"}, linesOf(logs)); diff != "" {
		t.Errorf("lines differ (-want +got):\n%s", diff)
	}
}

func TestLogFlood(t *testing.T) {
	t.Parallel()
	l, logs, now := observedAsynqLogger(zapcore.DebugLevel, nil)
	start := *now
	for _, step := range []struct {
		at    time.Duration
		level func(...any)
		msg   string
		want  []string
	}{
		{0, l.Error, "Dequeue error: dial tcp 127.0.0.1:6379", []string{"error Dequeue error: dial tcp 127.0.0.1:6379"}},
		{time.Second, l.Error, "Dequeue error: dial tcp 127.0.0.2:6379", nil},
		{time.Second, l.Warn, "Dequeue error: dial tcp 127.0.0.1:6379", []string{"warn Dequeue error: dial tcp 127.0.0.1:6379"}},
		{time.Second, l.Error, "Dequeue error: EOF", []string{"error Dequeue error: EOF"}},
		{3*time.Second - 1, l.Error, "Dequeue error: dial tcp 127.0.0.1:6379", nil},
		{3 * time.Second, l.Error, "Dequeue error: dial tcp 127.0.0.1:6379", []string{"error Dequeue error: dial tcp 127.0.0.1:6379 suppressed=2"}},
		{4 * time.Second, l.Error, "Dequeue error: dial tcp 127.0.0.1:6379", nil},
		{9 * time.Second, l.Error, "Dequeue error: dial tcp 127.0.0.1:6379", []string{"error Dequeue error: dial tcp 127.0.0.1:6379 suppressed=1"}},
		{15 * time.Second, l.Error, "Dequeue error: dial tcp 127.0.0.1:6379", []string{"error Dequeue error: dial tcp 127.0.0.1:6379"}},
	} {
		*now = start.Add(step.at)
		step.level(step.msg)
		if diff := cmp.Diff(step.want, linesOf(logs)); diff != "" {
			t.Errorf("at %v, %q: lines differ (-want +got):\n%s", step.at, step.msg, diff)
		}
	}
}

// Lines that differ in their first word would fill the memory.
func TestLogKindsAreBounded(t *testing.T) {
	t.Parallel()
	l, logs, now := observedAsynqLogger(zapcore.DebugLevel, nil)
	const extra = 1000
	word := func(i int) string {
		return string(rune('a'+i/676%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i%26))
	}
	for i := range asynqLogKinds + extra {
		l.Info(word(i))
	}
	// one more line for all of the further kinds
	if got := logs.Len(); got != asynqLogKinds+1 {
		t.Errorf("%d lines, want %d", got, asynqLogKinds+1)
	}
	logs.TakeAll()
	*now = now.Add(asynqLogQuiet + 1)
	l.Info("new")
	if diff := cmp.Diff([]string{"info new"}, linesOf(logs)); diff != "" {
		t.Errorf("lines differ (-want +got):\n%s", diff)
	}
	if got := len(l.kinds); got > 2 { // the new one, and the shared one for its count
		t.Errorf("%d kinds are kept after the quiet time, want 2", got)
	}
}

// written is a logger of asynq's kind that keeps its lines.
type written []string

func (w *written) Debug(args ...any) { w.add("debug", args) }
func (w *written) Info(args ...any)  { w.add("info", args) }
func (w *written) Warn(args ...any)  { w.add("warn", args) }
func (w *written) Error(args ...any) { w.add("error", args) }
func (w *written) Fatal(args ...any) { w.add("fatal", args) }

func (w *written) add(level string, args []any) { *w = append(*w, level+" "+fmt.Sprint(args...)) }

func TestLogToALoggerOfTheUser(t *testing.T) {
	t.Parallel()
	var got written
	l := Collapse(&got, func(msg string) bool { return msg == "dropped" }).(*logger)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l.now = func() time.Time { return now }
	l.Warn("dropped")
	l.Debug("a")
	l.Info("b")
	for range 3 {
		l.Error("Dequeue error: EOF")
	}
	l.Warn(`failed for group="+4917"`)
	now = now.Add(asynqLogQuiet)
	l.Error("Dequeue error: EOF")
	l.Fatal("fatal, yet we go on")
	want := written{"debug a", "info b", "error Dequeue error: EOF", `warn failed for group="..."`, "error Dequeue error: EOF (suppressed=2)", "error fatal, yet we go on"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines differ (-want +got):\n%s", diff)
	}
}

func TestLogConcurrently(t *testing.T) {
	t.Parallel()
	l, logs, _ := observedAsynqLogger(zapcore.DebugLevel, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				l.Warn(fmt.Sprintf("Lease reset failed for %d", i))
			}
		})
	}
	wg.Wait()
	if got := logs.Len(); got != 1 {
		t.Errorf("%d lines, want 1", got)
	}
}

func TestLogPrefix(t *testing.T) {
	t.Parallel()
	for msg, want := range map[string]string{
		"All queues are empty":                                    "All queues are empty",
		"Retry exhausted for task id=b":                           "Retry exhausted for task ",
		"Lease reset failed for ab-1; lease deadline: 2026":       "Lease reset failed for ",
		"Failed to extend lease for tasks [a b]: EOF":             "Failed to extend lease for tasks ",
		`Failed to list groups in queue: "default"`:               "Failed to list groups in queue: ",
		"Dequeue error: UNKNOWN: dial tcp 127.0.0.1:1: refused":   "Dequeue error: UNKNOWN: dial tcp ",
		"scheduler enqueued a task: &{ID:a Payload:[115 101 99]}": "scheduler enqueued a task: &{ID:a ",
		"7": "",
		"":  "",
	} {
		if got := constantPrefix(msg); got != want {
			t.Errorf("constantPrefix(%q) = %q, want %q", msg, got, want)
		}
	}
}

func TestLogUserData(t *testing.T) {
	t.Parallel()
	for msg, want := range map[string]string{
		"scheduler enqueued a task: &{ID:a Payload:[115 101 99]}":                "scheduler enqueued a task",
		`No aggregation needed at this time: queue="q" group="+49 170"`:          `No aggregation needed at this time: queue="q" group="..."`,
		`Failed (queue="q", group="a\"b", setID="s"): EOF`:                       `Failed (queue="q", group="...", setID="s"): EOF`,
		`Failed: group="no end`:                                                  `Failed: group=`,
		`Could not remove task id=7 type="sms" from "asynq:{q}:active" err: EOF`: `Could not remove task id=7 type="sms" from "asynq:{q}:active" err: EOF`,
	} {
		if got := withoutUserData(msg); got != want {
			t.Errorf("withoutUserData(%q) = %q, want %q", msg, got, want)
		}
		l, logs, _ := observedAsynqLogger(zapcore.DebugLevel, nil)
		l.Debug(msg)
		if diff := cmp.Diff([]string{"debug " + want}, linesOf(logs)); diff != "" {
			t.Errorf("lines differ (-want +got):\n%s", diff)
		}
	}
}

func TestLogRetryExhausted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		msg, id string
		ok      bool
	}{
		{"Retry exhausted for task id=7", "7", true},
		{"Retry exhausted for task id=a b=c", "a b=c", true}, // an id may hold anything
		{"Retry exhausted for task id=", "", false},
		{"revoke task id=7", "", false},
		{"", "", false},
	} {
		id, ok := RetryExhaustedID(tc.msg)
		if ok != tc.ok || ok && id != tc.id {
			t.Errorf("retryExhaustedID(%q) = %q, %v, want %q, %v", tc.msg, id, ok, tc.id, tc.ok)
		}
	}
}
