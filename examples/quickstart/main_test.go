package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
)

// leftOut stands where README.md leaves lines out: what is done with an error.
const leftOut = "// ..."

// TestReadme: each line of Go that the README shows is a line of this program, or of the
// first example of package throttle, in the same order.
func TestReadme(t *testing.T) {
	t.Parallel()
	program := linesOf(t, "main.go")
	example := linesOf(t, "../../throttle/example_test.go")
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(strings.Join(linesOf(t, "../../README.md"), "\n"), -1)
	if len(blocks) != 2 {
		t.Fatalf("README.md has %d pieces of Go, want 2", len(blocks))
	}
	for i, source := range [][]string{example, program} {
		for line := range strings.Lines(blocks[i][1]) {
			code, _, _ := strings.Cut(strings.TrimSpace(line), " // ")
			if code == leftOut {
				continue
			}
			if i == 0 && (code == "return err" || code == "err = sms.Acquire(ctx, \"+15550100\", 1)") {
				continue // the example prints them
			}
			at := slices.IndexFunc(source, func(have string) bool {
				have, _, _ = strings.Cut(have, " // ")
				return have == code
			})
			if at < 0 {
				t.Errorf("README.md shows %q, which is not in the program that it is taken from", code)
				continue
			}
			source = source[at+1:]
		}
	}
}

// linesOf are the lines of a file without the white space around them.
func linesOf(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return lines
}

// TestQuickstart builds and runs the program as a new user would: one message
// goes at once, and the others wait without a worker slot.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	rdb := srv.Client(t)
	bin := filepath.Join(t.TempDir(), "quickstart")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), bin)
	cmd.Env = append(os.Environ(), "REDIS="+srv.Addr())
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil || !strings.Contains(line, "sending ") {
		t.Fatalf("first line = %q, %v, want a message sent", line, err)
	}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	look, deadline := time.NewTicker(10*time.Millisecond), time.After(20*time.Second)
	defer look.Stop()
	for {
		info, err := inspector.GetQueueInfo("default")
		if err != nil {
			t.Fatal(err)
		}
		if info.Retry == 2 && info.Active == 0 && info.Processed == 1 && info.Failed == 0 {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("queue = %+v, want 1 processed and 2 waiting", info)
		case <-look.C:
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v, want a clean end", err)
	}
}
