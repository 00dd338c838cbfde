package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// clockEnv names the file that says by how many milliseconds the clock of a clocked program is ahead.
const clockEnv = "HEADWAY_FAULTS_CLOCK"

// The text of time.Now, and what a clocked program has in its place. The monotonic reading stays: a clock that is set does not touch it.
const (
	readsClock   = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	movesReading = "\tsec, nsec, mono := runtimeNow()\n\tsec, nsec = withOffset(sec, nsec)\n\tif mono == 0 {"
)

// offsetSource is one more file of package time. It may import only what that package does already.
const offsetSource = `package time

import (
	"sync/atomic"
	"syscall"
)

// offset is by how many milliseconds the clock is ahead.
var offset atomic.Int64

func init() {
	if file, found := syscall.Getenv("` + clockEnv + `"); found {
		go followOffset(file)
	}
}

func followOffset(file string) {
	text := make([]byte, 32)
	for ; ; Sleep(10 * Millisecond) {
		fd, err := open(file)
		if err != nil {
			continue
		}
		n, err := read(fd, text)
		closefd(fd)
		if err != nil {
			continue
		}
		if ms, err := atoi(text[:n]); err == nil {
			offset.Store(int64(ms))
		}
	}
}

func withOffset(sec int64, nsec int32) (int64, int32) {
	ahead := int64(nsec) + offset.Load()*int64(Millisecond)
	sec, ahead = sec+ahead/int64(Second), ahead%int64(Second)
	if ahead < 0 {
		sec, ahead = sec-1, ahead+int64(Second)
	}
	return sec, int32(ahead)
}
`

// clockedWorkers is the program of worker processes whose clocks can be set while they run, and the files that set them.
// Go reads the clock without a call that could be replaced from outside, so the program is built with another time.Now.
type clockedWorkers struct{ dir, program string }

// buildClockedWorkers builds that program into a directory of its own below dir. The first build compiles the standard library anew, and
// takes minutes; the next ones find it in the cache of the go command.
func buildClockedWorkers(ctx context.Context, dir string) (*clockedWorkers, error) {
	_, file, _, _ := runtime.Caller(0)
	source := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if _, err := os.Stat(filepath.Join(source, "go.mod")); err != nil {
		return nil, fmt.Errorf("a worker process whose clock jumps is built when the run begins, which needs the source of Headway in the directory from which "+
			"this program was built: %w", err)
	}
	c := &clockedWorkers{dir: filepath.Join(dir, "clocked")}
	c.program = filepath.Join(c.dir, "headway")
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, err
	}
	if err := buildClocked(ctx, c.dir, c.program, source, "./cmd/headway"); err != nil {
		return nil, errors.Join(err, c.remove())
	}
	return c, nil
}

// building is held while a program is built: the second one finds in the cache what the first one compiled.
var building sync.Mutex

// buildClocked builds a package of the module in a directory as a program whose clock can be set. It keeps the changed files in dir.
func buildClocked(ctx context.Context, dir, program, module, pkg string) error {
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("a worker process whose clock jumps is built when the run begins, which needs the go command: %w", err)
	}
	building.Lock()
	defer building.Unlock()
	command := func(args ...string) ([]byte, error) {
		c := exec.CommandContext(ctx, "go", args...) // #nosec G204: the arguments are ours
		c.Dir, c.Env = module, append(os.Environ(), "CGO_ENABLED=0")
		out, err := c.Output()
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, failed.Stderr)
		}
		return out, err
	}
	root, err := command("env", "GOROOT")
	if err != nil {
		return err
	}
	own := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(own, "time.go"))
	if err != nil {
		return err
	}
	withOffset, err := addOffset(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(own, "time.go"), err)
	}
	changed, added, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "offset.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(own, "time.go"): changed, filepath.Join(own, "headway_offset.go"): added,
	}})
	if err != nil {
		return err
	}
	for name, text := range map[string]string{changed: withOffset, added: offsetSource, overlay: string(list)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	_, err = command("build", "-buildvcs=false", "-overlay", overlay, "-o", program, pkg)
	return err
}

// addOffset changes the text of time.Now.
func addOffset(text string) (string, error) {
	if n := strings.Count(text, readsClock); n != 1 {
		return "", fmt.Errorf("this release of Go reads the clock in another way than was known: %q is there %d times, want once", readsClock, n)
	}
	return strings.Replace(text, readsClock, movesReading, 1), nil
}

// file is what sets the clock of a process.
func (c *clockedWorkers) file(process int) string {
	return filepath.Join(c.dir, "ahead-"+strconv.Itoa(process))
}

// set sets the clock of a process by how much it is ahead. The process looks each 10 ms, and finds the file whole.
func (c *clockedWorkers) set(process int, ahead time.Duration) error {
	file := c.file(process)
	written := file + ".new"
	return errors.Join(os.WriteFile(written, []byte(strconv.FormatInt(ahead.Milliseconds(), 10)), 0o600), os.Rename(written, file))
}

// remove removes what was built.
func (c *clockedWorkers) remove() error { return os.RemoveAll(c.dir) }

// rightClock is the clock of the machine, also in a process whose time.Now is wrong.
func rightClock() time.Time {
	var now syscall.Timeval
	_ = syscall.Gettimeofday(&now) // fails for no address of ours
	return time.Unix(0, now.Nano())
}
