package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestServersAreApart(t *testing.T) {
	t.Parallel()
	a, b := Start(t), Start(t)
	if err := a.Client(t).Set(t.Context(), "k", "a", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.Client(t).Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("GET on the other server = %v, want %v", err, redis.Nil)
	}
	if n := a.Client(t).DBSize(t.Context()).Val(); n != 1 {
		t.Errorf("DBSIZE = %d, want 1", n)
	}
}

func TestRestartKeepsAddress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		opts []Option
		down func(*Server)
		want string // what the key holds afterwards
	}{
		{"restart", nil, (*Server).Restart, ""},
		{"restart, aof", []Option{AOF()}, (*Server).Restart, "v"},
		{"kill, aof", []Option{AOF()}, func(s *Server) { s.Kill(); s.StartAgain() }, "v"},
		{"kill", nil, func(s *Server) { s.Kill(); s.StartAgain() }, ""},
		{"stop, aof", []Option{AOF()}, func(s *Server) { s.Stop(); s.StartAgain() }, "v"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := Start(t, tc.opts...)
			client, addr, pid := s.Client(t), s.Addr(), s.Pid()
			if err := client.Set(t.Context(), "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			tc.down(s)
			if s.Addr() != addr || s.Pid() == pid {
				t.Errorf("addr %s, pid %d, want %s and another pid", s.Addr(), s.Pid(), addr)
			}
			if got := client.Get(t.Context(), "k").Val(); got != tc.want {
				t.Errorf("GET afterwards = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestStoppedServerRefuses(t *testing.T) {
	t.Parallel()
	s := Start(t)
	client := redis.NewClient(impatient(s.ClientOptions()))
	defer client.Close()
	s.needProcess()
	s.Stop()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("PING of a stopped server = nil, want an error")
	}
	s.StartAgain()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("PING after StartAgain: %v", err)
	}
}

func TestPausedServerIsSilent(t *testing.T) {
	t.Parallel()
	s := Start(t)
	o := impatient(s.ClientOptions())
	o.ContextTimeoutEnabled = true
	client := redis.NewClient(o)
	defer client.Close()
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := client.Ping(ctx).Err(); err == nil {
		t.Error("PING of a paused server = nil, want a time-out")
	}
	s.Resume()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("PING after Resume: %v", err)
	}
}

func TestArgReachesTheServer(t *testing.T) {
	t.Parallel()
	client := Start(t, Arg("maxmemory", "2mb")).Client(t)
	err := client.Set(t.Context(), "k", strings.Repeat("x", 4<<20), 0).Err()
	for i := 0; err == nil && i < 3; i++ { // the limit is looked at before the write
		err = client.Set(t.Context(), fmt.Sprint("k", i), "x", 0).Err()
	}
	if err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Errorf("SET beyond maxmemory = %v, want OOM", err)
	}
}

func TestCPUGrows(t *testing.T) {
	t.Parallel()
	s := Start(t)
	before := s.CPU()
	burn := "local n = 0 for i = 1, 2e6 do n = n + i % 7 end return n"
	if err := s.Client(t).Eval(t.Context(), burn, nil).Err(); err != nil {
		t.Fatal(err)
	}
	if after := s.CPU(); after <= before {
		t.Errorf("CPU after a busy script = %v, want more than %v", after, before)
	}
}

// fakeTB records how a test would have ended.
type fakeTB struct {
	testing.TB
	ended   string
	cleanup []func()
}

func (f *fakeTB) Helper()                      {}
func (f *fakeTB) TempDir() string              { return f.TB.TempDir() }
func (f *fakeTB) Cleanup(fn func())            { f.cleanup = append(f.cleanup, fn) }
func (f *fakeTB) Fatal(args ...any)            { f.end("fatal: " + fmt.Sprint(args...)) }
func (f *fakeTB) Fatalf(s string, args ...any) { f.end("fatal: " + fmt.Sprintf(s, args...)) }
func (f *fakeTB) Skipf(s string, args ...any)  { f.end("skip: " + fmt.Sprintf(s, args...)) }
func (f *fakeTB) end(how string)               { f.ended = how; panic(f) }
func (f *fakeTB) run(do func(tb testing.TB)) (how string) {
	defer func() {
		if r := recover(); r != nil && r != any(f) {
			panic(r)
		}
		for _, fn := range f.cleanup {
			defer fn()
		}
		how = f.ended
	}()
	do(f)
	return f.ended
}

func TestMissingServerIsFatalAndHelps(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(serverEnv, "")
	how := (&fakeTB{TB: t}).run(func(tb testing.TB) { Start(tb) })
	if !strings.HasPrefix(how, "fatal: ") || !strings.Contains(how, "make test") {
		t.Errorf("Start without redis-server ended %q, want fatal with a way out", how)
	}
}
