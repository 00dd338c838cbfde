// Package beforeafter runs the two programs below it: the same application with plain asynq,
// and with Headway.
package beforeafter

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

const (
	phones   = 5 // the last of them is not a phone number
	messages = 3 // for each phone, and as many e-mails
	all      = 2 * phones * messages
)

// outcome is what asynq keeps of a task.
type outcome struct {
	State, Result, LastErr string
	Retried, MaxRetry      int
}

// app is one of the two programs on a Redis of its own.
type app struct {
	t         *testing.T
	srv       *redistest.Server
	inspector *asynq.Inspector
	log       bytes.Buffer
	stop      func()
}

// runApp builds a program and starts it, as its user would.
func runApp(t *testing.T, srv *redistest.Server, name string, args ...string) *app {
	t.Helper()
	a := &app{t: t, srv: srv}
	a.inspector = asynq.NewInspectorFromRedisClient(a.srv.Client(t))
	bin := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", bin, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Env = append(os.Environ(), "REDIS="+a.srv.Addr())
	cmd.Stdout, cmd.Stderr = &a.log, &a.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a.stop = func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s, after SIGTERM: %v, want a clean end; its log:\n%s", name, err, &a.log)
		}
	}
	return a
}

// tasks are all tasks of one state.
func (a *app) tasks(list func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error)) []*asynq.TaskInfo {
	a.t.Helper()
	tasks, err := list("default", asynq.PageSize(all+1))
	if err != nil {
		a.t.Fatal(err)
	}
	return tasks
}

// waitFor waits until so many tasks have ended, and as many as else wait.
func (a *app) waitFor(ended int) {
	a.t.Helper()
	look, deadline := time.NewTicker(20*time.Millisecond), time.After(60*time.Second)
	defer look.Stop()
	for {
		info, err := a.inspector.GetQueueInfo("default")
		if err == nil && info.Completed+info.Archived == ended && info.Retry == all-ended && info.Active == 0 {
			return
		}
		select {
		case <-deadline:
			a.stop()
			a.t.Fatalf("queue = %+v, %v, want %d ended and %d waiting; the program's log:\n%s", info, err, ended, all-ended, &a.log)
		case <-look.C:
		}
	}
}

// outcomes are what became of the tasks that have ended, by their ids.
func (a *app) outcomes() map[string]outcome {
	a.t.Helper()
	out := make(map[string]outcome)
	for _, x := range slices.Concat(a.tasks(a.inspector.ListCompletedTasks), a.tasks(a.inspector.ListArchivedTasks)) {
		out[x.ID] = outcome{x.State.String(), string(x.Result), x.LastErr, x.Retried, x.MaxRetry}
	}
	return out
}

// counts are what asynq counted on this day and the day before.
func (a *app) counts() (processed, failed int) {
	a.t.Helper()
	days, err := a.inspector.History("default", 2)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, day := range days {
		processed += day.Processed
		failed += day.Failed
	}
	return processed, failed
}

// TestSameResults: under a limit that never binds, and under one that does, each task ends
// as it does with plain asynq: same result, same error, same count of attempts.
func TestSameResults(t *testing.T) {
	t.Parallel()
	before := runApp(t, redistest.Start(t, redistest.Own()), "before")
	before.waitFor(all)
	before.stop()
	want := before.outcomes()
	processed, failed := before.counts()
	if failed != phones+messages {
		t.Fatalf("plain asynq counts %d failed attempts, want an e-mail of each of %d customers, and %d messages to what is not a phone", failed, phones, messages)
	}
	for _, limit := range []string{"1000/60s", "1/1s"} {
		t.Run(strings.ReplaceAll(limit, "/", " in "), func(t *testing.T) {
			t.Parallel()
			after := runApp(t, redistest.Start(t, redistest.Own()), "after", "-limit", limit)
			after.waitFor(all)
			after.stop()
			if diff := cmp.Diff(want, after.outcomes()); diff != "" {
				t.Errorf("what became of the tasks, without (-) and with the limit (+):\n%s", diff)
			}
			if p, f := after.counts(); p != processed || f != failed {
				t.Errorf("asynq counts %d attempts and %d failures, want %d and %d as without the limit", p, f, processed, failed)
			}
		})
	}
}

