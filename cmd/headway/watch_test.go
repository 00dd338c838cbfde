package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// shownText is what a command has written so far.
type shownText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shownText) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *shownText) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), text)
}

// What is repeated learns of the policies of pools that come while it runs.
func TestWatchLearnsOfNewPolicies(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	rdb := srv.Client(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var stdout shownText
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- command(ctx, []string{"rules", "--watch=100ms", "--redis", srv.Addr()}, env{stdout: &stdout, stderr: &stderr})
	}()
	soon(t, "it shows that there is no rule", func() bool { return stdout.has("RULE") })
	for _, limit := range []string{"sliding 1/20m", "sliding 7/20m"} {
		said := `{"kind":"pool","policies":[{"type":"sms","rules":[{"name":"phone","limit":"` + limit + `"}]}]}`
		if err := rdb.Set(t.Context(), "hw:process:p", said, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.ZAdd(t.Context(), "hw:processes", redis.Z{Score: float64(time.Now().UnixMicro()), Member: "p"}).Err(); err != nil {
			t.Fatal(err)
		}
		soon(t, "it shows "+limit, func() bool { return stdout.has("phone  " + limit) })
	}
	interrupt()
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d, want %d: %s", got, exitOK, &stderr)
	}
}

// A command that can't ask Redis has its exit code, also where the answer could say so.
func TestLimitOfARedisThatIsAway(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("rules:\n  phone: {limit: 1/20m, key: $.to}\npolicies:\n  sms: {rules: [phone]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]int{"limit get phone": exitAway, "limit get phone -o json": exitAway, "rules": exitAway, "limit get nobody": exitMissing} {
		var stdout, stderr bytes.Buffer
		code := command(t.Context(), append(strings.Fields(args), "--redis", "127.0.0.1:1", "-p", file), env{stdout: &stdout, stderr: &stderr})
		if code != want || stdout.Len() > 0 || stderr.Len() == 0 {
			t.Errorf("%s: exit code %d, want %d, %q, %q", args, code, want, &stdout, &stderr)
		}
	}
}

// dev goes by its flags: neither the Redis of the environment nor the policies there are its own.
func TestDevDoesNotLookAtTheEnvironment(t *testing.T) {
	t.Setenv("HEADWAY_REDIS_URL", "redis://127.0.0.1:2")
	t.Setenv("HEADWAY_POLICY", "none.yaml")
	t.Setenv("HEADWAY_SECRET_FILE", "none")
	var stdout, stderr bytes.Buffer
	args := []string{"dev", "--redis", "127.0.0.1:1", "--listen", "127.0.0.1:0"}
	if code := command(t.Context(), args, env{stdout: &stdout, stderr: &stderr}); code != exitAway || !strings.Contains(stderr.String(), "127.0.0.1:1:") {
		t.Errorf("exit code %d, want %d, because of the Redis of --redis: %s", code, exitAway, &stderr)
	}
	stderr.Reset()
	if code := command(t.Context(), append(args, "--policy", "mine.yaml"), env{stdout: &stdout, stderr: &stderr}); code != exitUsage {
		t.Errorf("with --policy: exit code %d, want %d: %s", code, exitUsage, &stderr)
	}
}
