package schedule

import (
	"errors"
	"fmt"

	"github.com/headwayq/headway/queue/internal/check"
)

// What a caller can act on.
var (
	// ErrInvalid: an entry of a schedule makes no sense. See [EntryError].
	ErrInvalid = errors.New("schedule: invalid entry")
	// ErrInvalidCron: a cron spec can't be read. See [CronError].
	ErrInvalidCron = errors.New("schedule: invalid cron spec")
)

// CronError says what is wrong with a cron spec. It unwraps to [ErrInvalidCron].
type CronError struct {
	Spec   string
	Reason string
}

func (e *CronError) Error() string {
	return fmt.Sprintf("schedule: cron spec %q: %s", check.Clip(e.Spec), e.Reason)
}

func (e *CronError) Unwrap() error { return ErrInvalidCron }

// EntryError says what is wrong with an entry. It unwraps to [ErrInvalid],
// and to the error of the part that is wrong, if there is one.
type EntryError struct {
	Entry string // its name
	Field string // such as "Spec"
	Err   error
}

func (e *EntryError) Error() string {
	return fmt.Sprintf("schedule: entry %q: %s: %s", check.Clip(e.Entry), e.Field, e.reason())
}

func (e *EntryError) reason() string { return check.Inner(e.Err) }

func (e *EntryError) Unwrap() []error { return []error{ErrInvalid, e.Err} }

// FileError is one fault of the file of a [Schedule]. It unwraps to [ErrInvalid], and to
// the error of the part that is wrong, if there is one.
type FileError struct {
	File   string // as it was named
	Line   int    // from 1; 0 for the file as a whole
	Column int    // in characters, from 1
	Reason string
	Err    error // or nil
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("schedule: file %q: %s", check.Clip(e.File), e.Reason)
	}
	return fmt.Sprintf("schedule: file %q, line %d, column %d: %s", check.Clip(e.File), e.Line, e.Column, e.Reason)
}

func (e *FileError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrInvalid}
	}
	return []error{ErrInvalid, e.Err}
}
