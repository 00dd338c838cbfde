package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/headwayq/headway/httplimit"
)

type userKey struct{}

func user(r *http.Request) (string, bool) {
	id, ok := r.Context().Value(userKey{}).(string)
	return id, ok
}

func TestByUser(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, tc := range []struct {
		name    string
		user    any
		without httplimit.KeyFunc
		want    string
		err     error
	}{
		{"user", "u1", httplimit.ByIP(), "u1", nil},
		{"nobody", nil, httplimit.ByIP(), "no user|192.0.2.1", nil},
		{"nobody, refused", nil, nil, "", httplimit.ErrNoKey},
		{"a user without a name", "", nil, "", httplimit.ErrNoKey},
		{"nobody, and no other key", nil, httplimit.ByHeader("X-Key"), "", httplimit.ErrNoKey},
		{"nobody, and a fault", nil, func(*http.Request) (string, error) { return "", broken }, "", broken},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r = r.WithContext(context.WithValue(r.Context(), userKey{}, tc.user))
		got, err := httplimit.ByUser(user, tc.without)(r)
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: key = %q, %v, want %q, %v", tc.name, got, err, tc.want, tc.err)
		}
	}
}

func TestByHeader(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		values []string
		want   string
	}{
		{[]string{"k1"}, "k1"}, {nil, noKey}, {[]string{""}, noKey}, {[]string{"k1", "k2"}, noKey},
	} {
		if got := keyOf(t, httplimit.ByHeader("x-api-key"), request("", "X-Api-Key", tc.values...)); got != tc.want {
			t.Errorf("key of %q = %q, want %q", tc.values, got, tc.want)
		}
	}
}

func TestByRoute(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	var within string // the key that a handler of the mux finds
	mux.HandleFunc("GET /users/{id}", func(_ http.ResponseWriter, r *http.Request) {
		within, _ = httplimit.ByRoute(nil)(r)
	})
	for _, tc := range []struct{ method, path, before, bare string }{
		{http.MethodGet, "/users/1", "GET /users/{id}", "GET /users/1"},
		{http.MethodGet, "/users/2", "GET /users/{id}", "GET /users/2"},
		{http.MethodGet, "/nowhere", "no route", "GET /nowhere"},
		{http.MethodPost, "/users/1", "no route", "POST /users/1"},
	} {
		r := httptest.NewRequest(tc.method, tc.path, nil)
		if got := keyOf(t, httplimit.ByRoute(mux), r); got != tc.before {
			t.Errorf("key of %s %s before a mux = %q, want %q", tc.method, tc.path, got, tc.before)
		}
		if got := keyOf(t, httplimit.ByRoute(nil), r); got != tc.bare {
			t.Errorf("key of %s %s without a mux = %q, want %q", tc.method, tc.path, got, tc.bare)
		}
		within = ""
		mux.ServeHTTP(httptest.NewRecorder(), r)
		if want := map[bool]string{true: tc.before}[tc.before != "no route"]; within != want {
			t.Errorf("key of %s %s within a mux = %q, want %q", tc.method, tc.path, within, want)
		}
	}
}

func TestJoinKeepsKeysApart(t *testing.T) {
	t.Parallel()
	seen := make(map[string][]string)
	parts := []string{"a", "b", "a|b", "|", "%", "%7C", "a%7Cb", ""}
	for _, a := range parts {
		for _, b := range parts {
			key := keyOf(t, httplimit.Join(httplimit.Same(a), httplimit.Same(b)), nil)
			if other, known := seen[key]; known {
				t.Errorf("Join(%q, %q) = %q, which is Join(%q) too", a, b, key, other)
			}
			seen[key] = []string{a, b}
		}
	}
	if got := keyOf(t, httplimit.Join(httplimit.Same("a"), httplimit.ByHeader("X-Key")), request("", "X-Other")); got != noKey {
		t.Errorf("Join with a key that is missing = %q, want %q", got, noKey)
	}
}
