package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const (
	readyWithin = 30 * time.Second // a race detector on a busy machine
	endWithin   = 30 * time.Second // asynq's ShutdownTimeout and its loops
)

// crew is the worker processes of one test, and the file that they record to.
// It is used by the test's own goroutine.
type crew struct {
	tb    testing.TB
	dir   string
	spec  workerSpec
	lives []*life
}

// life is one worker process, from its start to its end.
type life struct {
	tb     testing.TB
	number int
	cmd    *exec.Cmd
	stdin  io.Closer
	log    string
	ended  chan struct{} // closed once the process is reaped

	killed bool
}

func newCrew(tb testing.TB, spec workerSpec) *crew {
	tb.Helper()
	c := &crew{tb: tb, dir: tb.ArtifactDir(), spec: spec}
	c.spec.Records = filepath.Join(c.dir, "records.jsonl")
	tb.Cleanup(c.clear)
	return c
}

// start starts n worker processes and returns when they work.
func (c *crew) start(n int) []*life {
	c.tb.Helper()
	started := make([]*life, n)
	for i := range started {
		started[i] = c.launch()
	}
	return started
}

// launch starts one worker process and waits until it works.
func (c *crew) launch() *life {
	c.tb.Helper()
	l := &life{tb: c.tb, number: len(c.lives) + 1, ended: make(chan struct{})}
	l.log = filepath.Join(c.dir, fmt.Sprintf("worker-%d.log", l.number))
	if err := c.run(l); err != nil {
		c.tb.Fatalf("worker process %d: %v\n%s", l.number, err, l.tail())
	}
	return l
}

func (c *crew) run(l *life) error {
	spec := c.spec
	spec.Life = l.number
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	log, err := os.Create(l.log)
	if err != nil {
		return err
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	l.cmd = exec.Command(self)
	l.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	l.cmd.Stderr = log
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := l.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := l.cmd.Start(); err != nil {
		return err
	}
	c.lives = append(c.lives, l)
	ready := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err == nil && line != readyLine+"\n" {
			err = fmt.Errorf("it says %q, want %q", line, readyLine)
		}
		ready <- err
		_ = l.cmd.Wait() // killed is how many of them end; ProcessState tells
		close(l.ended)
	}()
	select {
	case err := <-ready:
		return err
	case <-time.After(readyWithin):
		return fmt.Errorf("not ready after %v", readyWithin)
	}
}

// kill ends the process as a crash would.
func (l *life) kill() {
	l.tb.Helper()
	l.killed = true
	l.signal(syscall.SIGKILL)
	<-l.ended
}

// freeze stops the process where it stands, until resume.
func (l *life) freeze() {
	l.tb.Helper()
	l.signal(syscall.SIGSTOP)
}

func (l *life) resume() {
	l.tb.Helper()
	l.signal(syscall.SIGCONT)
}

// end lets the process shut down gracefully.
func (l *life) end() {
	l.tb.Helper()
	if l.isOver() {
		return
	}
	l.signal(syscall.SIGTERM)
	select {
	case <-l.ended:
	case <-time.After(endWithin):
		l.tb.Errorf("worker process %d did not shut down within %v", l.number, endWithin)
		return
	}
	if code := l.cmd.ProcessState.ExitCode(); code != 0 {
		l.tb.Errorf("worker process %d ended with code %d:\n%s", l.number, code, l.tail())
	}
}

// signal reaches our own process only: os.Process knows when it was reaped.
func (l *life) signal(sig syscall.Signal) {
	l.tb.Helper()
	if err := l.cmd.Process.Signal(sig); err != nil {
		l.tb.Fatalf("worker process %d: %v: %v", l.number, sig, err)
	}
}

func (l *life) isOver() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// lines is how many lines the process has logged.
func (l *life) lines() int {
	text, err := os.ReadFile(l.log)
	if err != nil {
		l.tb.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

// tail is the end of what the process has logged.
func (l *life) tail() []byte {
	text, err := os.ReadFile(l.log)
	if err != nil {
		return []byte(err.Error())
	}
	return text[max(0, len(text)-4000):]
}

// end shuts all processes down that still run.
func (c *crew) end() {
	c.tb.Helper()
	for _, l := range c.lives {
		l.end()
	}
}

// clear ends what a failed test left, and shows what it logged.
func (c *crew) clear() {
	for _, l := range c.lives {
		if !l.isOver() {
			l.kill() // frozen ones too
		}
		_ = l.stdin.Close()
		if c.tb.Failed() {
			c.tb.Logf("worker process %d logged last:\n%s", l.number, l.tail())
		}
	}
}

// records is what all processes have written so far.
func (c *crew) records() []record {
	c.tb.Helper()
	all, err := readRecords(c.spec.Records)
	if err != nil {
		c.tb.Fatal(err)
	}
	return all
}

// life returns a process by its number.
func (c *crew) life(number int) *life { return c.lives[number-1] }
