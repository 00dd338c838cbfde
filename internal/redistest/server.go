package redistest

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// Server is a Redis that belongs to one test. A method that fails ends the
// test. It is safe for concurrent use.
type Server struct {
	tb      testing.TB
	options redis.Options
	process *redisserver.Process // nil when HEADWAY_TEST_REDIS names the server
}

// Start starts a redis-server in a temporary directory, waits until it answers,
// and ends it with the test. With HEADWAY_TEST_REDIS set it claims an empty
// database of that server instead; see the package comment.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	OneRedis(tb, "it starts one")
	if addr := os.Getenv(serverEnv); addr != "" {
		if len(opts) > 0 {
			tb.Skipf("redistest: this test configures its server, and %s names a running one", serverEnv)
		}
		return &Server{tb: tb, options: claimDB(tb, addr)}
	}
	p, err := redisserver.Launch(tb.TempDir(), opts...)
	if errors.Is(err, redisserver.ErrNoServer) {
		tb.Fatalf("%v; `make test` does so, too, and %s names a running one", err, serverEnv)
	}
	if err != nil {
		tb.Fatal(err)
	}
	closed(tb, p)
	return &Server{tb: tb, options: redis.Options{Addr: p.Addr()}, process: p}
}

// Addr returns the address, host and port.
func (s *Server) Addr() string { return s.options.Addr }

// ClientOptions returns new options that lead to the server and the database
// of this test. The caller may change them.
func (s *Server) ClientOptions() *redis.Options {
	o := s.options
	return &o
}

// Client returns a new client that is closed when tb ends.
func (s *Server) Client(tb testing.TB) *redis.Client {
	tb.Helper()
	return clientFor(tb, s.ClientOptions())
}

// Restart ends the server in an orderly way and starts it again on the same
// port. Without [AOF] it comes back empty.
func (s *Server) Restart() { s.tb.Helper(); s.control((*redisserver.Process).Restart) }

// Kill ends the server as a crash would. [Server.StartAgain] brings it back.
func (s *Server) Kill() { s.tb.Helper(); s.control((*redisserver.Process).Kill) }

// Stop ends the server in an orderly way, and [Server.StartAgain] starts it on
// the same port: between them connections are refused.
func (s *Server) Stop() { s.tb.Helper(); s.control((*redisserver.Process).Stop) }

// StartAgain starts a stopped or killed server and waits until it answers.
func (s *Server) StartAgain() { s.tb.Helper(); s.control((*redisserver.Process).StartAgain) }

// Pause freezes the server until [Server.Resume]: connections stay open,
// nothing answers.
func (s *Server) Pause() { s.tb.Helper(); s.control((*redisserver.Process).Pause) }

// Resume continues a paused server.
func (s *Server) Resume() { s.tb.Helper(); s.control((*redisserver.Process).Resume) }

// CPU returns the processor time that the server has used, user and system.
func (s *Server) CPU() time.Duration {
	s.tb.Helper()
	client := redis.NewClient(impatient(s.ClientOptions()))
	defer client.Close()
	info, err := client.Info(context.Background(), "cpu").Result()
	if err != nil {
		s.tb.Fatal(err)
	}
	var sum time.Duration
	for _, field := range []string{"used_cpu_user", "used_cpu_sys"} {
		value, err := redisserver.InfoField(info, field)
		if err != nil {
			s.tb.Fatal(err)
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil {
			s.tb.Fatalf("redistest: %s is %q: %v", field, value, err)
		}
		sum += time.Duration(seconds * float64(time.Second))
	}
	return sum
}

// Pid returns the process id, or 0 while the server is stopped.
func (s *Server) Pid() int {
	s.tb.Helper()
	s.needProcess()
	return s.process.Pid()
}

func (s *Server) control(do func(*redisserver.Process) error) {
	s.tb.Helper()
	s.needProcess()
	if err := do(s.process); err != nil {
		s.tb.Fatal(err)
	}
}

func (s *Server) needProcess() {
	s.tb.Helper()
	if s.process == nil {
		s.tb.Skipf("redistest: this test controls the process of its server, and %s names a running one", serverEnv)
	}
}

func clientFor(tb testing.TB, o *redis.Options) *redis.Client {
	tb.Helper()
	client := redis.NewClient(o)
	tb.Cleanup(func() {
		if err := client.Close(); err != nil {
			tb.Errorf("redistest: closing the client: %v", err)
		}
	})
	return client
}

// impatient makes o fail at the first fault. The pool is large, because after
// as many refused dials as it has places it looks again only once a second.
func impatient(o *redis.Options) *redis.Options {
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.PoolSize = 1000
	return o
}
