package httplimit_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func TestNewTellsAllFaults(t *testing.T) {
	t.Parallel()
	a, b := local(t, "a", "1/1s"), local(t, "b", "1/1s")
	for _, tc := range []struct {
		name  string
		rules []httplimit.Rule
		cfg   httplimit.Config
		want  []string
	}{
		{"no rules", nil, httplimit.Config{}, []string{"a policy of 0 rules"}},
		{"an empty rule and a bad config", []httplimit.Rule{{}}, httplimit.Config{Status: 200, MaxWait: -1, Headers: 2},
			[]string{"rule 1 has no Limiter", "rule 1 has no Key", "Status 200", "MaxWait -1ns", "Headers 2"}},
		{"limiters that share nothing, and no key", []httplimit.Rule{{Limiter: a, Key: httplimit.ByIP()}, {Limiter: b}}, httplimit.Config{Status: 600},
			[]string{`rules "a" and "b"`, "rule 2 has no Key", "Status 600"}},
	} {
		_, err := httplimit.New(tc.rules, tc.cfg)
		if !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("%s: New = %v, want %v", tc.name, err, throttle.ErrInvalidConfig)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: New = %v, want it to tell of %q", tc.name, err, want)
			}
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("Handler(nil) did not panic")
		}
	}()
	newLimit(t, httplimit.Config{}, httplimit.Rule{Limiter: a, Key: httplimit.ByIP()}).Handler(nil)
}

func TestMatch(t *testing.T) {
	t.Parallel()
	h := newLimit(t, httplimit.Config{Match: func(r *http.Request) bool { return r.URL.Path == "/login" }},
		httplimit.Rule{Limiter: local(t, "login", "1/60s"), Key: httplimit.ByIP()}).Handler(ok)
	for i, tc := range []struct {
		path string
		want answer
	}{
		{"/", answer{Status: 200}},
		{"/login", answer{Status: 200, Policy: `"login";q=1;w=60`}},
		{"/login", answer{Status: 429, Policy: `"login";q=1;w=60`, Retry: "60", Placed: "application/problem+json"}},
		{"/", answer{Status: 200}},
	} {
		got := seen(t, get(t.Context(), h, tc.path))
		got.Left = ""
		if got != tc.want {
			t.Errorf("request %d of %s = %+v, want %+v", i+1, tc.path, got, tc.want)
		}
	}
}

// Sixteen at once, thirteen of them by one name, through two servers with a client
// of Redis each: no name and no route ever gets more than its limit, and what the
// narrow rule refuses takes nothing from the wide one.
func TestNeverOver(t *testing.T) {
	t.Parallel()
	const perIP, perRoute, clients, each = 40, 100, 16, 25
	s := redistest.Start(t)
	var running [4]atomic.Int64
	urls := make([]string, 2)
	for i := range urls {
		rdb := s.Client(t)
		l := newLimit(t, httplimit.Config{},
			httplimit.Rule{Limiter: limiter(t, rdb, "ip", "40/1h", throttle.Config{}), Key: httplimit.ByHeader("X-Client")},
			httplimit.Rule{Limiter: limiter(t, rdb, "route", "100/1h", throttle.Config{}), Key: httplimit.ByRoute(nil)})
		mux := http.NewServeMux()
		mux.Handle("GET /{id}", l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			n, _ := strconv.Atoi(r.Header.Get("X-Client"))
			running[n].Add(1)
		})))
		srv := httptest.NewServer(mux)
		t.Cleanup(srv.Close)
		urls[i] = srv.URL
	}
	var wg sync.WaitGroup
	var granted, refused atomic.Int64
	for c := range clients {
		wg.Go(func() {
			for n := range each {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, urls[n%2]+"/"+strconv.Itoa(n), nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("X-Client", strconv.Itoa(max(0, c-12))) // most of them are one
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				switch {
				case resp.StatusCode == 200:
					granted.Add(1)
				case resp.StatusCode == 429 && resp.Header.Get("Retry-After") != "":
					refused.Add(1)
				default:
					t.Errorf("answer %d, want 200 or 429", resp.StatusCode)
				}
			}
		})
	}
	wg.Wait()
	http.DefaultClient.CloseIdleConnections()
	if granted.Load() != perRoute || refused.Load() != clients*each-perRoute {
		t.Errorf("%d granted, %d refused, want %d and the rest", granted.Load(), refused.Load(), perRoute)
	}
	for i := range running {
		if n := running[i].Load(); n > perIP {
			t.Errorf("client %d ran %d times, want at most %d", i, n, perIP)
		}
	}
}

