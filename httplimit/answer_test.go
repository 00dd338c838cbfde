package httplimit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/throttle"
)

func body(t *testing.T, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Errorf("body %q: %v", w.Body, err)
	}
	return got
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		want   float64
	}{{0, 429}, {503, 503}} {
		h := newLimit(t, httplimit.Config{Status: tc.status}, httplimit.Rule{Limiter: local(t, "ip", "1/60s"), Key: httplimit.ByIP()}).Handler(ok)
		get(t.Context(), h, "/")
		w := get(t.Context(), h, "/")
		want := map[string]any{
			"type":  "https://iana.org/assignments/http-problem-types#quota-exceeded",
			"title": "Quota Exceeded", "status": tc.want, "detail": "Try again in 60 s.", "violated-policies": []any{"ip"},
		}
		if diff := cmp.Diff(want, body(t, w)); diff != "" || float64(w.Code) != tc.want {
			t.Errorf("refused with %d (-want +got):\n%s", w.Code, diff)
		}
		if got := w.Header().Get("Cache-Control"); got != "no-store" {
			t.Errorf("Cache-Control = %q, want no-store", got)
		}
		if all := fmt.Sprint(w.Header(), w.Body); strings.Contains(all, "192.0.2.1") {
			t.Errorf("answer tells the key: %s", all)
		}
	}
}

func TestOnRefuse(t *testing.T) {
	t.Parallel()
	var told throttle.Decision
	cfg := httplimit.Config{OnRefuse: func(w http.ResponseWriter, _ *http.Request, d throttle.Decision) {
		told = d
		w.WriteHeader(http.StatusTeapot)
	}}
	h := newLimit(t, cfg, httplimit.Rule{Limiter: local(t, "ip", "1/60s"), Key: httplimit.ByIP()}).Handler(ok)
	get(t.Context(), h, "/")
	w := get(t.Context(), h, "/")
	if w.Code != http.StatusTeapot || w.Header().Get("Retry-After") != "60" || told.Rule != "ip" || told.Granted {
		t.Errorf("answer %d, Retry-After %q, told %v, want 418, 60 and the refusal", w.Code, w.Header().Get("Retry-After"), told)
	}
}

func TestFaultsOfARequest(t *testing.T) {
	t.Parallel()
	secret := errors.New("user 4711 is unknown")
	cost := func(n int, err error) func(*http.Request) (int, error) {
		return func(*http.Request) (int, error) { return n, err }
	}
	for _, tc := range []struct {
		name   string
		rule   httplimit.Rule
		want   int
		is     error
		policy bool
	}{
		{"no key", httplimit.Rule{Key: httplimit.ByHeader("X-Key")}, 403, httplimit.ErrNoKey, false},
		{"a fault in the key", httplimit.Rule{Key: func(*http.Request) (string, error) { return "", secret }}, 400, secret, false},
		{"a key that is too long", httplimit.Rule{Key: httplimit.Same(strings.Repeat("x", throttle.KeyMax+1))}, 400, throttle.ErrInvalidKey, false},
		{"a fault in the cost", httplimit.Rule{Key: httplimit.ByIP(), Cost: cost(1, secret)}, 400, secret, false},
		{"no cost", httplimit.Rule{Key: httplimit.ByIP(), Cost: cost(0, nil)}, 400, throttle.ErrInvalidCost, false},
		{"a cost above the limit", httplimit.Rule{Key: httplimit.ByIP(), Cost: cost(4, nil)}, 413, throttle.ErrExceedsLimit, true},
		{"all there is", httplimit.Rule{Key: httplimit.ByIP(), Cost: cost(3, nil)}, 200, nil, true},
	} {
		tc.rule.Limiter = local(t, "ip", "3/60s")
		w := get(t.Context(), newLimit(t, httplimit.Config{}, tc.rule).Handler(ok), "/")
		if w.Code != tc.want || w.Header().Get("Retry-After") != "" || (w.Header().Get("RateLimit-Policy") != "") != tc.policy {
			t.Errorf("%s: answer %d, %v, want %d, no Retry-After, and RateLimit-Policy: %v", tc.name, w.Code, w.Header(), tc.want, tc.policy)
		}
		if all := fmt.Sprint(w.Header(), w.Body); strings.Contains(all, "4711") {
			t.Errorf("%s: answer tells what failed: %s", tc.name, all)
		}
		if w.Code != 200 {
			want := map[string]any{"type": "about:blank", "title": http.StatusText(tc.want), "status": float64(tc.want)}
			if diff := cmp.Diff(want, body(t, w)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.name, diff)
			}
		}
		var told error
		cfg := httplimit.Config{OnError: func(_ http.ResponseWriter, _ *http.Request, err error) { told = err }}
		tc.rule.Limiter = local(t, "ip", "3/60s")
		get(t.Context(), newLimit(t, cfg, tc.rule).Handler(ok), "/")
		if !errors.Is(told, tc.is) || told != nil && (httplimit.StatusOf(told) != tc.want || strings.Contains(told.Error(), "4711")) {
			t.Errorf("%s: OnError was told %v, want %v without its text", tc.name, told, tc.is)
		}
	}
}
