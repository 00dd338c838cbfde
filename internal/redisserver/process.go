package redisserver

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	readyWithin = time.Minute     // a slow disk with a long AOF to load
	stopWithin  = 5 * time.Second // before a polite stop becomes a kill
	pollEvery   = 2 * time.Millisecond
)

// ErrNoServer is returned when there is no redis-server to run.
var ErrNoServer = errors.New("redisserver: redis-server is not installed (`tools/install-redis` installs it)")

var (
	errPortTaken  = errors.New("redisserver: the port is taken")
	errNotRunning = errors.New("redisserver: the server does not run")
)

// Process is a redis-server of our own, on a port of the loopback that it
// keeps over restarts. It is safe for concurrent use. Only this process is
// ever signalled, by its id.
type Process struct {
	settings *settings
	dir      string
	port     string

	mu     sync.Mutex
	run    *run // nil while stopped
	closed bool
}

// run is one life of the process.
type run struct {
	proc *os.Process
	done chan struct{} // closed once the process is reaped
}

// Launch starts a redis-server that keeps its files in dir, and returns when it
// answers. The caller ends it with [Process.Close]. Tests use redistest.Start.
func Launch(dir string, opts ...Option) (*Process, error) {
	p := &Process{settings: newSettings(opts), dir: dir}
	for range portAttempts {
		port, err := ports.take()
		if err != nil {
			return nil, err
		}
		p.port = port
		err = p.StartAgain()
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, errPortTaken) {
			ports.giveBack(port)
			return nil, err
		}
		// Some other program listens there: then the next one.
	}
	return nil, fmt.Errorf("%w, %d times in a row", errPortTaken, portAttempts)
}

// Addr returns the address, host and port. It stays the same over restarts.
func (p *Process) Addr() string { return net.JoinHostPort(loopback, p.port) }

// Pid returns the process id, or 0 while the server is stopped.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil {
		return 0
	}
	return p.run.proc.Pid
}

// StartAgain starts a stopped server on its old port and directory and waits
// until it answers.
func (p *Process) StartAgain() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.startLocked()
}

// Stop ends the server in an orderly way (SHUTDOWN) and waits for its end. A
// paused server is resumed first; one that refuses, because it is busy in a
// script, or that is not gone after 5 s, is killed.
func (p *Process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopLocked("SHUTDOWN")
}

// Restart is [Process.Stop] and [Process.StartAgain] in one.
func (p *Process) Restart() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.stopLocked("SHUTDOWN"); err != nil {
		return err
	}
	return p.startLocked()
}

// Kill ends the server with SIGKILL, as a crash would, and waits for its end.
func (p *Process) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killLocked()
}

// Pause freezes the server (SIGSTOP): connections stay open, nothing answers.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume continues a paused server.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

// Close ends the server for good, without saving. Closing twice is fine.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed && p.run == nil {
		return nil
	}
	p.closed = true
	if p.run != nil {
		if err := p.stopLocked("SHUTDOWN NOSAVE"); err != nil {
			return err
		}
	}
	ports.giveBack(p.port)
	return nil
}

func (p *Process) startLocked() error {
	switch {
	case p.closed:
		return errors.New("redisserver: the server is closed")
	case p.run != nil:
		return errors.New("redisserver: the server runs already")
	}
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return ErrNoServer
	}
	log, err := os.Create(filepath.Join(p.dir, "redis.log"))
	if err != nil {
		return fmt.Errorf("redisserver: %w", err)
	}
	defer log.Close()

	args, err := p.settings.args(p.dir, p.port)
	if err != nil {
		return fmt.Errorf("redisserver: %w", err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()
	r, err := spawn(cmd)
	if err != nil {
		return fmt.Errorf("redisserver: %w", err)
	}
	p.run = r
	if err := p.awaitReadyLocked(); err != nil {
		return errors.Join(err, p.killLocked())
	}
	return nil
}

// spawn starts cmd and reaps it. One goroutine holds its thread from start to
// end: Linux signals a child's death wish when the thread that made it ends.
func spawn(cmd *exec.Cmd) (*run, error) {
	r := &run{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(r.done)
		err := cmd.Start()
		if err == nil {
			r.proc = cmd.Process
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // killed is how most of them end
		}
	}()
	return r, <-started
}

// awaitReadyLocked polls until our own process answers PING. Its pid is
// compared, because another server may have won the race for the port.
func (p *Process) awaitReadyLocked() error {
	deadline := time.NewTimer(readyWithin)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-deadline.C:
			return p.startFailure(fmt.Sprintf("does not answer after %v", readyWithin))
		case <-tick.C:
		}
		if p.run.ended() {
			return p.startFailure("ended at once")
		}
		info, err := ask(p.Addr(), "INFO server")
		if err != nil {
			continue // not there yet, or something that is no Redis has the port
		}
		if pid, err := InfoField(info, "process_id"); err != nil || pid != strconv.Itoa(p.run.proc.Pid) {
			return errPortTaken
		}
		if _, err := ask(p.Addr(), "PING"); err == nil { // refused while an AOF loads
			return nil
		}
	}
}

func (p *Process) startFailure(what string) error {
	log, err := os.ReadFile(filepath.Join(p.dir, "redis.log"))
	if err != nil {
		return fmt.Errorf("redisserver: redis-server %s: %w", what, err)
	}
	if bytes.Contains(log, []byte("Address already in use")) {
		return errPortTaken
	}
	return fmt.Errorf("redisserver: redis-server %s, its log ends:\n%s", what, log[max(0, len(log)-2000):])
}

func (p *Process) stopLocked(shutdown string) error {
	if p.run == nil {
		return errNotRunning
	}
	if err := p.run.signal(syscall.SIGCONT); err != nil {
		return err
	}
	// A shutdown that works hangs up instead of replying.
	if _, err := ask(p.Addr(), shutdown); errors.As(err, new(refusal)) {
		return p.killLocked() // busy in a script, for example
	}
	select {
	case <-p.run.done:
		p.run = nil
		return nil
	case <-time.After(stopWithin):
		return p.killLocked()
	}
}

func (p *Process) killLocked() error {
	if p.run == nil {
		return errNotRunning
	}
	if err := p.run.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.run.done
	p.run = nil
	return nil
}

func (p *Process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil {
		return errNotRunning
	}
	return p.run.signal(sig)
}

func (r *run) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// signal goes through os.Process, which knows when the process has been
// reaped: the id of a dead server never hits somebody else.
func (r *run) signal(sig syscall.Signal) error {
	if err := r.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("redisserver: %v: %w", sig, err)
	}
	return nil
}
