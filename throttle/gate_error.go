package throttle

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalidGate says that opening hours make no sense. See [GateError].
var ErrInvalidGate = errors.New("throttle: invalid gate")

// GateError is one fault of a gate. It unwraps to [ErrInvalidGate].
type GateError struct {
	Field string // what is wrong: "gate", "text", "hours", "weekday", "opening", "closing", "date", "zone", or "word"
	Value string // as it was given, clipped when long
	Want  string // what is right
}

func (e *GateError) Error() string { return ErrInvalidGate.Error() + ": " + e.short() }

func (e *GateError) Unwrap() error { return ErrInvalidGate }

func (e *GateError) short() string { return e.Field + " " + e.Value + ", want " + e.Want }

// gateFaults collects what is wrong.
type gateFaults []*GateError

func (f *gateFaults) add(field, value, want string) {
	*f = append(*f, &GateError{Field: field, Value: value, Want: want})
}

// gateTextError is what is wrong with a text.
type gateTextError struct {
	text   string
	faults gateFaults
}

func (e *gateTextError) Error() string {
	var all []string
	for _, f := range e.faults {
		all = append(all, f.short())
	}
	return fmt.Sprintf("%v: %s: %s; right is for example %q", ErrInvalidGate, quote(e.text), strings.Join(all, "; "), gateExample)
}

const gateExample = "09:00-21:00 Mon-Fri Europe/Berlin"

func (e *gateTextError) Unwrap() []error {
	var errs []error
	for _, f := range e.faults {
		errs = append(errs, f)
	}
	return errs
}
