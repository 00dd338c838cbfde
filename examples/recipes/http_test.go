package recipes

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/throttle"
)

// status is what a handler answers to a request for a path from an address.
func status(h http.Handler, method, path, from string) int {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = from + ":50000"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

func ok(http.ResponseWriter, *http.Request) {}

func TestLimited(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		site, err := Limited(b.rdb, http.HandlerFunc(ok))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 101 {
			want := http.StatusOK
			if i == 100 {
				want = http.StatusTooManyRequests
			}
			if got := status(site, "GET", "/", "192.0.2.1"); got != want {
				t.Fatalf("request %d of an address: %d, want %d", i+1, got, want)
			}
		}
		if got := status(site, "GET", "/", "192.0.2.2"); got != http.StatusOK {
			t.Errorf("a request of another address: %d, want 200", got)
		}
	})
}

func TestKeys(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /users/{id}", ok)
	user := func(r *http.Request) (string, bool) { return r.Header.Get("X-User"), r.Header.Get("X-User") != "" }
	keys := Keys(mux, user)
	for _, tc := range []struct {
		kind, user, want string
	}{
		{"IP", "", "203.0.113.9"}, {"USER", "t1/u1", "t1/u1"}, {"USER", "", "no user|10.0.0.1"},
		{"METHOD", "", "GET /users/{id}"}, {"CUSTOM", "t1/u1", "t1"}, {"CUSTOM", "", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/users/7", nil)
		r.RemoteAddr = "10.0.0.1:50000"
		r.Header.Set("X-Forwarded-For", "203.0.113.9")
		if tc.user != "" {
			r.Header.Set("X-User", tc.user)
		}
		got, err := keys[tc.kind](r)
		if got != tc.want || (tc.want == "") != errors.Is(err, httplimit.ErrNoKey) {
			t.Errorf("%s of user %q = %q, %v, want %q", tc.kind, tc.user, got, err, tc.want)
		}
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		limiter := func(rule string, n int) *throttle.Limiter {
			l, err := throttle.New(b.rdb, rule, throttle.Sliding(n, time.Minute), throttle.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		mux, ip := http.NewServeMux(), limiter("ip", 100)
		if err := Routes(mux, ok, ip, limiter("logins", 5)); err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			want := http.StatusOK
			if i == 5 {
				want = http.StatusTooManyRequests
			}
			if got := status(mux, "POST", "/login", "192.0.2.1"); got != want {
				t.Errorf("login %d: %d, want %d", i+1, got, want)
			}
		}
		if left, err := ip.Available(t.Context(), "192.0.2.1"); err != nil || left != 95 {
			t.Errorf("%d requests of the address are left, %v, want 95: the refused login was charged to no rule", left, err)
		}
	})
}

func TestProxied(t *testing.T) {
	t.Parallel()
	key, err := Proxied()
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("Forwarded", `for=203.0.113.9, for="[2001:db8:0:12ff::1]:50000"`) // the first is what the client claims
	if got, err := key(r); err != nil || got != "2001:db8:0:1200::/56" {
		t.Errorf("key = %q, %v, want the network that the proxy saw", got, err)
	}
}
