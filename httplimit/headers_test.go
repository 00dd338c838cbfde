package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/throttle"
)

// Structured fields (RFC 9651), as far as the two need them: a list of strings
// with parameters that are integers or strings.
var (
	sfMember = regexp.MustCompile(`^"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"((?:; *[a-z*][a-z0-9_.*-]*=(?:-?[0-9]{1,15}|"[^"\\]*"))*)$`)
	sfParam  = regexp.MustCompile(`; *([a-z*][a-z0-9_.*-]*)=([^;]+)`)
	natural  = regexp.MustCompile(`^[0-9]+$`)
)

// checkFields holds a field against the draft: the parameters that it must have,
// and of what kind each is.
func checkFields(t *testing.T, w *httptest.ResponseRecorder, field, required string) {
	t.Helper()
	for _, line := range w.Header().Values(field) {
		for member := range strings.SplitSeq(line, ", ") {
			m := sfMember.FindStringSubmatch(member)
			if m == nil {
				t.Errorf("%s: %q is no item of a list", field, member)
				continue
			}
			seen := make(map[string]bool)
			for _, p := range sfParam.FindAllStringSubmatch(m[1], -1) {
				name, value := p[1], p[2]
				if seen[name] {
					t.Errorf("%s: %q has %s twice", field, member, name)
				}
				seen[name] = true
				switch name {
				case "q", "r", "t", "headway-burst":
					if !natural.MatchString(value) {
						t.Errorf("%s: %q: %s is no integer of 0 or more", field, member, name)
					}
				case "w":
					if !natural.MatchString(value) || value == "0" {
						t.Errorf("%s: %q: w is no integer of 1 or more", field, member)
					}
				case "qu":
					if value != `"concurrent-requests"` {
						t.Errorf("%s: %q: no such unit", field, member)
					}
				default:
					t.Errorf("%s: %q: parameter %s is not in the draft", field, member, name)
				}
			}
			if !seen[required] {
				t.Errorf("%s: %q has no %s", field, member, required)
			}
		}
	}
}

// answer is what a client sees of the limits.
type answer struct {
	Status        int
	Policy, Left  string
	Retry, Placed string
}

func seen(t *testing.T, w *httptest.ResponseRecorder) answer {
	t.Helper()
	checkFields(t, w, "RateLimit-Policy", "q")
	checkFields(t, w, "RateLimit", "r")
	h := w.Header()
	return answer{w.Code, strings.Join(h.Values("RateLimit-Policy"), ", "), strings.Join(h.Values("RateLimit"), ", "), h.Get("Retry-After"), h.Get("Content-Type")}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	rdb := timed(t)
	l := newLimit(t, httplimit.Config{},
		httplimit.Rule{Limiter: limiter(t, rdb, "ip", "2/60s", throttle.Config{}), Key: httplimit.ByIP()},
		httplimit.Rule{Limiter: limiter(t, rdb, "route", "bucket 10/1s burst 20", throttle.Config{}), Key: httplimit.ByRoute(nil)},
		httplimit.Rule{Limiter: limiter(t, rdb, "fine", "50/100ms", throttle.Config{}), Key: httplimit.Same("all")},
	)
	h := l.Handler(ok)
	const policy = `"ip";q=2;w=60, "route";q=10;w=1;headway-burst=20, "fine";q=50`
	const problem = "application/problem+json"
	for _, tc := range []struct {
		at   time.Duration
		want answer
	}{
		{0, answer{200, policy, `"ip";r=1, "route";r=19, "fine";r=49`, "", ""}},
		{20*time.Second + 1, answer{200, policy, `"ip";r=0;t=40, "route";r=19, "fine";r=49`, "", ""}},
		{30*time.Second + 500*time.Millisecond, answer{429, policy, `"ip";r=0;t=30, "route";r=20, "fine";r=50`, "30", problem}},
		{59*time.Second + 999*time.Millisecond, answer{429, policy, `"ip";r=0;t=1, "route";r=20, "fine";r=50`, "1", problem}},
		{60 * time.Second, answer{200, policy, `"ip";r=0;t=20, "route";r=19, "fine";r=49`, "", ""}},
	} {
		rdb.SetTime(start.Add(tc.at))
		if diff := cmp.Diff(tc.want, seen(t, get(t.Context(), h, "/a"))); diff != "" {
			t.Errorf("at %v (-want +got):\n%s", tc.at, diff)
		}
	}
}