// TestTheLimitHolds: one message of each phone runs, and the others wait for an hour of their
// own each, by Redis' clock. What has no limit runs as ever.
func TestTheLimitHolds(t *testing.T) {
	t.Parallel()
	after := runApp(t, redistest.Start(t, redistest.Own()), "after", "-limit", "1/1h")
	after.waitFor(phones + phones*messages)
	after.stop()
	ran := make(map[string]int)
	for id := range after.outcomes() {
		parcel, rest, _ := strings.Cut(strings.TrimPrefix(id, "parcel-"), "-")
		_, typ, _ := strings.Cut(rest, "-")
		ran[typ+" "+parcel]++
	}
	want := make(map[string]int)
	for i := range phones {
		want[fmt.Sprint("sms:send ", i+1)], want[fmt.Sprint("email:send ", i+1)] = 1, messages
	}
	if diff := cmp.Diff(want, ran); diff != "" {
		t.Errorf("tasks that ran (want -, got +):\n%s", diff)
	}

	inspector, err := inspect.New(after.srv.Client(t), inspect.Config{Policies: []queue.Policy{{
		Type:  "sms:send",
		Rules: []queue.Rule{{Name: "phone", Limit: throttle.Sliding(1, time.Hour), Key: queue.MustJSONKey("$.to")}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	instants := make(map[string][]time.Time) // by parcel
	for _, x := range after.tasks(after.inspector.ListRetryTasks) {
		w, err := inspector.Explain(t.Context(), "default", x.ID)
		if err != nil || w.State != inspect.StateLimit || w.Rule != "phone" || !w.At.After(w.Now) {
			t.Errorf("%s = %+v, %v, want it to wait for its phone", x.ID, w, err)
		}
		if x.Retried != 0 || x.LastErr != "" {
			t.Errorf("%s has %d retries and the error %q, want no trace of a failure", x.ID, x.Retried, x.LastErr)
		}
		parcel := x.ID[:len("parcel-1")]
		instants[parcel] = append(instants[parcel], w.At)
	}
	if n := len(instants); n != phones {
		t.Errorf("tasks of %d phones wait, want %d", n, phones)
	}
	for _, parcel := range slices.Sorted(maps.Keys(instants)) {
		at := instants[parcel]
		slices.SortFunc(at, time.Time.Compare)
		for i := 1; i < len(at); i++ {
			if gap := at[i].Sub(at[i-1]); gap < time.Hour {
				t.Errorf("%s: two messages %v apart, want 1h", parcel, gap)
			}
		}
	}
	if processed, _ := after.counts(); processed != phones+phones*messages+phones {
		t.Errorf("asynq counts %d attempts, want those of what ran and the %d failed ones of the e-mails", processed, phones)
	}
}

// TestTheWayBack: what Headway has deferred are tasks of asynq. Plain asynq runs them all.
func TestTheWayBack(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	after := runApp(t, srv, "after", "-limit", "1/1h")
	after.waitFor(phones + phones*messages)
	after.stop()
	before := runApp(t, srv, "before")
	n, err := before.inspector.RunAllRetryTasks("default") // they wait for hours
	if err != nil || n != phones*(messages-1) {
		t.Errorf("RunAllRetryTasks = %d, %v, want %d", n, err, phones*(messages-1))
	}
	before.waitFor(all)
	before.stop()
	if processed, failed := before.counts(); processed != all+phones || failed != phones+messages {
		t.Errorf("asynq counts %d attempts and %d failures, want %d and %d as without the limit", processed, failed, all+phones, phones+messages)
	}
}

// TestReadmeDiff: README.md shows what differs between the two programs. A line with a minus is
// only in the first, one with a plus only in the second.
func TestReadmeDiff(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.FromSlash(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	shown := regexp.MustCompile("(?ms)^```diff\n(.*?)^```$").FindAllStringSubmatch(read("../../README.md"), -1)
	if len(shown) != 1 {
		t.Fatalf("README.md has %d diffs, want 1", len(shown))
	}
	var minus, plus strings.Builder
	for line := range strings.Lines(shown[0][1]) {
		switch line[0] {
		case '-':
			minus.WriteString(line[1:])
		case '+':
			plus.WriteString(line[1:])
		default:
			t.Errorf("the diff has the line %q, want - or + before each", line)
		}
	}
	before, after := read("before/main.go"), read("after/main.go")
	if text := minus.String(); text == "" || !strings.Contains(before, text) || strings.Contains(after, text) {
		t.Errorf("README.md takes away what is not in before/main.go, or still in after/main.go:\n%s", text)
	}
	for text := range strings.SplitSeq(plus.String(), "\t// ...\n") { // lines are left out there
		if text == "" || !strings.Contains(after, text) || strings.Contains(before, text) {
			t.Errorf("README.md adds what is not in after/main.go, or in before/main.go already:\n%s", text)
		}
	}
}
