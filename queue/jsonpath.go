package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hibiken/asynq"
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

// JSONKey returns a [KeyFunc] that finds the key in a JSON payload. A path is $
// for the payload itself, then steps: .name, ['any name'], ["any name"] or [0].
// Examples are $.to, $.a.b[0] and $['odd key'][2]; it is a part of RFC 9535,
// without wildcards, slices, filters and negative indexes. A path has at most
// 1024 bytes and 32 steps; another one is a [*PathError].
//
// The value must be a string that is not empty, or an integer:
//
//	"13612345678", 13612345678   both give the key 13612345678
//	90071992547409931234567890   every digit is kept
//	-0, 1.0, 1e3                 refused: other spellings of an integer would be other keys
//	+1, 01                       refused: not JSON
//	"+1", " 1", "01", "é"        four keys as they stand: nothing is trimmed or normalised
//	"\ud800", "\ufffd"           refused: damaged text, two numbers may have become one
//	true, null, {}, [], missing  refused
//
// The whole payload must be one JSON value. Names match exactly, upper and lower
// case are different, and of a name that comes twice in an object the last one
// counts, as in encoding/json. What is refused is a [*PayloadError], which says
// what is wrong and where on the path, without any content of the payload.
//
// The function is safe for concurrent use. It does not keep the payload.
func JSONKey(path string) (KeyFunc, error) {
	p, err := parsePath(path)
	if err != nil {
		return nil, err
	}
	return func(task *asynq.Task) (string, error) {
		return p.key(task.Payload())
	}, nil
}

// MustJSONKey is [JSONKey] for a path in the source code: it panics when the
// path is malformed.
func MustJSONKey(path string) KeyFunc {
	key, err := JSONKey(path)
	if err != nil {
		panic(err.Error())
	}
	return key
}

// JSONCost returns a [CostFunc] that finds the cost in a JSON payload, with
// paths and errors as in [JSONKey]. The value must be an integer within the
// range of int; a string is refused, and so is -0. Whether a cost makes sense
// is for [Policy.Demand] to say.
func JSONCost(path string) (CostFunc, error) {
	p, err := parsePath(path)
	if err != nil {
		return nil, err
	}
	return func(task *asynq.Task) (int, error) {
		return p.cost(task.Payload())
	}, nil
}

// MustJSONCost is [JSONCost] for a path in the source code: it panics when the
// path is malformed.
func MustJSONCost(path string) CostFunc {
	cost, err := JSONCost(path)
	if err != nil {
		panic(err.Error())
	}
	return cost
}

// key reads the value at the path as a key.
func (p path) key(payload []byte) (string, error) {
	value, err := p.find(payload)
	if err != nil {
		return "", err
	}
	if value[0] != '"' {
		digits, reason := integer(value, "a string or an integer")
		if reason != "" {
			return "", p.fault(len(p.steps), reason)
		}
		return digits, nil
	}
	var key string
	if text, ok := plain(value); ok {
		key = string(text)
	} else if err := json.Unmarshal(value, &key); err != nil {
		return "", p.fault(len(p.steps), "is not a string that Go can read")
	}
	switch {
	case key == "":
		return "", p.fault(len(p.steps), "is an empty string")
	// invalid UTF-8 and lone surrogates are decoded to U+FFFD: broken numbers would share one key
	case strings.ContainsRune(key, utf8.RuneError):
		return "", p.fault(len(p.steps), "is damaged text (invalid UTF-8, a lone surrogate or U+FFFD)")
	}
	return key, nil
}

// cost reads the value at the path as a number of permits.
func (p path) cost(payload []byte) (int, error) {
	value, err := p.find(payload)
	if err != nil {
		return 0, err
	}
	digits, reason := integer(value, "an integer")
	if reason != "" {
		return 0, p.fault(len(p.steps), reason)
	}
	cost, err := strconv.Atoi(digits)
	if err != nil {
		return 0, p.fault(len(p.steps), "is an integer out of range")
	}
	return cost, nil
}

