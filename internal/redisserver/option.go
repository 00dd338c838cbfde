package redisserver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// WithoutFunctionsEnv starts all servers without functions, so that all scripts run by EVALSHA.
const WithoutFunctionsEnv = "HEADWAY_TEST_WITHOUT_FUNCTIONS"

// An Option changes how a server is started. A nil Option changes nothing.
type Option func(*settings)

// settings are the directives of a redis-server, in the order they were given.
type settings struct {
	directives []directive
	watch      []string // lines for a sentinel; nil for a server that keeps data
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

// AOF makes the server write every change to disk before it answers, so that
// it still has its data after [Process.Kill]. Without it a restart is empty.
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
		if opt != nil {
			opt(s)
		}
	}
	return s
}

func (s *settings) set(name string, values ...string) {
	s.directives = slices.DeleteFunc(s.directives, func(d directive) bool { return d.name == name })
	s.directives = append(s.directives, directive{name, values})
}

// args returns the command line, fixed directives last so that they win. A sentinel has a
// file instead, in which it keeps what it has found out.
func (s *settings) args(dir, port string) ([]string, error) {
	if s.watch != nil {
		file := filepath.Join(dir, "sentinel.conf")
		args := []string{file, "--sentinel"}
		if _, err := os.Stat(file); err == nil {
			return args, nil
		}
		lines := append([]string{"bind " + loopback, "port " + port, "dir " + dir, "daemonize no"}, s.watch...)
		return args, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
	}
	var args []string
	for _, d := range s.directives {
		args = append(args, "--"+d.name)
		args = append(args, d.values...)
	}
	if os.Getenv(WithoutFunctionsEnv) != "" {
		args = append(args, "--rename-command", "FCALL", "", "--rename-command", "FUNCTION", "")
	}
	return append(args,
		"--bind", loopback, "--port", port, "--dir", dir, "--daemonize", "no"), nil
}
