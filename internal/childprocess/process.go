// Package childprocess runs this program once more, or another one that does the same, as a process that
// can be killed, frozen and stopped: for `headway prove` and for tests. A program that does so asks its
// environment first of all whether it is such a process.
package childprocess

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	readyWithin = 30 * time.Second // a race detector on a busy machine
	endWithin   = 30 * time.Second // asynq's ShutdownTimeout, and its loops
	readyLine   = "ready"
)

// Process is a process that was started, from its start to its end. It is used by one goroutine
// at a time.
type Process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	log   string
	ended chan struct{} // closed once it is reaped
}

// Start starts this program with one more variable in its environment, and waits until it calls
// [Ready]. It logs to a file, of which an error has the end. After an error nothing runs.
func Start(variable, value, log string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return StartProgram(self, log, variable+"="+value)
}

// StartProgram is [Start] for another program that calls [Ready]. The variables are as those of [os.Environ].
func StartProgram(program, log string, variables ...string) (*Process, error) {
	p := &Process{log: log, ended: make(chan struct{})}
	if err := p.start(program, variables); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, p.Tail())
	}
	return p, nil
}

func (p *Process) start(program string, variables []string) error {
	out, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd = exec.Command(program) // #nosec G204: our own program, or one that was built from its source
	p.cmd.Env = append(os.Environ(), variables...)
	p.cmd.Stderr = out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us, and we end it
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
	ready := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err == nil && line != readyLine+"\n" {
			err = fmt.Errorf("it says %q, want %q", line, readyLine)
		}
		ready <- err
		_ = p.cmd.Wait() // killed is how many of them end; ProcessState tells
		close(p.ended)
	}()
	select {
	case err = <-ready:
	case <-time.After(readyWithin):
		err = fmt.Errorf("not ready after %v", readyWithin)
	}
	if err != nil {
		p.Kill()
	}
	return err
}

// Over says that it has ended.
func (p *Process) Over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// State says how it ended.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Signal signals it, and no other: os.Process knows when it was reaped.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Kill ends it as a crash would, also when it stands still.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
	_ = p.stdin.Close()
}

// Stop lets it shut down, by SIGTERM.
func (p *Process) Stop() error {
	_ = p.Signal(syscall.SIGTERM)
	return p.await()
}

func (p *Process) await() error {
	select {
	case <-p.ended:
	case <-time.After(endWithin):
		return fmt.Errorf("it did not end within %v", endWithin)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("it ended with code %d:\n%s", code, p.Tail())
	}
	return nil
}

// Tail is the end of what it has logged.
func (p *Process) Tail() []byte {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return text[max(0, len(text)-4000):]
}

// Ready is called by the process that was started, when it works.
func Ready() { fmt.Println(readyLine) }

// ForsakenCode is the exit code of a process whose starter is gone.
const ForsakenCode = 3

// EndWithStarter is called by the process that was started: it exits when whoever started it is gone.
func EndWithStarter() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(ForsakenCode)
	}()
}
