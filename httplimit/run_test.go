package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// serverFault is a request that was not the client's fault.
func serverFault(status int) bool { return status >= 500 }

func TestRefund(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for name, tc := range map[string]struct {
		handler http.Handler
		charged bool
	}{
		"ok":              {status(200), true},
		"nothing written": {ok, true},
		"not found":       {status(404), true},
		"fault":           {status(500), false},
		"early hints, then a fault": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusBadGateway)
		}), false},
		"body, then a fault": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "x")
			w.WriteHeader(http.StatusBadGateway)
		}), true},
		"panic":                  {http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("x") }), false},
		"panic after the status": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic("x") }), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ip := limiter(t, rdb, "ip", "1/1h", throttle.Config{})
			slots := limiter(t, rdb, "slots", "concurrent 1 lease 30s", throttle.Config{})
			l := newLimit(t, httplimit.Config{Refund: serverFault},
				httplimit.Rule{Limiter: ip, Key: httplimit.Same(name)}, httplimit.Rule{Limiter: slots, Key: httplimit.Same(name)})
			func() {
				defer func() { _ = recover() }()
				get(t.Context(), l.Handler(tc.handler), "/")
			}()
			left, err := ip.Available(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{true: 0, false: 1}[tc.charged]; left != want {
				t.Errorf("%d permits left, want %d", left, want)
			}
			if left, err = slots.Available(t.Context(), name); left != 1 || err != nil {
				t.Errorf("%d slots free, %v, want 1: the lease ends in any case", left, err)
			}
		})
	}
}

// A Refund that panics gives nothing back, and ends the lease all the same.
func TestRefundThatPanics(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	ip := limiter(t, rdb, "ip", "1/1h", throttle.Config{})
	slots := limiter(t, rdb, "slots", "concurrent 1 lease 30s", throttle.Config{})
	l := newLimit(t, httplimit.Config{Refund: func(int) bool { panic("x") }},
		httplimit.Rule{Limiter: ip, Key: httplimit.Same("k")}, httplimit.Rule{Limiter: slots, Key: httplimit.Same("k")})
	func() {
		defer func() {
			if v := recover(); v != "x" {
				t.Errorf("the request panics with %v, want that of Refund", v)
			}
		}()
		get(t.Context(), l.Handler(ok), "/")
	}()
	if left, err := ip.Available(t.Context(), "k"); left != 0 || err != nil {
		t.Errorf("%d permits left, %v, want none", left, err)
	}
	if left, err := slots.Available(t.Context(), "k"); left != 1 || err != nil {
		t.Errorf("%d slots free, %v, want 1", left, err)
	}
}

// bubble runs a handler under "concurrent 1 lease 3s" in virtual time.
func bubble(t *testing.T, cfg httplimit.Config, f func(t *testing.T, slots *throttle.Limiter, limited func(http.HandlerFunc) http.Handler, fail func(string))) {
	t.Helper()
	redistest.OneRedis(t, "it runs in virtual time") // a skipped bubble would not skip the rest of the test
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		o := redistest.MiniOptions(m)
		o.MaxRetries = -1
		rdb := newClient(t, o)
		slots := limiter(t, rdb, "slots", "concurrent 1 lease 3s", throttle.Config{})
		l := newLimit(t, cfg, httplimit.Rule{Limiter: slots, Key: httplimit.Same("all")})
		f(t, slots, func(h http.HandlerFunc) http.Handler { return l.Handler(h) }, m.SetError)
		time.Sleep(2 * time.Second) // what Redis did not answer is settled by then
	})
}

// A handler that runs ten times as long as the lease keeps it until it returns, and
// not longer; also when its client has gone, and when it panics.
func TestLeaseIsHeld(t *testing.T) {
	t.Parallel()
	for _, panics := range []bool{false, true} {
		bubble(t, httplimit.Config{}, func(t *testing.T, slots *throttle.Limiter, limited func(http.HandlerFunc) http.Handler, _ func(string)) {
			ctx, leave := context.WithCancel(t.Context())
			free := func(when string, want int) {
				if got, err := slots.Available(t.Context(), "all"); got != want || err != nil {
					t.Errorf("%s: %d slots free, %v, want %d", when, got, err, want)
				}
			}
			func() {
				defer func() { _ = recover() }()
				get(ctx, limited(func(_ http.ResponseWriter, r *http.Request) {
					time.Sleep(15 * time.Second)
					free("after 5 leases", 0)
					if err := r.Context().Err(); err != nil {
						t.Errorf("context after 5 leases: %v", err)
					}
					leave()
					time.Sleep(15 * time.Second)
					free("after 10 leases, without a client", 0)
					if panics {
						panic("x")
					}
				}), "/")
			}()
			free("afterwards", 1)
		})
	}
}

