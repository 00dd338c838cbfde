package redistest

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redisserver"
)

// launch starts a server that stands for one that is there already.
func launch(t *testing.T, opts ...Option) *redisserver.Process {
	t.Helper()
	p, err := redisserver.Launch(t.TempDir(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, p)
	return p
}

func TestNamedServerIsClaimedAndGivenBack(t *testing.T) {
	p := launch(t, Arg("databases", "4"))
	t.Setenv(serverEnv, p.Addr())

	// Somebody's data in 0 and 2 must survive.
	mine := Start(t)
	if db := mine.ClientOptions().DB; db != 1 {
		t.Fatalf("first claim got database %d, want 1", db)
	}
	o := mine.ClientOptions()
	for _, db := range []int{0, 2} {
		o.DB = db
		if err := clientFor(t, o).Set(t.Context(), "theirs", "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		o = mine.ClientOptions()
	}

	t.Run("claims", func(t *testing.T) {
		s := Start(t)
		if db := s.ClientOptions().DB; db != 3 {
			t.Fatalf("second claim got database %d, want 3", db)
		}
		if n := s.Client(t).DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("DBSIZE of a claimed database = %d, want 0", n)
		}
		if err := s.Client(t).Set(t.Context(), "k", "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
	})

	again := Start(t)
	if db := again.ClientOptions().DB; db != 3 {
		t.Errorf("third claim got database %d, want 3 again", db)
	}
	if n := again.Client(t).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("DBSIZE of a database claimed again = %d, want 0", n)
	}
	for _, db := range []int{0, 2} {
		o := mine.ClientOptions()
		o.DB = db
		if got := clientFor(t, o).Get(t.Context(), "theirs").Val(); got != "x" {
			t.Errorf("somebody's key in database %d = %q, want x", db, got)
		}
	}
}

func TestClaimWaitsForADatabase(t *testing.T) {
	p := launch(t, Arg("databases", "2"))
	t.Setenv(serverEnv, "redis://"+p.Addr())
	first := &fakeTB{TB: t}
	options := claimDB(first, "redis://"+p.Addr())
	release := time.AfterFunc(2*claimPoll, first.cleanup[0])
	defer release.Stop()
	if got := Start(t).ClientOptions().DB; got != options.DB {
		t.Errorf("claim after a wait got database %d, want %d", got, options.DB)
	}
}

func TestLostClaimIsNotFlushed(t *testing.T) {
	p := launch(t, Arg("databases", "2"))
	options, err := parseAddr(p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	db, err := tryClaim(t.Context(), options, "me")
	if err != nil || db != 1 {
		t.Fatalf("tryClaim = %d, %v, want 1", db, err)
	}
	options.DB = db
	ours, claims := openDB(options, db), openDB(options, 0)
	defer ours.Close()
	defer claims.Close()
	claims.Set(t.Context(), claimKey(db), "another", 0)
	ours.Set(t.Context(), "theirs", "x", 0)
	if err := unclaim(options, "me"); err == nil {
		t.Error("unclaim of a lost claim = nil, want an error")
	}
	if got := ours.Get(t.Context(), "theirs").Val(); got != "x" {
		t.Errorf("a key of the new holder = %q, want x", got)
	}
}

func TestNamedServerSkipsWhatNeedsAProcess(t *testing.T) {
	p := launch(t)
	t.Setenv(serverEnv, p.Addr())
	s := Start(t)
	for name, do := range map[string]func(tb testing.TB){
		"AOF":     func(tb testing.TB) { Start(tb, AOF()) },
		"Kill":    func(tb testing.TB) { (&Server{tb: tb, options: s.options}).Kill() },
		"Restart": func(tb testing.TB) { (&Server{tb: tb, options: s.options}).Restart() },
		"Pid":     func(tb testing.TB) { (&Server{tb: tb, options: s.options}).Pid() },
	} {
		if how := (&fakeTB{TB: t}).run(do); !strings.HasPrefix(how, "skip: ") {
			t.Errorf("%s with a named server ended %q, want a skip", name, how)
		}
	}
	if s.CPU() <= 0 {
		t.Error("CPU of a named server = 0, want more")
	}
}

func TestUnreachableNamedServerIsFatal(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(serverEnv, ln.Addr().String())
	_ = ln.Close()
	how := (&fakeTB{TB: t}).run(func(tb testing.TB) { Start(tb) })
	if !strings.HasPrefix(how, "fatal: ") || !strings.Contains(how, serverEnv) {
		t.Errorf("Start on nothing ended %q, want fatal that names %s", how, serverEnv)
	}
}
