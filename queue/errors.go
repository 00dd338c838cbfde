package queue

import (
	"errors"
	"fmt"
)

// What a caller can act on. No error text contains a payload or a key: they may
// be personal data.
var (
	// ErrInvalidPolicy: a policy, or a set of them, makes no sense.
	ErrInvalidPolicy = errors.New("queue: invalid policy")
	// ErrInvalidPath: a JSON path can't be read. See [PathError].
	ErrInvalidPath = errors.New("queue: invalid JSON path")
	// ErrInvalidPayload: the payload has no usable value at a path. See [PayloadError].
	ErrInvalidPayload = errors.New("queue: invalid payload")
	// ErrNoKey: the task has no key for its rule; it can never run. See [DemandError].
	ErrNoKey = errors.New("queue: no key")
	// ErrBadCost: the task's cost can never be met; it can never run. See [DemandError].
	ErrBadCost = errors.New("queue: bad cost")
	// ErrNoZone: the task's recipient has no known time zone; it can never run. See [DemandError].
	ErrNoZone = errors.New("queue: no time zone")
	// ErrInvalidOption: asynq would alter or drop an option. See [OptionError].
	ErrInvalidOption = errors.New("queue: invalid option")
)

// DemandError says why a task can never run under its policy. It unwraps to
// [ErrNoKey], [ErrBadCost] or [ErrNoZone], and to the error of the [KeyFunc],
// [CostFunc] or [ZoneFunc] if there was one.
type DemandError struct {
	Type   string // of the task
	Rule   string // "" when a function of the policy panicked
	Reason string // for people, without personal data

	// Err is what the error unwraps to. Its own text may hold what a KeyFunc
	// put into its error, so Error leaves it out: log the DemandError, not Err.
	Err error
}

func (e *DemandError) Error() string {
	if e.Rule == "" {
		return fmt.Sprintf("queue: task type %q: %s", e.Type, e.Reason)
	}
	return fmt.Sprintf("queue: task type %q, rule %q: %s", e.Type, e.Rule, e.Reason)
}

func (e *DemandError) Unwrap() error { return e.Err }

// PathError says where a JSON path stops making sense. It unwraps to
// [ErrInvalidPath].
type PathError struct {
	Path   string
	Pos    int // in bytes from the start of Path, 0 to len(Path)
	Reason string
}

func (e *PathError) Error() string {
	return fmt.Sprintf("queue: JSON path %q, byte %d: %s", clip(e.Path), e.Pos, e.Reason)
}

func (e *PathError) Unwrap() error { return ErrInvalidPath }

// PayloadError says what is wrong in a payload, and where on the way along a
// JSON path. It unwraps to [ErrInvalidPayload].
type PayloadError struct {
	Path   string // the whole path
	At     string // the part of Path that leads to the fault; "$" is the payload itself
	Reason string // without content of the payload
}

func (e *PayloadError) Error() string {
	return "queue: payload: " + e.detail()
}

func (e *PayloadError) Unwrap() error { return ErrInvalidPayload }

// detail is the text without the prefix, to stand inside another error's.
func (e *PayloadError) detail() string { return e.At + " " + e.Reason }

// OptionError says which option asynq would not take as it is. It unwraps to
// [ErrInvalidOption].
type OptionError struct {
	// Option is such as "Timeout(1.5s)", or the Go type of a foreign option,
	// whose text is not ours to print.
	Option string
	Reason string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("queue: option %s: %s", e.Option, e.Reason)
}

func (e *OptionError) Unwrap() error { return ErrInvalidOption }

// clip keeps an error readable when somebody passes a whole file as a path.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
