package queue

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a JSON path. Each step reads the rest of the payload again, so their
// number is what a task may cost in time.
const (
	pathMax  = 1024 // bytes
	stepsMax = 32
)

// path is a parsed JSON path: the steps from the payload to one value inside.
type path struct {
	text  string
	steps []step
}

// step goes from an object into a field, or from an array into an element.
type step struct {
	name  string
	index int // -1 means the field called name
	end   int // where the step ends in the path's text, for error messages
}

// until is the part of the path's text that leads through its first n steps.
func (p path) until(n int) string {
	if n == 0 {
		return "$"
	}
	return p.text[:p.steps[n-1].end]
}

// parsePath reads a path, or returns a [*PathError].
func parsePath(text string) (path, error) {
	s := pathScanner{text: text}
	steps, reason := s.steps()
	if reason != "" {
		return path{}, &PathError{Path: text, Pos: s.pos, Reason: reason}
	}
	return path{text: text, steps: steps}, nil
}

// pathScanner reads a path from left to right. Its methods return a reason when
// they can't go on, with pos at the fault.
type pathScanner struct {
	text string
	pos  int
}

func (s *pathScanner) steps() (steps []step, reason string) {
	if len(s.text) > pathMax {
		return nil, fmt.Sprintf("longer than %d bytes", pathMax)
	}
	// encoding/json reads damaged text as U+FFFD: a path with one would match fields that it does not mean
	if bad := strings.IndexRune(s.text, utf8.RuneError); bad >= 0 {
		s.pos = bad
		return nil, "not valid UTF-8, or the replacement character U+FFFD"
	}
	if !s.skip('$') {
		return nil, "want $ at the start"
	}
	for s.pos < len(s.text) {
		if len(steps) == stepsMax {
			return nil, fmt.Sprintf("more than %d steps", stepsMax)
		}
		next, reason := s.step()
		if reason != "" {
			return nil, reason
		}
		next.end = s.pos
		steps = append(steps, next)
	}
	return steps, ""
}

func (s *pathScanner) step() (next step, reason string) {
	switch {
	case s.skip('.'):
		next.index = -1
		next.name, reason = s.shorthand()
		return next, reason
	case !s.skip('['):
		return step{}, "want . or ["
	}
	switch c := s.peek(); {
	case c == '\'' || c == '"':
		next.index = -1
		next.name, reason = s.quoted()
	case '0' <= c && c <= '9':
		next.index, reason = s.index()
	default:
		reason = "want an index or a quoted name"
	}
	if reason == "" && !s.skip(']') {
		reason = "want ]"
	}
	return next, reason
}

// shorthand reads the name after a dot.
func (s *pathScanner) shorthand() (name, reason string) {
	start := s.pos
	for s.pos < len(s.text) && isNameByte(s.text[s.pos], s.pos > start) {
		s.pos++
	}
	if s.pos == start {
		return "", "want a name: a letter or _, then letters, digits and _"
	}
	return s.text[start:s.pos], ""
}

// isNameByte follows RFC 9535: anything beyond ASCII is a letter.
func isNameByte(c byte, digits bool) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c >= utf8.RuneSelf ||
		digits && '0' <= c && c <= '9'
}

// quoted reads a name in single or double quotes.
func (s *pathScanner) quoted() (name, reason string) {
	var (
		quote = s.text[s.pos]
		start = s.pos
		b     strings.Builder
	)
	for s.pos++; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; {
		case c == quote:
			s.pos++
			return b.String(), ""
		case c < ' ':
			return "", "control character in a name"
		case c == '\\':
			s.pos++
			if c = s.peek(); c != quote && c != '\\' {
				return "", `want \ or the quote after \`
			}
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	s.pos = start
	return "", "quote is not closed"
}

// index reads the number of an element.
func (s *pathScanner) index() (n int, reason string) {
	start := s.pos
	for c := s.peek(); '0' <= c && c <= '9'; c = s.peek() {
		s.pos++
	}
	digits := s.text[start:s.pos]
	// 31 bits on every machine, so that a path is valid on all or on none
	v, err := strconv.ParseUint(digits, 10, 31)
	if err != nil {
		s.pos = start
		return 0, "index is too large"
	}
	if len(digits) > 1 && digits[0] == '0' {
		s.pos = start
		return 0, "index has a leading zero"
	}
	return int(v), ""
}

// peek returns the next byte, 0 at the end.
func (s *pathScanner) peek() byte {
	if s.pos == len(s.text) {
		return 0
	}
	return s.text[s.pos]
}

// skip steps over the next byte if it is c.
func (s *pathScanner) skip(c byte) bool {
	if s.pos == len(s.text) || s.text[s.pos] != c {
		return false
	}
	s.pos++
	return true
}
