package main

import (
	"slices"
	"sync"
)

// grantLog remembers the grants of this process, and writes them to a file if
// there is one. It is safe for concurrent use.
type grantLog struct {
	path string
	file *GrantWriter // nil without a path

	mu  sync.Mutex
	own []Grant
}

// openGrantLog opens the file at path, or none for "".
func openGrantLog(path string) (*grantLog, error) {
	l := &grantLog{path: path}
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

// add notes a grant. After an error nothing may be sent under it: it would be
// missing in the file.
func (l *grantLog) add(g Grant) error {
	l.mu.Lock()
	l.own = append(l.own, g)
	l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	return l.file.Write(g)
}

// all returns the grants of all processes that share the file, or else our own;
// with an error too.
func (l *grantLog) all() ([]Grant, error) {
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

func (l *grantLog) close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