func TestRedisAway(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		away throttle.FailureMode
		want []int // while Redis is away: of three requests, with one spent before
	}{
		{throttle.FailClosed, []int{503, 503, 503}},
		{throttle.FailOpen, []int{200, 200, 200}},
	} {
		t.Run(tc.away.String(), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, redistest.AOF())
			core, logs := observer.New(zap.DebugLevel)
			rule := httplimit.Rule{Limiter: limiter(t, impatient(t, s), "ip", "2/1h", throttle.Config{OnUnavailable: tc.away}), Key: httplimit.ByIP()}
			h := newLimit(t, httplimit.Config{Logger: zap.New(core)}, rule).Handler(ok)
			if got := get(t.Context(), h, "/").Code; got != 200 {
				t.Errorf("before = %d, want 200", got)
			}
			s.Stop()
			for i, want := range tc.want {
				w := get(t.Context(), h, "/")
				if w.Code != want || w.Header().Get("RateLimit") != "" {
					t.Errorf("request %d while away = %d, %v, want %d and no RateLimit", i+1, w.Code, w.Header(), want)
				}
				if strings.Contains(w.Body.String(), "redis") || strings.Contains(w.Body.String(), s.Addr()) {
					t.Errorf("answer tells of the inside: %s", w.Body)
				}
			}
			s.StartAgain()
			for w := get(t.Context(), h, "/"); w.Header().Get("RateLimit") == ""; { // a fallback leaves Redis alone for 250 ms
				w = get(t.Context(), h, "/")
			}
			if got := get(t.Context(), h, "/").Code; got != 429 {
				t.Errorf("afterwards = %d, want 429", got)
			}
			var said []string
			for _, e := range logs.All() {
				said = append(said, e.Message)
				if strings.Contains(e.Message+e.ContextMap()["component"].(string), "192.0.2.1") {
					t.Errorf("log tells a key: %v", e)
				}
			}
			if got := strings.Join(said, ", "); got != "limits do not decide, limits decide again" {
				t.Errorf("log = %q, want each change once", got)
			}
		})
	}
}

// With FailLocal this process counts for itself, from nothing spent.
func TestRedisAwayCountedLocally(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	h := newLimit(t, httplimit.Config{}, httplimit.Rule{
		Limiter: limiter(t, impatient(t, s), "ip", "2/1h", throttle.Config{OnUnavailable: throttle.FailLocal}), Key: httplimit.ByIP(),
	}).Handler(ok)
	get(t.Context(), h, "/")
	s.Stop()
	for i, want := range []int{200, 200, 429} {
		if got := seen(t, get(t.Context(), h, "/")); got.Status != want || (got.Retry != "") != (want == 429) {
			t.Errorf("request %d while away = %+v, want %d", i+1, got, want)
		}
	}
}

// A client that went away is no outage.
func TestClientGone(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	rdb := redistest.Start(t).Client(t)
	h := newLimit(t, httplimit.Config{Logger: zap.New(core)}, httplimit.Rule{Limiter: limiter(t, rdb, "ip", "1/1h", throttle.Config{}), Key: httplimit.ByIP()}).
		Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
	ctx, cancel := contextCancelled(t)
	defer cancel()
	get(ctx, h, "/")
	if logs.Len() != 0 {
		t.Errorf("log = %v, want none", logs.All())
	}
}

func TestShadowLetsRun(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	h := newLimit(t, httplimit.Config{}, httplimit.Rule{Limiter: limiter(t, rdb, "ip", "1/1h", throttle.Config{Shadow: true}), Key: httplimit.ByIP()}).Handler(ok)
	for i := range 3 {
		w := get(t.Context(), h, "/")
		if w.Code != 200 || i > 0 && w.Header().Get("RateLimit") != "" {
			t.Errorf("request %d = %d, %v, want 200, and no RateLimit where the limit is passed over", i+1, w.Code, w.Header())
		}
	}
}

// With MaxWait 2 s at 1/1s: of four requests at once the first goes at 0 s, two wait
// until 1 and 2 s, and the fourth, whose turn would come at 3 s, is refused at once.
func TestMaxWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		l := newLimit(t, httplimit.Config{MaxWait: 2 * time.Second},
			httplimit.Rule{Limiter: limiter(t, rdb, "ip", "1/1s", throttle.Config{}), Key: httplimit.ByIP()})
		h := l.Handler(ok)
		type result struct {
			code  int
			after time.Duration
		}
		began := time.Now()
		results := make(chan result, 4)
		for range 4 {
			go func() {
				w := get(t.Context(), h, "/")
				results <- result{w.Code, time.Since(began).Round(50 * time.Millisecond)}
			}()
			synctest.Wait()
		}
		got := make(map[result]bool)
		for range 4 {
			got[<-results] = true
		}
		for _, want := range []result{{200, 0}, {200, time.Second}, {200, 2 * time.Second}, {429, 0}} {
			if !got[want] {
				t.Errorf("results = %v, want one %v", got, want)
			}
		}
		if n := l.Policy().Counts().TooLate; n != 0 {
			t.Errorf("%d calls to join a line that is too long, want none", n)
		}
	})
}
