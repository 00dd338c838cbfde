package childprocess

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// variable says what a child of the tests does.
const variable = "HEADWAY_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(variable) {
	case "":
		os.Exit(m.Run())
	case "works":
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGTERM)
		EndWithStarter()
		Ready()
		<-end
	case "ends badly":
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGTERM)
		Ready()
		<-end
		fmt.Fprintln(os.Stderr, "it went wrong")
		os.Exit(7)
	case "can't start":
		fmt.Fprintln(os.Stderr, "no Redis")
		os.Exit(7)
	case "says something else":
		fmt.Println("hello")
		select {}
	}
	os.Exit(0)
}

func start(t *testing.T, what string) (*Process, error) {
	t.Helper()
	p, err := Start(variable, what, filepath.Join(t.TempDir(), "log"))
	if err == nil {
		t.Cleanup(p.Kill)
	}
	return p, err
}

func TestProcessWorksUntilItIsStopped(t *testing.T) {
	t.Parallel()
	p, err := start(t, "works")
	if err != nil || p.Over() {
		t.Fatalf("Start = %v, want a process that runs", err)
	}
	if err := p.Stop(); err != nil || !p.Over() {
		t.Errorf("Stop = %v, want nil", err)
	}
}

// A program that is somewhere else is started as this one is, with all of its variables.
func TestAnotherProgramIsStarted(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(self, other); err != nil {
		t.Fatal(err)
	}
	p, err := StartProgram(other, filepath.Join(t.TempDir(), "log"), "HEADWAY_TEST_OTHER=1", variable+"=works")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("Stop = %v, want nil", err)
	}
	if _, err := StartProgram(other+"-missing", filepath.Join(t.TempDir(), "log"), variable+"=works"); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestFrozenProcessIsKilled(t *testing.T) {
	t.Parallel()
	p, err := start(t, "works")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if !p.Over() || p.State().Success() {
		t.Errorf("after Kill it is %v", p.State())
	}
}

func TestProcessEndsWithItsStarter(t *testing.T) {
	t.Parallel()
	p, err := start(t, "works")
	if err != nil {
		t.Fatal(err)
	}
	_ = p.stdin.Close() // as when its starter is gone
	if err := p.await(); err == nil || p.State().ExitCode() != ForsakenCode {
		t.Errorf("it ended with %v, want code %d", err, ForsakenCode)
	}
}

// What goes wrong is told with the end of the log.
func TestFaultsOfAProcessAreTold(t *testing.T) {
	t.Parallel()
	if _, err := start(t, "can't start"); err == nil || !strings.Contains(err.Error(), "no Redis") {
		t.Errorf("Start = %v, want its log", err)
	}
	if _, err := start(t, "says something else"); err == nil || !strings.Contains(err.Error(), `it says "hello\n"`) {
		t.Errorf("Start = %v, want what it said", err)
	}
	p, err := start(t, "ends badly")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "code 7:\nit went wrong") {
		t.Errorf("Stop = %v, want its code and its log", err)
	}
}
