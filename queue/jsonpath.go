package queue

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hibiken/asynq"
)

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
