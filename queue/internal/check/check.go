// Package check holds what package queue and those below it check and print alike.
package check

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

const nameMax = 64

// Name wants what a rule's name is: it is part of a key and of task ids.
func Name(name string) error {
	legal := strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == ""
	if name == "" || len(name) > nameMax || !legal {
		return fmt.Errorf("want 1 to %d characters out of A-Z, a-z, 0-9, _, . and -", nameMax)
	}
	return nil
}

// Queue wants a name that can stand between the braces of a key.
func Queue(name string) error {
	if strings.TrimSpace(name) == "" || strings.ContainsAny(name, "{}") {
		return errors.New("want a name without braces")
	}
	return nil
}

// Range wants a value from lo to hi.
func Range[T cmp.Ordered](v, lo, hi T) error {
	if v < lo || v > hi {
		return fmt.Errorf("it is %v, want %v to %v", v, lo, hi)
	}
	return nil
}

// Clip keeps an error readable when somebody passes a whole file as a name.
func Clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// Inner is the text of an error of these packages, to stand inside that of another.
func Inner(err error) string {
	text := err.Error()
	for _, prefix := range []string{"queue: ", "batch: ", "schedule: "} {
		if inner, ok := strings.CutPrefix(text, prefix); ok {
			return inner
		}
	}
	return text
}
