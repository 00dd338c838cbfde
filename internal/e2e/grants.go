package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
)

// Grant is one line of a grants file: a permit that Redis gave to an attempt.
type Grant struct {
	ID         string `json:"id"`          // of the message
	Phone      string `json:"phone"`       // masked, so not unique
	Key        string `json:"key"`         // groups by phone, see PhoneKey
	Attempt    string `json:"attempt"`     // the delivery that it was given to
	PromisedUs int64  `json:"promised_us"` // since 1970, Redis' clock; 0 if it was never told to wait
	GrantedUs  int64  `json:"granted_us"`  // since 1970, Redis' clock

	Charges []Charge `json:"charges,omitempty"` // by rule; none with -limit
	// Unused says that nothing was sent for sure, and its permits went back. Such a
	// line comes behind the one without it, and stands in its place.
	Unused bool `json:"unused,omitempty"`
}

// GrantWriter appends grants to a file, which several processes may share. It
// is safe for concurrent use.
type GrantWriter struct{ lines *LineWriter }

// OpenGrants opens the file at path to append to it, and creates it for its
// owner only.
func OpenGrants(path string) (*GrantWriter, error) {
	lines, err := OpenLines(path)
	if err != nil {
		return nil, fmt.Errorf("grants: %w", err)
	}
	return &GrantWriter{lines: lines}, nil
}

// Write appends g with one write: a process that is killed loses none that it wrote.
func (w *GrantWriter) Write(g Grant) error {
	if err := w.lines.Write(g); err != nil {
		return fmt.Errorf("grants: %w", err)
	}
	return nil
}

// Close closes the file.
func (w *GrantWriter) Close() error {
	if err := w.lines.Close(); err != nil {
		return fmt.Errorf("grants: %w", err)
	}
	return nil
}

// ReadGrants merges the grants files of the processes of a run, in the order
// of the grants. What is there twice counts once, be it a file that is named twice or a
// grant that an attempt was told twice.
func ReadGrants(paths ...string) ([]Grant, error) {
	var all []Grant
	for _, path := range paths {
		grants, err := readGrantsFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, grants...)
	}
	return compactGrants(all), nil
}

// compactGrants puts grants in their order, each once.
func compactGrants(all []Grant) []Grant {
	slices.SortFunc(all, func(a, b Grant) int {
		return cmp.Or(
			cmp.Compare(a.GrantedUs, b.GrantedUs),
			cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.ID, b.ID),
			cmp.Compare(a.Attempt, b.Attempt),
			compareUnused(a, b),
		)
	})
	return slices.CompactFunc(all, func(a, b Grant) bool {
		return a.GrantedUs == b.GrantedUs && a.Key == b.Key && a.ID == b.ID && a.Attempt == b.Attempt
	})
}

// compareUnused puts what is known last, that a grant was not used, first.
func compareUnused(a, b Grant) int {
	switch {
	case a.Unused == b.Unused:
		return 0
	case a.Unused:
		return -1
	}
	return 1
}

func readGrantsFile(path string) ([]Grant, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("grants: %w", err)
	}
	defer func() { _ = f.Close() }()
	// A line without a key or an instant would be left out of the count of breaches in silence.
	grants, err := ReadLines(f, func(g Grant) bool { return g.Key != "" && g.GrantedUs > 0 })
	if err != nil {
		return nil, fmt.Errorf("grants: %s: %w", path, err)
	}
	return grants, nil
}

// GrantLog remembers the grants of this process, and writes them to a file if
// there is one. It is safe for concurrent use.
type GrantLog struct {
	path string
	file *GrantWriter // nil without a path

	mu  sync.Mutex
	own []Grant
}

// OpenGrantLog opens the file at path, or none for "".
func OpenGrantLog(path string) (*GrantLog, error) {
	l := &GrantLog{path: path}
	if path == "" {
		return l, nil
	}
	file, err := OpenGrants(path)
	if err != nil {
		return nil, err
	}
	l.file = file
	return l, nil
}

// Add notes a grant. After an error nothing may be sent under it: it would be
// missing in the file.
func (l *GrantLog) Add(g Grant) error {
	l.mu.Lock()
	l.own = append(l.own, g)
	l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	return l.file.Write(g)
}

// All returns the grants of all processes that share the file, or else our own;
// with an error too.
func (l *GrantLog) All() ([]Grant, error) {
	l.mu.Lock()
	own := slices.Clone(l.own)
	l.mu.Unlock()
	if l.file == nil {
		return compactGrants(own), nil
	}
	merged, err := ReadGrants(l.path)
	if err != nil {
		return compactGrants(own), err
	}
	return merged, nil
}

// Close closes the file, if there is one.
func (l *GrantLog) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

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
