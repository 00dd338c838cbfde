package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// retryLayers counts the rows of the table in docs/architecture.md that lists them.
func retryLayers(root string) (int, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		return 0, err
	}
	_, section, found := strings.Cut(string(text), "\n## Retries around one acquire\n")
	_, table, separated := strings.Cut(section, "\n|---|---|---|\n")
	if !found || !separated {
		return 0, errors.New("docs/architecture.md has no table of the retries around one acquire")
	}
	rows := 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		rows++
	}
	return rows, nil
}

var scriptPin = regexp.MustCompile(`"[0-9a-f]{40}"`)

// asynqPins counts the packages whose sources, tests left out, have the SHA-1 of a script: ours have none, so it is asynq's.
func asynqPins(root string) (int, error) {
	packages := make(map[string]bool)
	err := walkSources(root, ".go", func(dir, name string, src []byte) error {
		if !strings.HasSuffix(name, "_test.go") && scriptPin.Match(src) {
			packages[dir] = true
		}
		return nil
	})
	return len(packages), err
}
