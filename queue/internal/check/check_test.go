package check

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestName(t *testing.T) {
	for _, tt := range []struct {
		name string
		ok   bool
	}{
		{"phone", true},
		{"A-Za-z0-9_.-", true},
		{"7", true},
		{strings.Repeat("a", 64), true},
		{strings.Repeat("a", 65), false},
		{"", false},
		{" ", false},
		{"two words", false},
		{"a:b", false},
		{"a/b", false},
		{"{a}", false},
		{"café", false},
		{"a\n", false},
		{"a\x00b", false},
		{"\xff", false},
	} {
		err := Name(tt.name)
		if (err == nil) != tt.ok {
			t.Errorf("Name(%q) = %v, want an error: %v", tt.name, err, !tt.ok)
		}
		if err != nil && err.Error() != "want 1 to 64 characters out of A-Z, a-z, 0-9, _, . and -" {
			t.Errorf("Name(%q) = %q", tt.name, err)
		}
	}
}

func TestQueue(t *testing.T) {
	for _, tt := range []struct {
		name string
		ok   bool
	}{
		{"default", true},
		{"two words", true},
		{"eu:critical", true},
		{"ключ", true},
		{"", false},
		{" \t\n", false},
		{"{a", false},
		{"a}", false},
		{"a{b}c", false},
	} {
		err := Queue(tt.name)
		if (err == nil) != tt.ok {
			t.Errorf("Queue(%q) = %v, want an error: %v", tt.name, err, !tt.ok)
		}
		if err != nil && err.Error() != "want a name without braces" {
			t.Errorf("Queue(%q) = %q", tt.name, err)
		}
	}
}

func TestRange(t *testing.T) {
	for _, tt := range []struct {
		v    int
		want string
	}{
		{1, ""},
		{5, ""},
		{9, ""},
		{0, "it is 0, want 1 to 9"},
		{-1, "it is -1, want 1 to 9"},
		{10, "it is 10, want 1 to 9"},
	} {
		if got := text(Range(tt.v, 1, 9)); got != tt.want {
			t.Errorf("Range(%d, 1, 9) = %q, want %q", tt.v, got, tt.want)
		}
	}
	if got, want := text(Range(time.Millisecond, time.Second, 24*time.Hour)), "it is 1ms, want 1s to 24h0m0s"; got != want {
		t.Errorf("a range of durations: %q, want %q", got, want)
	}
	if err := Range(3, 3, 3); err != nil {
		t.Errorf("the only value of a range: %v", err)
	}
}

func TestClip(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"short", "short"},
		{strings.Repeat("x", 80), strings.Repeat("x", 80)},
		{strings.Repeat("x", 81), strings.Repeat("x", 80) + "..."},
		{strings.Repeat("x", 1<<20), strings.Repeat("x", 80) + "..."},
	} {
		if got := Clip(tt.in); got != tt.want {
			t.Errorf("Clip of %d bytes = %q, want %q", len(tt.in), got, tt.want)
		}
	}
}

func TestInner(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"queue: invalid policy", "invalid policy"},
		{"batch: gone", "gone"},
		{"schedule: no entry", "no entry"},
		{"queue: batch: gone", "batch: gone"}, // one prefix, the outermost
		{"throttle: unavailable", "throttle: unavailable"},
		{"the queue: full", "the queue: full"},
		{"queue:", "queue:"},
		{"", ""},
	} {
		if got := Inner(errors.New(tt.in)); got != tt.want {
			t.Errorf("Inner(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	wrapped := fmt.Errorf("queue: %w", errors.New("no key"))
	if got := Inner(wrapped); got != "no key" {
		t.Errorf("Inner of an error that wraps another = %q", got)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
