package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/worker"
)

// TestAnswer wants each answer to say what comes next, and no error to quote it.
func TestAnswer(t *testing.T) {
	t.Parallel()
	granted := time.UnixMicro(1_234_567)
	for _, tt := range []struct {
		status       int
		retryAfter   string
		sent, final  bool
		after        time.Duration
		postponed    bool
		notConnected bool
	}{
		{status: 202, sent: true},
		{status: 400, final: true},
		{status: 302, final: true},
		{status: 500},
		{status: 500, retryAfter: "7"},
		{status: 429},
		{status: 429, retryAfter: "7", postponed: true, after: 7 * time.Second},
		{status: 503, retryAfter: "7", postponed: true, after: 7 * time.Second},
		{status: 429, retryAfter: "100000", postponed: true, after: time.Hour},
		{status: 429, retryAfter: "Thu, 01 Jan 2026 00:00:09 GMT", postponed: true, after: 9 * time.Second},
		{status: 429, retryAfter: "soon"},
		{notConnected: true},
	} {
		via := e2e.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if tt.notConnected {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
			}
			if got := r.Header.Get(e2e.GrantedHeader); got != strconv.FormatInt(granted.UnixMicro(), 10) {
				t.Errorf("granted at %s, want %v", got, granted)
			}
			return e2e.InMemory(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", "Thu, 01 Jan 2026 00:00:00 GMT")
				if tt.retryAfter != "" {
					w.Header().Set("Retry-After", tt.retryAfter)
				}
				w.Header().Set("Location", "http://elsewhere/token")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte("hello +12025550117"))
			})).RoundTrip(r)
		})
		client, err := e2e.NewGatewayClient("http://user:pass@host/token", 0)
		if err != nil {
			t.Fatal(err)
		}
		client.HTTP.Transport = via
		err = answer(client.Send(t.Context(), e2e.Message{ID: "1", To: "+12025550117", Text: "hello"}, granted.UnixMicro()))
		later, postponed := errors.AsType[*worker.RetryAfterError](err)
		notConnected := fmt.Sprintf("%T", err) == fmt.Sprintf("%T", worker.NotCharged(e2e.ErrNotConnected)) // the pool gives its permits back
		if (err == nil) != tt.sent || errors.Is(err, asynq.SkipRetry) != tt.final || postponed != tt.postponed || notConnected != tt.notConnected {
			t.Errorf("%+v: send = %v", tt, err)
		}
		if postponed && later.After != tt.after {
			t.Errorf("%+v: postponed by %v", tt, later.After)
		}
		for _, secret := range []string{"2025550117", "hello", "pass", "token"} {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%+v: the error quotes %q: %v", tt, secret, err)
			}
		}
	}
}
