package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ErrNoKey says that a request has nothing that a rule could count it for.
var ErrNoKey = errors.New("httplimit: request has no key")

// KeyFunc says what a request is counted for, 1 to [throttle.KeyMax] bytes. An
// error answers 400, and 403 when it unwraps to [ErrNoKey]. It is called many at a
// time.
//
// What a client chooses freely is no key: with a new one for each request it would
// never be limited, and each key takes room in Redis.
type KeyFunc func(*http.Request) (string, error)

// RequestError says for which rule a request gave no key, or no cost. It unwraps to
// the error of the function that looked.
type RequestError struct {
	Rule string
	What string // "key" or "cost"
	Err  error
}

// Error leaves the text of Err out: it may tell the key.
func (e *RequestError) Error() string {
	return fmt.Sprintf("httplimit: rule %q: the request gives no %s", e.Rule, e.What)
}

func (e *RequestError) Unwrap() error { return e.Err }

// Same counts all requests together under one key.
func Same(key string) KeyFunc {
	return func(*http.Request) (string, error) { return key, nil }
}

// ByUser counts by the user that your authentication found: user reads it from the
// request's context, say, and answers false when there is none. Those are counted
// by without, apart from all users; a nil without refuses them with [ErrNoKey].
func ByUser(user func(*http.Request) (string, bool), without KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		if id, ok := user(r); ok && id != "" {
			return id, nil
		}
		if without == nil {
			return "", ErrNoKey
		}
		key, err := without(r)
		if err != nil {
			return "", err
		}
		return "no user|" + key, nil
	}
}

// ByHeader counts by the value of a header field, an API key say. A request
// without it, or with several, is refused with [ErrNoKey]. Let something in front
// verify the value: a client that makes values up is not limited.
func ByHeader(name string) KeyFunc {
	return func(r *http.Request) (string, error) {
		values := r.Header.Values(name)
		if len(values) != 1 || values[0] == "" {
			return "", ErrNoKey
		}
		return values[0], nil
	}
}

// ByRoute counts by the pattern that mux has for a request: "GET /users/{id}" is
// one key whatever the id, and what has no pattern is one key too. With a nil mux
// it is [http.Request].Pattern, which a ServeMux sets before it calls the handlers
// that are registered with it; where that is empty it is method and path, so put
// no such rule before a mux: each path that a client makes up is a new key.
func ByRoute(mux *http.ServeMux) KeyFunc {
	return func(r *http.Request) (string, error) {
		if mux != nil {
			if _, pattern := mux.Handler(r); pattern != "" {
				return pattern, nil
			}
			return "no route", nil
		}
		if r.Pattern != "" {
			return r.Pattern, nil
		}
		return r.Method + " " + r.URL.Path, nil
	}
}

// escaped keeps joined keys apart: "a|b" and "c" are not "a" and "b|c".
var escaped = strings.NewReplacer("%", "%25", "|", "%7C")

// Join counts by several keys at once: per address and route, say. When one fails,
// so does Join.
func Join(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		parts := make([]string, len(keys))
		for i, key := range keys {
			part, err := key(r)
			if err != nil {
				return "", err
			}
			parts[i] = escaped.Replace(part)
		}
		return strings.Join(parts, "|"), nil
	}
}
