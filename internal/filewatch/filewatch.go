// Package filewatch says when files have changed, for what is configured by files and
// reads them again while a program runs: schedules and policies.
package filewatch

import (
	"context"
	"os"
	"slices"
	"time"
)

// Poll is how often the files are looked at.
const Poll = time.Second

// Stamps tell whether files have changed, in the order of their paths.
type Stamps []stamp

type stamp struct {
	changed time.Time
	size    int64
}

// Of are the stamps of files now. Take them before the files are read: what changes in
// between is then seen as a change. A file that can't be opened has the same stamp as one that is not
// there, so that it is read when it can be: its mode may change and its time may not.
func Of(paths ...string) Stamps {
	all := make(Stamps, len(paths))
	for i, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if info.Mode()&os.ModeNamedPipe == 0 { // a pipe is opened once, by who reads it
			file, err := os.Open(path)
			if err != nil {
				continue
			}
			_ = file.Close()
		}
		all[i] = stamp{info.ModTime(), info.Size()}
	}
	return all
}

// Run calls changed when a file differs from what was read, and stayed so until the next
// look: it may be half written. It looks after each pause, until ctx ends.
func Run(ctx context.Context, pause time.Duration, read Stamps, changed func(), paths ...string) {
	look := time.NewTicker(pause)
	defer look.Stop()
	seen := read
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		before := seen
		if seen = Of(paths...); slices.Equal(seen, read) || !slices.Equal(seen, before) {
			continue
		}
		read = seen
		changed()
	}
}
