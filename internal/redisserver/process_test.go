package redisserver

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func launch(t *testing.T, opts ...Option) *Process {
	t.Helper()
	p, err := Launch(t.TempDir(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// impatient returns a client that fails at the first fault. Its pool is large, because after
// as many refused dials as it has places it looks again only once a second.
func impatient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, PoolSize: 1000})
}

func TestLaunchAnswersAndCloses(t *testing.T) {
	t.Parallel()
	p := launch(t)
	client := impatient(p.Addr())
	defer client.Close()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("PING after Launch: %v", err)
	}
	pid := p.Pid()
	if err := p.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("signal 0 to pid %d after Close = %v, want %v", pid, err, syscall.ESRCH)
	}
	if got := p.Pid(); got != 0 {
		t.Errorf("Pid after Close = %d, want 0", got)
	}
	if err := p.StartAgain(); err == nil {
		t.Error("StartAgain after Close = nil, want an error")
	}
}

func TestProcessRefusesWrongOrder(t *testing.T) {
	t.Parallel()
	p := launch(t)
	if err := p.StartAgain(); err == nil {
		t.Error("StartAgain of a running server = nil, want an error")
	}
	if err := p.Stop(); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	for name, do := range map[string]func() error{
		"Stop": p.Stop, "Kill": p.Kill, "Restart": p.Restart, "Pause": p.Pause, "Resume": p.Resume,
	} {
		if err := do(); err == nil {
			t.Errorf("%s of a stopped server = nil, want an error", name)
		}
	}
}

func TestLaunchShowsTheLogOfABadDirective(t *testing.T) {
	t.Parallel()
	_, err := Launch(t.TempDir(), Arg("no-such-directive", "1"))
	if err == nil || !strings.Contains(err.Error(), "no-such-directive") {
		t.Errorf("Launch with a bad directive = %v, want an error that shows it", err)
	}
}

func TestStartAgainReportsATakenPort(t *testing.T) {
	t.Parallel()
	p := launch(t)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := p.StartAgain(); !errors.Is(err, errPortTaken) {
		t.Errorf("StartAgain = %v, want %v", err, errPortTaken)
	}
}

// Another server that answers on the port must not pass for ours.
func TestReadinessComparesThePid(t *testing.T) {
	t.Parallel()
	other, dead := launch(t), launch(t)
	dead.mu.Lock()
	defer dead.mu.Unlock()
	own := dead.port
	dead.port = other.port
	defer func() { dead.port = own }()
	if err := dead.awaitReadyLocked(); !errors.Is(err, errPortTaken) {
		t.Errorf("awaitReadyLocked on a stranger's port = %v, want %v", err, errPortTaken)
	}
}

func TestPausedServerCanBeStopped(t *testing.T) {
	t.Parallel()
	p := launch(t)
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := p.Stop(); err != nil {
		t.Fatalf("Stop of a paused server: %v", err)
	}
	if took := time.Since(begin); took >= stopWithin {
		t.Errorf("Stop of a paused server took %v, want less than %v", took, stopWithin)
	}
}

// A script that never ends refuses SHUTDOWN: the server has to be killed.
func TestBusyServerIsKilled(t *testing.T) {
	t.Parallel()
	p := launch(t, Arg("busy-reply-threshold", "1"))
	client := impatient(p.Addr())
	defer client.Close()
	busy := make(chan error, 1)
	go func() {
		busy <- client.Eval(context.Background(), "redis.call('SET', 'k', 1) while true do end", nil).Err()
	}()
	probe := impatient(p.Addr())
	defer probe.Close()
	for probe.Ping(t.Context()).Err() == nil {
		continue // until the script has begun
	}
	begin := time.Now()
	if err := p.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if took := time.Since(begin); took >= stopWithin {
		t.Errorf("Stop of a busy server took %v, want less than %v", took, stopWithin)
	}
	if err := <-busy; err == nil {
		t.Error("the endless script answered, want an error")
	}
}

func TestLaunchWithoutRedisServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Launch(t.TempDir()); !errors.Is(err, ErrNoServer) {
		t.Errorf("Launch without a redis-server = %v, want %v", err, ErrNoServer)
	}
}

func TestServerKeepsItsFilesInItsDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := Launch(dir, AOF())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, name := range []string{"redis.log", "appendonlydir"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("after Launch: %v", err)
		}
	}
}

func TestLastArgWins(t *testing.T) {
	t.Parallel()
	p := launch(t, AOF(), Arg("appendfsync", "no"), Arg("save", "900", "1"), Arg("port", "1"))
	client := impatient(p.Addr())
	defer client.Close()
	for name, want := range map[string]string{"appendonly": "yes", "appendfsync": "no", "save": "900 1"} {
		got, err := client.ConfigGet(t.Context(), name).Result()
		if err != nil || got[name] != want {
			t.Errorf("CONFIG GET %s = %v, %v, want %q", name, got, err, want)
		}
	}
}
