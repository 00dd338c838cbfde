package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is when the clock of [timed] begins.
var start = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// timed is a real Redis whose scripts read a clock that the test sets.
func timed(t *testing.T) redistest.Timed {
	t.Helper()
	raw := redistest.Start(t).Client(t)
	rdb := redistest.NewTimedForLong(raw, start)
	return rdb
}

// impatient fails at the first fault, so that a test of an outage is short.
func impatient(t *testing.T, s *redistest.Server) *redis.Client {
	t.Helper()
	o := s.ClientOptions()
	o.MaxRetries, o.DialerRetries = -1, 1
	return newClient(t, o)
}

func newClient(t *testing.T, o *redis.Options) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func limiter(t testing.TB, rdb redis.UniversalClient, rule, limit string, cfg throttle.Config) *throttle.Limiter {
	t.Helper()
	parsed, err := throttle.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.New(rdb, rule, parsed, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// local needs no Redis.
func local(t testing.TB, rule, limit string) *throttle.Limiter {
	t.Helper()
	parsed, err := throttle.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.NewLocal(rule, parsed, throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newLimit(t testing.TB, cfg httplimit.Config, rules ...httplimit.Rule) *httplimit.Middleware {
	t.Helper()
	l, err := httplimit.New(rules, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ok is a handler that answers 200.
var ok = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// status is a handler that answers it.
func status(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
}

// get sends a request from 192.0.2.1.
func get(ctx context.Context, h http.Handler, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// contextCancelled is that of a client that went away.
func contextCancelled(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx, cancel
}
