//go:build unix

package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/headwayq/headway/worker"
)

// What the process of TestRunHeedsSignals is told.
const (
	signalsURL  = "HEADWAY_TEST_SIGNALS_REDIS" // its Redis; empty in the test itself
	signalsNone = "HEADWAY_TEST_SIGNALS_NONE"  // Config.NoSignals

	signalsServers = 2
)

// TestSignalsProcess is the program that TestRunHeedsSignals sends signals to. It does nothing
// about them itself. Its handler says that it began, and waits for a word.
func TestSignalsProcess(t *testing.T) {
	url := os.Getenv(signalsURL)
	if url == "" {
		t.Skip("is run by TestRunHeedsSignals")
	}
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		rdb.RPush(ctx, "said", "began "+id)
		return rdb.BLPop(ctx, time.Minute, "go "+id).Err()
	})
	log := zap.NewExample(zap.Hooks(func(e zapcore.Entry) error {
		for _, said := range []string{"started", "shutting down", "Waiting for all workers"} { // the last by each server, which fetches nothing more
			if strings.HasPrefix(e.Message, said) {
				return rdb.RPush(context.Background(), "said", said).Err()
			}
		}
		return nil
	}))
	pool, err := worker.New(rdb, handler, worker.Config{
		Servers: signalsServers, Asynq: asynq.Config{Concurrency: 4, ShutdownTimeout: time.Minute}, NoSignals: os.Getenv(signalsNone) != "", Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	rdb.RPush(context.Background(), "said", "returned")
}

// signalled is a process of TestSignalsProcess.
type signalled struct {
	*rig
	cmd *exec.Cmd
	out bytes.Buffer
}

func startSignalled(r *rig, env ...string) *signalled {
	r.Helper()
	self, err := os.Executable()
	if err != nil {
		r.Fatal(err)
	}
	p := &signalled{rig: r, cmd: exec.Command(self, "-test.run=^TestSignalsProcess$", "-test.timeout=2m")}
	o := r.rdb.Options()
	url := fmt.Sprintf("redis://%s:%s@%s/%d", o.Username, o.Password, o.Addr, o.DB)
	p.cmd.Env = append(append(os.Environ(), signalsURL+"="+url), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if signal.Ignored(os.Interrupt) { // as in a job in the background: its processes would ignore it, too
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	if err := p.cmd.Start(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	p.hears("started")
	return p
}

// hears waits for the next thing that the process says.
func (p *signalled) hears(want string) {
	p.Helper()
	said, err := p.rdb.BLPop(p.Context(), within, "said").Result()
	if err != nil || said[1] != want {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.Fatalf("the process says %v (%v), want %q; its output:\n%s", said, err, want, &p.out)
	}
}

// hearsAllStop waits until no server of the process fetches tasks: the pool stops that before it shuts them
// down. Of the lines of all servers one is logged.
func (p *signalled) hearsAllStop() {
	p.Helper()
	p.hears("Waiting for all workers")
}

func (p *signalled) send(s syscall.Signal) {
	p.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.Fatal(err)
	}
}

// wantEnd waits for the end of the process: clean, or by a signal.
func (p *signalled) wantEnd(by syscall.Signal) {
	p.Helper()
	err := p.cmd.Wait()
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if by == 0 && err != nil || by != 0 && (!status.Signaled() || status.Signal() != by) {
		p.Fatalf("the process ended with %v, want signal %d (0: none); its output:\n%s", err, by, &p.out)
	}
}

func TestRunHeedsSignals(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run("shutdown by "+s.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := startSignalled(r)
			r.enqueue("work", "a", "")
			p.hears("began a")
			p.send(s)
			p.hears("shutting down")
			p.hearsAllStop()
			r.enqueue("work", "b", "")
			r.rdb.RPush(t.Context(), "go a", "")
			p.hears("returned")
			p.wantEnd(0)
			if r.info("a") != nil || !r.is("b", asynq.TaskStatePending) {
				t.Errorf("afterwards a is %+v, want done, b is %+v, want pending", r.info("a"), r.info("b"))
			}
			r.wantQueue(1, 0, 0)
		})
		t.Run("a second "+s.String()+" ends at once", func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := startSignalled(r)
			r.enqueue("work", "a", "")
			p.hears("began a")
			p.send(s)
			p.hears("shutting down")
			p.send(s)
			p.wantEnd(s)
			if !r.is("a", asynq.TaskStateActive) {
				t.Errorf("afterwards a is %+v, want active: asynq recovers it", r.info("a"))
			}
		})
	}
	t.Run("stop by SIGTSTP", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		p := startSignalled(r)
		r.enqueue("work", "a", "")
		p.hears("began a")
		p.send(syscall.SIGTSTP)
		r.eventually("all servers stopped", func() bool {
			servers, err := r.insp.Servers()
			running := func(s *asynq.ServerInfo) bool { return s.Status != "stopped" }
			return err == nil && len(servers) == signalsServers && !slices.ContainsFunc(servers, running)
		})
		r.enqueue("work", "b", "")
		r.rdb.RPush(t.Context(), "go a", "")
		r.eventually("a is done", func() bool { return r.info("a") == nil })
		p.send(syscall.SIGTERM)
		p.hears("shutting down")
		p.hearsAllStop()
		p.hears("returned")
		p.wantEnd(0)
		if !r.is("b", asynq.TaskStatePending) {
			t.Errorf("afterwards b is %+v, want pending", r.info("b"))
		}
	})
	t.Run("NoSignals", func(t *testing.T) {
		t.Parallel()
		p := startSignalled(newRig(t), signalsNone+"=1")
		p.send(syscall.SIGTERM)
		p.wantEnd(syscall.SIGTERM)
	})
}
