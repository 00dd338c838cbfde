package faults

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

const (
	readyWithin = 30 * time.Second
	endWithin   = 30 * time.Second // asynq's ShutdownTimeout, and its loops
)

// crew is the worker processes of a run. It is used by one goroutine at a time.
type crew struct {
	dir       string
	spec      workerSpec
	processes []*process // all that ever were; the number of each is its place, from 1
}

// process is one worker process, from its start to its end.
type process struct {
	number int
	cmd    *exec.Cmd
	stdin  io.Closer
	ended  chan struct{} // closed once it is reaped

	killed  time.Time      // zero for not
	stopped bool           // cleanly
	stood   [][2]time.Time // from when to when it stood still
}

// start starts one more process, and waits until it works.
func (c *crew) start() error {
	p := &process{number: len(c.processes) + 1, ended: make(chan struct{})}
	log := filepath.Join(c.dir, fmt.Sprintf("worker-%d.log", p.number))
	if err := c.launch(p, log); err != nil {
		text, _ := os.ReadFile(log)
		return fmt.Errorf("worker process %d: %w\n%s", p.number, err, text[max(0, len(text)-2000):])
	}
	return nil
}

func (c *crew) launch(p *process, log string) error {
	spec := c.spec
	spec.Process = p.number
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	out, err := os.Create(log)
	if err != nil {
		return err
	}
	defer out.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	p.cmd.Stderr = out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the run, which ends its workers
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	ready := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err == nil && line != readyLine+"\n" {
			err = fmt.Errorf("it says %q, want %q", line, readyLine)
		}
		ready <- err
		_ = p.cmd.Wait() // killed is how many of them end
		close(p.ended)
	}()
	select {
	case err := <-ready:
		return err
	case <-time.After(readyWithin):
		return fmt.Errorf("not ready after %v", readyWithin)
	}
}

// pick returns a process that runs.
func (c *crew) pick(random *rand.Rand) (*process, error) {
	running := slices.DeleteFunc(slices.Clone(c.processes), (*process).over)
	if len(running) == 0 {
		return nil, errors.New("no worker process runs any more")
	}
	return running[random.IntN(len(running))], nil
}

// check says which processes ended although nobody wanted them to.
func (c *crew) check() error {
	var errs []error
	for _, p := range c.processes {
		if p.over() && p.killed.IsZero() && !p.stopped {
			errs = append(errs, fmt.Errorf("worker process %d ended by itself, with %v: see worker-%d.log", p.number, p.cmd.ProcessState, p.number))
		}
	}
	return errors.Join(errs...)
}

// end lets all processes that run end cleanly.
func (c *crew) end() error {
	var errs []error
	for _, p := range c.processes {
		if !p.over() {
			errs = append(errs, p.end())
		}
	}
	return errors.Join(errs...)
}

// clear kills what runs, also what stands still.
func (c *crew) clear() {
	for _, p := range c.processes {
		if !p.over() {
			p.kill()
		}
		_ = p.stdin.Close()
	}
}

// struck says whether a process was killed or stood still so soon after an instant that it may
// not have noted what it did then: that may be done again.
func (c *crew) struck(number int, at time.Time) bool {
	if number < 1 || number > len(c.processes) {
		return false
	}
	p := c.processes[number-1]
	soon := func(from, to time.Time) bool { return from.Before(at.Add(notesWithin)) && to.After(at) }
	return !p.killed.IsZero() && soon(p.killed, p.killed.Add(time.Second)) ||
		slices.ContainsFunc(p.stood, func(s [2]time.Time) bool { return soon(s[0], s[1]) })
}

// notesWithin is how long a process may take, at most, to note in Redis that a message was sent.
const notesWithin = 5 * time.Second

func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// kill ends the process as a crash would. os.Process knows when it was reaped: only our own
// process is signalled.
func (p *process) kill() {
	p.killed = time.Now()
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// standStill stops the process where it is, and lets it go on after d.
func (p *process) standStill(d time.Duration) {
	from := time.Now()
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(d)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	p.stood = append(p.stood, [2]time.Time{from, time.Now()})
}

// end lets the process shut down.
func (p *process) end() error {
	p.stopped = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(endWithin):
		return fmt.Errorf("worker process %d did not end within %v", p.number, endWithin)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("worker process %d ended with code %d: see worker-%d.log", p.number, code, p.number)
	}
	return nil
}
