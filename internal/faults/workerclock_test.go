package faults

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tellsOffset is a program that says by how much its clock is ahead of its monotonic reading, each time that this changes.
const tellsOffset = `package main

import (
	"fmt"
	"time"
)

func main() {
	start, told := time.Now(), time.Duration(-1)
	for {
		now := time.Now()
		if now.Sub(start) > 10*time.Minute || time.Since(start) < 0 || time.Until(start) > 0 {
			panic("the monotonic reading has jumped")
		}
		ahead := (now.Round(0).Sub(start.Round(0)) - now.Sub(start)).Round(100 * time.Millisecond)
		if ahead != told {
			fmt.Println(ahead)
			told = ahead
		}
		time.Sleep(10 * time.Millisecond)
	}
}
`

// The wall clock of a clocked program goes by its file while it runs. Its monotonic reading, and so all waits, do not.
func TestClockedProgram(t *testing.T) {
	t.Parallel()
	c := &clockedWorkers{dir: t.TempDir()}
	module, program := t.TempDir(), filepath.Join(c.dir, "program")
	for name, text := range map[string]string{"main.go": tellsOffset, "go.mod": "module clocked\n\ngo 1.26\n"} {
		if err := os.WriteFile(filepath.Join(module, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := buildClocked(t.Context(), c.dir, program, module, "."); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), program)
	run.Env = append(os.Environ(), clockEnv+"="+c.file(1))
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = run.Process.Kill()
		_ = run.Wait()
	}()
	lines := bufio.NewScanner(out)
	told := func(want time.Duration) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want.String() {
			t.Fatalf("its clock is %q ahead, want %v", lines.Text(), want)
		}
	}
	told(0)
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 1700 * time.Millisecond, -1700 * time.Millisecond, 0} {
		if err := c.set(1, ahead); err != nil {
			t.Fatal(err)
		}
		told(ahead)
	}
}

// A release of Go with another time.Now is refused, and does not become a program whose clock is right.
func TestClockOfAnotherGoIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "func Now() Time {\n\tsec, nsec, mono := now()\n", readsClock + "\n" + readsClock} {
		if _, err := addOffset(text); err == nil || !strings.Contains(err.Error(), "in another way") {
			t.Errorf("addOffset(%q) = %v, want a refusal", text, err)
		}
	}
}

func TestClockedProgramNeedsGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	spec := short(t, "worker-clock")
	if _, err := Run(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "needs the go command") {
		t.Errorf("Run = %v, want that it needs the go command", err)
	}
	if left, err := filepath.Glob(filepath.Join(spec.Dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("a run that could not begin left %q (%v)", left, err)
	}
}

func TestRightClock(t *testing.T) {
	t.Parallel()
	before := time.Now().Truncate(time.Microsecond)
	if now := rightClock(); now.Before(before.Round(0)) || now.After(time.Now()) {
		t.Errorf("rightClock = %v, want now: after %v", now, before)
	}
}
