package batch

import (
	"errors"
	"fmt"

	"github.com/headwayq/headway/queue/internal/check"
)

// What a caller can act on.
var (
	// ErrInvalid: a batch, an element of one or a feeder makes no sense. See [Error].
	ErrInvalid = errors.New("batch: invalid batch")
	// ErrNotFound: there is no such batch: it never began, was cancelled, or ended more
	// than a day ago.
	ErrNotFound = errors.New("batch: no such batch")
	// ErrExists: there is another batch of this id. See [Error].
	ErrExists = errors.New("batch: another batch has this id")
	// ErrState: the batch has ended, or was cancelled.
	ErrState = errors.New("batch: the batch has ended, or was cancelled")
)

// Error is about a batch. It unwraps to [ErrInvalid], [ErrNotFound],
// [ErrExists] or [ErrState], to throttle.ErrSchema or
// throttle.ErrUnavailable, or to the end of a context.
type Error struct {
	Batch string // its id
	Field string // such as "Window", or several, if it is about them
	Err   error
}

func (e *Error) Error() string {
	where := ""
	if e.Field != "" {
		where = e.Field + ": "
	}
	return fmt.Sprintf("batch %q: %s%s", check.Clip(e.Batch), where, check.Inner(e.Err))
}

func (e *Error) Unwrap() error { return e.Err }