// A lease begins when its request has waited for it, not when that came.
func TestLeaseAfterAWait(t *testing.T) {
	t.Parallel()
	cfg := httplimit.Config{MaxWait: time.Minute}
	bubble(t, cfg, func(t *testing.T, _ *throttle.Limiter, limited func(http.HandlerFunc) http.Handler, _ func(string)) {
		h := limited(func(_ http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Second)
			if err := r.Context().Err(); err != nil {
				t.Errorf("context at the end: %v", context.Cause(r.Context()))
			}
		})
		began := time.Now()
		answers := make(chan int)
		for range 2 {
			go func() { answers <- get(t.Context(), h, "/").Code }()
		}
		for range 2 {
			if got := <-answers; got != 200 {
				t.Errorf("answer %d, want 200", got)
			}
		}
		if took := time.Since(began); took < 40*time.Second || took > 45*time.Second {
			t.Errorf("two took %v, want them one after the other", took)
		}
	})
}

func TestLeaseLost(t *testing.T) {
	t.Parallel()
	silent := func(_ *testing.T, _ *throttle.Limiter, fail func(string)) { fail("LOADING an outage") }
	for name, tc := range map[string]struct {
		after time.Duration // of good leases
		lose  func(t *testing.T, slots *throttle.Limiter, fail func(string))
		most  time.Duration // until the handler knows
	}{
		"redis says so": {10 * time.Second, func(t *testing.T, slots *throttle.Limiter, _ func(string)) {
			if _, err := slots.Reset(t.Context(), "all"); err != nil {
				t.Error(err)
			}
		}, time.Second},
		"redis says nothing any more":       {10 * time.Second, silent, 3 * time.Second},
		"redis says nothing from the start": {0, silent, 3 * time.Second},
	} {
		core, logs := observer.New(zap.WarnLevel)
		bubble(t, httplimit.Config{Logger: zap.New(core)}, func(t *testing.T, slots *throttle.Limiter, limited func(http.HandlerFunc) http.Handler, fail func(string)) {
			get(t.Context(), limited(func(_ http.ResponseWriter, r *http.Request) {
				time.Sleep(tc.after)
				if err := r.Context().Err(); err != nil {
					t.Fatalf("%s: lost before it was: %v", name, err)
				}
				tc.lose(t, slots, fail)
				began := time.Now()
				<-r.Context().Done()
				if cause := context.Cause(r.Context()); !errors.Is(cause, throttle.ErrLeaseLost) {
					t.Errorf("%s: cause %v, want %v", name, cause, throttle.ErrLeaseLost)
				}
				if after := time.Since(began); after > tc.most {
					t.Errorf("%s: known after %v, want %v at most", name, after, tc.most)
				}
			}), "/")
			fail("")
		})
		if n := logs.FilterMessage("lease lost").Len(); n != 1 {
			t.Errorf("%s: %d lines about it, want 1", name, n)
		}
	}
}

// With FailOpen and Redis away from the start there is no lease, and none is missed.
func TestNoLeaseWithoutRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := impatient(t, s)
	slots := limiter(t, rdb, "slots", "concurrent 1 lease 100ms", throttle.Config{OnUnavailable: throttle.FailOpen})
	h := newLimit(t, httplimit.Config{}, httplimit.Rule{Limiter: slots, Key: httplimit.ByIP()}).
		Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Context() != t.Context() {
				t.Error("the request's context ends with a lease that nobody has")
			}
		}))
	s.Stop()
	if got := get(t.Context(), h, "/").Code; got != 200 {
		t.Errorf("answer %d, want 200", got)
	}
}

// On a real Redis and by real connections: two at a time, and all get their turn.
func TestConcurrentRequests(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	slots := limiter(t, rdb, "slots", "concurrent 2 lease 30s", throttle.Config{})
	enter, leave := make(chan struct{}), make(chan struct{})
	l := newLimit(t, httplimit.Config{}, httplimit.Rule{Limiter: slots, Key: httplimit.ByIP()})
	srv := httptest.NewServer(l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		enter <- struct{}{}
		<-leave
	})))
	defer srv.Close()
	answers := make(chan int)
	for range 5 {
		go func() {
			resp, err := srv.Client().Get(srv.URL)
			if err != nil {
				t.Error(err)
				answers <- 0
				return
			}
			resp.Body.Close()
			answers <- resp.StatusCode
		}()
	}
	<-enter
	<-enter
	for range 3 {
		if got := <-answers; got != 429 {
			t.Errorf("answer while two run = %d, want 429", got)
		}
	}
	close(leave)
	for range 2 {
		if got := <-answers; got != 200 {
			t.Errorf("answer of one that ran = %d, want 200", got)
		}
	}
	if free, err := slots.Available(t.Context(), "127.0.0.1"); free != 2 || err != nil {
		t.Errorf("%d slots free, %v, when the answers are there, want 2", free, err)
	}
}
