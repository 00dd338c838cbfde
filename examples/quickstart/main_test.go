package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
)

// TestReadme: the code that the README offers for copying is this very program.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(source), "\npackage main\n")
	if !strings.Contains(string(readme), "```go\npackage main\n"+code+"```\n") {
		t.Error("README.md does not contain main.go from its package clause to its end; copy it there")
	}
}

// TestQuickstart builds and runs the program as a new user would: one message
// goes at once, and the others wait without a worker slot.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
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
