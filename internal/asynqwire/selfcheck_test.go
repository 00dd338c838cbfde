package asynqwire

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
)

// The asynq that is pinned passes, in the real time and in a bubble.
func TestSelfCheckTrustsThePinnedAsynq(t *testing.T) {
	t.Parallel()
	if err := SelfCheck(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		if err := selfCheck(func(c redis.UniversalClient) redis.UniversalClient { return c }); err != nil {
			t.Error(err)
		}
	})
}

// fork is an asynq that writes something else than the pinned one.
type fork struct {
	redis.UniversalClient
	change func(sha *string, keys []string, args []any)
}

func (f fork) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	f.change(&sha, keys, args)
	return f.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// A fork under the version of the pinned asynq is found out by what it writes about a throttled
// last attempt.
func TestSelfCheckFindsAFork(t *testing.T) {
	t.Parallel()
	ofTask := func(sha string, keys []string, args []any) bool {
		op, _ := Recognise(sha, keys, args)
		return op == OpArchive || op == OpRetry
	}
	for name, change := range map[string]func(sha *string, keys []string, args []any){
		"cuts error texts": func(sha *string, keys []string, args []any) {
			if ofTask(*sha, keys, args) {
				// the field of the text, 40 bytes of it, and the rest as an unknown field
				b := args[1].([]byte)
				i := bytes.Index(b, []byte("a cause"))
				m := append([]byte(nil), b[:i-3]...) // tag, and two bytes of length
				args[1] = append(append(m, 7<<3|2, 40), b[i:i+40]...)
			}
		},
		"archives by another script": func(sha *string, keys []string, args []any) {
			if ofTask(*sha, keys, args) {
				*sha = strings.Repeat("0", 40)
			}
		},
		"archives in other keys": func(sha *string, keys []string, args []any) {
			if ofTask(*sha, keys, args) {
				*sha = strings.Repeat("0", 40)
				for i := range keys {
					keys[i] = "other:" + keys[i]
				}
			}
		},
		"fetches by another script": func(sha *string, keys []string, args []any) {
			if op, _ := Recognise(*sha, keys, args); op == OpDequeue {
				*sha = strings.Repeat("1", 40)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := selfCheck(func(c redis.UniversalClient) redis.UniversalClient { return fork{c, change} }); err == nil {
				t.Error("the self-check trusts it")
			} else {
				t.Log(err)
			}
		})
	}
}

func TestIdentifyTellsAForkByItsPathVersionAndSum(t *testing.T) {
	t.Parallel()
	asynqIs := func(m debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{Path: "example.com/program", Deps: []*debug.Module{{Path: "example.com/other"}, &m}}
	}
	pinned := debug.Module{Path: modulePath, Version: Version, Sum: moduleSum}
	for _, c := range []struct {
		name  string
		info  *debug.BuildInfo
		known bool
	}{
		{"the pinned one", asynqIs(pinned), true},
		{"vendored", asynqIs(debug.Module{Path: modulePath, Version: Version}), true},
		{"a test", &debug.BuildInfo{Path: "example.com/program.test"}, true},
		{"no build information", nil, false},
		{"a program without modules", &debug.BuildInfo{Path: "example.com/program"}, false},
		{"another version", asynqIs(debug.Module{Path: modulePath, Version: "v0.27.0", Sum: "h1:x"}), false},
		{"another sum", asynqIs(debug.Module{Path: modulePath, Version: Version, Sum: "h1:x"}), false},
		{"a fork under the same version", asynqIs(debug.Module{Path: modulePath, Version: Version, Replace: &debug.Module{Path: "example.com/asynq", Version: Version, Sum: moduleSum}}), false},
		{"a directory", asynqIs(debug.Module{Path: modulePath, Version: Version, Replace: &debug.Module{Path: "../asynq"}}), false},
		{"replaced by the pinned one", asynqIs(debug.Module{Path: modulePath, Version: "v0.25.0", Replace: &pinned}), true},
	} {
		if err := identify(c.info, c.info != nil); (err == nil) != c.known {
			t.Errorf("%s: %v, want it known: %v", c.name, err, c.known)
		}
	}
}

// The sum that is pinned is the one that go.sum has.
func TestIdentifyKnowsTheSumOfGoSum(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if line := modulePath + " " + Version + " " + moduleSum + "\n"; !strings.Contains(string(text), line) {
		t.Errorf("go.sum does not have %q", line)
	}
}
