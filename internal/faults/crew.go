package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/headwayq/headway/internal/childprocess"
)

// crew is the worker processes of a run. It is used by one goroutine at a time.
type crew struct {
	dir       string
	spec      workerSpec
	cutOff    *address        // as that of a system
	clocked   *clockedWorkers // what runs instead of this program; nil for this program
	processes []*process      // all that ever were; the number of each is its place, from 1
}

// process is one worker process, and what was done to it.
type process struct {
	*childprocess.Process
	number int

	anotherRelease bool
	spared         bool // from strikes

	stopped bool // cleanly
	treatment
}

// start starts one more process, and waits until it works.
func (c *crew) start() error { return c.add(&process{anotherRelease: c.spec.AnotherRelease}, c.spec) }

// startSpared starts a process that no strike will touch, and that notes what it needs in a file.
func (c *crew) startSpared(vitals string, run time.Duration) error {
	spec := c.spec
	spec.Vitals, spec.VitalsFor = vitals, run
	return c.add(&process{spared: true}, spec)
}

func (c *crew) add(p *process, spec workerSpec) error {
	p.number = len(c.processes) + 1
	spec.Process = p.number
	if c.cutOff != nil && p.number%2 == 0 {
		spec.Redis = *c.cutOff
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	log := filepath.Join(c.dir, fmt.Sprintf("worker-%d.log", p.number))
	if c.clocked == nil {
		p.Process, err = childprocess.Start(workerEnv, string(text), log)
	} else {
		p.Process, err = childprocess.StartProgram(c.clocked.program, log, workerEnv+"="+string(text), clockEnv+"="+c.clocked.file(p.number))
	}
	if err != nil {
		return fmt.Errorf("worker process %d: %w", p.number, err)
	}
	c.processes = append(c.processes, p)
	return nil
}

// running returns the processes that run and may be struck.
func (c *crew) running() []*process {
	return slices.DeleteFunc(slices.Clone(c.processes), func(p *process) bool { return p.spared || p.Over() })
}

// pick returns a process that runs.
func (c *crew) pick(random *rand.Rand) (*process, error) {
	running := c.running()
	if len(running) == 0 {
		return nil, errors.New("no worker process runs any more")
	}
	return running[random.IntN(len(running))], nil
}

// check says which processes ended although nobody wanted them to.
func (c *crew) check() error {
	var errs []error
	for _, p := range c.processes {
		if p.Over() && p.Killed.IsZero() && !p.stopped {
			errs = append(errs, fmt.Errorf("worker process %d ended by itself, with %v: see worker-%d.log", p.number, p.State(), p.number))
		}
	}
	return errors.Join(errs...)
}

// end lets all processes that run end cleanly.
func (c *crew) end() error {
	var errs []error
	for _, p := range c.processes {
		if !p.Over() {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(errs...)
}

// clear kills what runs, also what stands still.
func (c *crew) clear() {
	for _, p := range c.processes {
		if !p.Over() {
			p.kill()
		}
	}
}

// struck says whether a process was killed or stood still after it did something, and before Redis had noted it for sure:
// that may be done again.
func (c *crew) struck(number int, at, noted time.Time) bool {
	if number < 1 || number > len(c.processes) {
		return false
	}
	p := c.processes[number-1]
	soon := func(from, to time.Time) bool { return from.Before(noted) && to.After(at) }
	return !p.Killed.IsZero() && soon(p.Killed, p.Killed.Add(time.Second)) ||
		slices.ContainsFunc(p.Stood, func(s [2]time.Time) bool { return soon(s[0], s[1]) })
}

// notesWithin is how long a process may take, at most, to note in Redis that a message was sent.
const notesWithin = 2 * time.Second

// kill ends the process as a crash would.
func (p *process) kill() {
	p.Killed = time.Now()
	p.Kill()
}

// standStill stops the process where it is, and lets it go on after d.
func (p *process) standStill(d time.Duration) {
	from := time.Now()
	_ = p.Signal(syscall.SIGSTOP)
	time.Sleep(d)
	_ = p.Signal(syscall.SIGCONT)
	p.Stood = append(p.Stood, [2]time.Time{from, time.Now()})
}

// stop lets the process shut down.
func (p *process) stop() error {
	p.stopped = true
	if err := p.Stop(); err != nil {
		return fmt.Errorf("worker process %d: %w", p.number, err)
	}
	return nil
}
