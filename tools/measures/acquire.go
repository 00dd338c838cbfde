package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headwayq/headway/internal/redistest"
)

const module = "github.com/headwayq/headway"

// filesOfOneAcquire builds ./oneacquire with coverage counters, lets it take one
// permit from a redis-server of its own, and returns the files of this module in
// which a line ran between the call and its answer.
func filesOfOneAcquire(root string) ([]string, error) {
	temp, err := os.MkdirTemp("", "measures")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	server, err := redistest.Launch(temp)
	if errors.Is(err, redistest.ErrNoServer) {
		return nil, errors.New("redis-server is not installed: run tools/install-redis")
	}
	if err != nil {
		return nil, err
	}
	defer server.Close()

	program, counters, profile := filepath.Join(temp, "oneacquire"), filepath.Join(temp, "counters"), filepath.Join(temp, "profile")
	if err := os.Mkdir(counters, 0o700); err != nil {
		return nil, err
	}
	steps := []*exec.Cmd{
		exec.Command("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"/...", "-o", program, "./tools/measures/oneacquire"),
		exec.Command(program, server.Addr(), counters),
		exec.Command("go", "tool", "covdata", "textfmt", "-i="+counters, "-o="+profile),
	}
	for _, step := range steps {
		step.Dir = root
		if out, err := step.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", step.Args, err, out)
		}
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	return coveredFiles(text), nil
}

// coveredFiles reads a coverage profile: its lines end in how often a block ran.
func coveredFiles(profile []byte) []string {
	ran := make(map[string]bool)
	for line := range bytes.Lines(profile) {
		text := strings.TrimSpace(string(line))
		name, rest, ok := strings.Cut(text, ":")
		name = strings.TrimPrefix(name, module+"/")
		if !ok || strings.HasPrefix(name, "tools/") || strings.HasSuffix(rest, " 0") {
			continue
		}
		if strings.HasSuffix(name, ".go") {
			ran[name] = true
		}
	}
	return slices.Sorted(maps.Keys(ran))
}
