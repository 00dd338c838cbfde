package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

var secretMessage = Message{ID: "1", To: "+12025550117", Text: "topsecret"}

// noSecrets fails if err quotes what it was about.
func noSecrets(t *testing.T, err error) {
	t.Helper()
	for _, secret := range []string{"2025550117", "topsecret", "pass", "token", "user"} {
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error quotes %q: %v", secret, err)
		}
	}
}

func client(t *testing.T, url string, timeout time.Duration) *GatewayClient {
	t.Helper()
	c, err := NewGatewayClient(url, timeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestSendByStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status   int
		ok, good bool // ok: sent; good: failed for good
	}{
		{200, true, false}, {202, true, false}, {204, true, false},
		{500, false, false}, {503, false, false}, {429, false, false},
		{400, false, true}, {401, false, true}, {404, false, true}, {422, false, true},
		{302, false, true}, {307, false, true}, {304, false, true},
	} {
		var got Message
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got, _ = DecodeMessage(body)
			user, pass, _ := r.BasicAuth()
			if r.Method != http.MethodPost || r.Header.Get(grantedHeader) != "1234567" || r.Header.Get("Content-Type") != "application/json" || user != "user" || pass != "pass" {
				t.Errorf("request = %s %v", r.Method, r.Header)
			}
			w.Header().Set("Location", "/token/+12025550117")
			w.WriteHeader(tt.status)
			if tt.status >= 400 {
				_, _ = io.WriteString(w, "cannot send topsecret to +12025550117")
			}
		}))
		url := strings.Replace(srv.URL, "http://", "http://user:pass@", 1) + "/?key=token"
		err := client(t, url, 0).Send(t.Context(), secretMessage, 1234567)
		srv.Close()
		if got != secretMessage {
			t.Errorf("%d: the gateway got %v", tt.status, got)
		}
		rejected, good := errors.AsType[*RejectedError](err)
		if (err == nil) != tt.ok || good != tt.good || good && rejected.Status != tt.status {
			t.Errorf("%d: Send = %v", tt.status, err)
		}
		noSecrets(t, err)
	}
}

func TestSendWithoutAnswer(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	for name, handler := range map[string]http.HandlerFunc{
		"cuts":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"hangs": func(http.ResponseWriter, *http.Request) { <-hang },
		"talks nonsense": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "topsecret +12025550117\r\n\r\n")
				_ = conn.Close()
			}
		},
		"redirects nowhere": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://token %zz")
			w.WriteHeader(http.StatusFound)
		},
	} {
		srv := httptest.NewServer(handler)
		url := strings.Replace(srv.URL, "http://", "http://user:pass@", 1) + "/?key=token"
		err := client(t, url, 200*time.Millisecond).Send(t.Context(), secretMessage, 1)
		if _, good := errors.AsType[*RejectedError](err); err == nil || good {
			t.Errorf("%s: Send = %v, want an error that asks for another try", name, err)
		}
		if name == "hangs" {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: Send = %v, want a deadline exceeded", name, err)
			}
			close(hang)
		}
		noSecrets(t, err)
		srv.Close()
	}

	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://user:pass@" + l.Addr().String() + "/token"
	_ = l.Close()
	err = client(t, url, 0).Send(t.Context(), secretMessage, 1)
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody there: Send = %v", err)
	}
	noSecrets(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client(t, url, 0).Send(ctx, secretMessage, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: Send = %v, want context.Canceled", err)
	}
}

func TestNewGatewayClientRefuses(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "host/path", "ftp://user:pass@host/", "http://", "http://user:pass@host:token/", "http://user:pass@[::1"} {
		if _, err := NewGatewayClient(url, 0); err == nil {
			t.Errorf("NewGatewayClient(%q) = nil, want an error", url)
		} else {
			noSecrets(t, err)
		}
	}
	if _, err := NewGatewayClient("http://host", -1); err == nil {
		t.Error("NewGatewayClient with a negative time-out = nil, want an error")
	}
}
