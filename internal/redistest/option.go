package redistest

import (
	"os"
	"slices"
	"testing"
)

// withoutEnv starts all servers without functions, so that all scripts run by EVALSHA.
const withoutEnv = "HEADWAY_TEST_WITHOUT_FUNCTIONS"

func withoutFunctions() bool { return os.Getenv(withoutEnv) != "" }

// NeedFunctions skips a test that loads functions, or counts their calls, where servers have none.
func NeedFunctions(tb testing.TB) {
	tb.Helper()
	if withoutFunctions() {
		tb.Skipf("redistest: this test needs functions, and with %s servers have none", withoutEnv)
	}
}

// An Option changes how a server is started.
type Option func(*settings)

// settings are the directives of a redis-server, in the order they were given.
type settings struct {
	directives []directive
}

type directive struct {
	name   string
	values []string
}

// Arg sets any directive of redis.conf, such as Arg("maxmemory", "2mb") or
// Arg("save", "900", "1"). The last Arg of a name wins, also over the defaults.
// bind, daemonize, dir and port belong to this package.
func Arg(name string, values ...string) Option {
	return func(s *settings) { s.set(name, values...) }
}

// Own gives a test a server that no other test uses. A test needs it that changes the server itself (its
// settings, users, functions, scripts or statistics), or runs a program that uses database 0.
func Own() Option { return func(*settings) {} }

// AOF makes the server write every change to disk before it answers, so that
// it still has its data after [Server.Kill]. Without it a restart is empty.
func AOF() Option {
	return func(s *settings) {
		s.set("appendonly", "yes")
		s.set("appendfsync", "always")
	}
}

func newSettings(opts []Option) *settings {
	s := &settings{}
	s.set("save", "")
	s.set("appendonly", "no")
	for _, opt := range opts {
		opt(s)
	}
	return s
}

func (s *settings) set(name string, values ...string) {
	s.directives = slices.DeleteFunc(s.directives, func(d directive) bool { return d.name == name })
	s.directives = append(s.directives, directive{name, values})
}

// args returns the command line, fixed directives last so that they win.
func (s *settings) args(dir, port string) []string {
	var args []string
	for _, d := range s.directives {
		args = append(args, "--"+d.name)
		args = append(args, d.values...)
	}
	if withoutFunctions() {
		args = append(args, "--rename-command", "FCALL", "", "--rename-command", "FUNCTION", "")
	}
	return append(args,
		"--bind", loopback, "--port", port, "--dir", dir, "--daemonize", "no")
}