// find returns the raw JSON of the value that the path leads to, never empty.
// Values stay raw on the way, so that a number is never rounded and the objects
// beside the path are never built.
func (p path) find(payload []byte) (json.RawMessage, error) {
	if !json.Valid(payload) {
		var value json.RawMessage
		return nil, p.fault(0, malformed(json.Unmarshal(payload, &value)))
	}
	begin := skipSpace(payload, 0)
	value := json.RawMessage(payload[begin:skipValue(payload, begin)])
	for i, s := range p.steps {
		next, reason := s.into(value)
		if reason != "" {
			return nil, p.fault(i, reason)
		}
		if len(next) == 0 { // never so for a value that is there: even 0 is a byte
			return nil, p.fault(i+1, "is missing")
		}
		value = next
	}
	return value, nil
}

// into returns the field or element of value that the step leads to, empty when
// there is none, or the reason why value has no such thing.
func (s step) into(value json.RawMessage) (next json.RawMessage, reason string) {
	if s.index < 0 {
		if value[0] != '{' {
			return nil, "is " + kind(value) + ", want an object"
		}
		return fieldOf(value, s.name), ""
	}
	if value[0] != '[' {
		return nil, "is " + kind(value) + ", want an array"
	}
	return elementOf(value, s.index), ""
}

// fault builds the error about the value after the first n steps.
func (p path) fault(n int, reason string) error {
	return &PayloadError{Path: p.text, At: p.until(n), Reason: reason}
}

// malformed describes an error of encoding/json by its place only: its text
// quotes the payload.
func malformed(err error) string {
	if se, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("is not one JSON value (byte %d)", se.Offset)
	}
	return "is not one JSON value"
}

// integer returns the digits of an integer as they stand in the payload, or the
// reason why value is none. JSON itself allows no plus sign and no leading zero,
// so without -0 every integer has exactly one spelling, and one key.
func integer(value json.RawMessage, want string) (digits, reason string) {
	switch {
	case value[0] != '-' && (value[0] < '0' || value[0] > '9'):
		return "", "is " + kind(value) + ", want " + want
	case bytes.ContainsAny(value, ".eE"):
		return "", "is a number with a fraction or an exponent, want " + want
	case string(value) == "-0":
		return "", "is an integer in an unusual spelling, want the usual one"
	}
	return string(value), ""
}

// kind names the type of a JSON value by its first byte.
func kind(value json.RawMessage) string {
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// What is here reads JSON that json.Valid has found to be right, and only as much
// of it as a path needs: each admission of a task does so.

// fieldOf is the value of an object's last field of a name, nil when there is none.
func fieldOf(object []byte, name string) (value []byte) {
	for i := skipSpace(object, 1); object[i] != '}'; i = skipComma(object, i) {
		end := skipValue(object, i)
		matches := isNamed(object[i:end], name)
		i = skipSpace(object, skipSpace(object, end)+1) // behind the colon
		end = skipValue(object, i)
		if matches {
			value = object[i:end]
		}
		i = end
	}
	return value
}

// elementOf is the n-th value of an array, nil when it has fewer.
func elementOf(array []byte, n int) []byte {
	for i := skipSpace(array, 1); array[i] != ']'; i = skipComma(array, i) {
		end := skipValue(array, i)
		if n == 0 {
			return array[i:end]
		}
		n--
		i = end
	}
	return nil
}

// isNamed compares a quoted name with one that is valid UTF-8 without U+FFFD.
func isNamed(quoted []byte, name string) bool {
	text, ok := plain(quoted)
	if !ok {
		var decoded string
		return json.Unmarshal(quoted, &decoded) == nil && decoded == name
	}
	return string(text) == name
}

// plain is what is between the quotes, when that is the text as it stands.
func plain(quoted []byte) (text []byte, ok bool) {
	text = quoted[1 : len(quoted)-1]
	return text, bytes.IndexByte(text, '\\') < 0 && utf8.Valid(text)
}

// skipValue is where the value ends that begins at i.
func skipValue(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = lastOfString(b, i)
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 {
				return i // behind a number or a word
			}
			depth--
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
			continue
		default: // a number or a word goes on
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}

// lastOfString is where the quote is that ends the string of the one at i.
func lastOfString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipComma is where the next value or name begins, or what they are in ends.
func skipComma(b []byte, i int) int {
	if i = skipSpace(b, i); b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	return i
}
