package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

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