// Whoever is refused is never told to come again in 0 s: not with a microsecond to
// wait, and not with none, because a job has its place before it.
func TestRetryAfterIsNeverZero(t *testing.T) {
	t.Parallel()
	rdb := timed(t)
	ip := limiter(t, rdb, "ip", "2/60s", throttle.Config{})
	h := newLimit(t, httplimit.Config{}, httplimit.Rule{Limiter: ip, Key: httplimit.ByIP()}).Handler(ok)
	get(t.Context(), h, "/")
	get(t.Context(), h, "/")
	refusedAt := func(after time.Duration) {
		t.Helper()
		rdb.SetTime(start.Add(after))
		if w := get(t.Context(), h, "/"); w.Code != 429 || w.Header().Get("Retry-After") != "1" {
			t.Errorf("after %v: %d, Retry-After %q, want 429, 1", after, w.Code, w.Header().Get("Retry-After"))
		}
	}
	for _, left := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		refusedAt(time.Minute - left)
	}
	if _, err := ip.Policy().Book(t.Context(), throttle.Request{Key: "192.0.2.1", Cost: 1, Job: "job"}); err != nil {
		t.Fatal(err)
	}
	refusedAt(time.Minute + 50*time.Millisecond)
}

func TestHeadersOff(t *testing.T) {
	t.Parallel()
	h := newLimit(t, httplimit.Config{Headers: httplimit.HeadersOff}, httplimit.Rule{Limiter: local(t, "secret-name", "1/60s"), Key: httplimit.ByIP()}).Handler(ok)
	for i, want := range []int{200, 429} {
		w := get(t.Context(), h, "/")
		if got := seen(t, w); got.Status != want || got.Policy+got.Left != "" || (got.Retry == "") != (want == 200) {
			t.Errorf("answer %d = %+v, want %d without fields, and Retry-After when refused", i+1, got, want)
		}
		if all := fmt.Sprint(w.Header(), w.Body); strings.Contains(all, "secret-name") {
			t.Errorf("answer %d tells the name of a rule: %s", i+1, all)
		}
	}
}

// The fields of two middlewares are two lists that are one.
func TestStackedMiddleware(t *testing.T) {
	t.Parallel()
	rdb := timed(t)
	outer := newLimit(t, httplimit.Config{}, httplimit.Rule{Limiter: limiter(t, rdb, "site", "3/60s", throttle.Config{}), Key: httplimit.Same("all")})
	inner := newLimit(t, httplimit.Config{}, httplimit.Rule{Limiter: limiter(t, rdb, "login", "1/60s", throttle.Config{}), Key: httplimit.ByIP()})
	h := outer.Handler(inner.Handler(ok))
	const policy = `"site";q=3;w=60, "login";q=1;w=60`
	for i, want := range []answer{
		{200, policy, `"site";r=2, "login";r=0;t=60`, "", ""},
		{429, policy, `"site";r=1, "login";r=0;t=60`, "60", "application/problem+json"},
		{429, policy, `"site";r=0;t=60, "login";r=0;t=60`, "60", "application/problem+json"},
		{429, `"site";q=3;w=60`, `"site";r=0;t=60`, "60", "application/problem+json"},
	} {
		if diff := cmp.Diff(want, seen(t, get(t.Context(), h, "/"))); diff != "" {
			t.Errorf("answer %d (-want +got):\n%s", i+1, diff)
		}
	}
}

func TestConcurrentHeaders(t *testing.T) {
	t.Parallel()
	h := newLimit(t, httplimit.Config{}, httplimit.Rule{Limiter: limiter(t, timed(t), "slots", "concurrent 1 lease 30s", throttle.Config{}), Key: httplimit.ByIP()})
	var second answer
	outside := h.Handler(status(204))
	inside := h.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		second = seen(t, get(t.Context(), outside, "/"))
	}))
	first := get(t.Context(), inside, "/")
	const policy = `"slots";q=1;qu="concurrent-requests"`
	if diff := cmp.Diff(answer{200, policy, `"slots";r=0`, "", ""}, seen(t, first)); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(answer{429, policy, `"slots";r=0;t=30`, "30", "application/problem+json"}, second); diff != "" {
		t.Errorf("second, while the first runs (-want +got):\n%s", diff)
	}
	if got := get(t.Context(), outside, "/").Code; got != 204 {
		t.Errorf("after the first returned = %d, want 204", got)
	}
}
