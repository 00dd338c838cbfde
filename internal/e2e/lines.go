package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// LineWriter appends values to a file as JSON lines. Several processes may share the
// file: grants and the records of worker processes are written so. It is safe for
// concurrent use.
type LineWriter struct{ file *os.File }

// OpenLines opens the file at path to append to it, and creates it for its owner only.
func OpenLines(path string) (*LineWriter, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &LineWriter{file: f}, nil
}

// Write appends v with one write, unbuffered: with O_APPEND lines of several processes
// do not mix, and a process that is killed loses none that it wrote.
func (w *LineWriter) Write(v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = w.file.Write(append(line, '\n'))
	}
	return err
}

// Close closes the file.
func (w *LineWriter) Close() error { return w.file.Close() }

// ReadLines reads JSON lines, each into a T that must be valid. Blank lines are left out.
func ReadLines[T any](r io.Reader, valid func(T) bool) ([]T, error) {
	var all []T
	buf := bufio.NewReader(r)
	for number := 1; ; number++ {
		line, err := buf.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var v T
			if json.Unmarshal(line, &v) != nil || !valid(v) {
				return nil, fmt.Errorf("line %d is not one of ours", number)
			}
			all = append(all, v)
		}
		if last {
			return all, nil
		}
	}
}
