package e2e

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
			if r.Method != http.MethodPost || r.Header.Get(GrantedHeader) != "1234567" || r.Header.Get("Content-Type") != "application/json" || user != "user" || pass != "pass" {
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

func TestSendRetryAfter(t *testing.T) {
	t.Parallel()
	const noon = "Tue, 29 Jul 2025 12:00:00 GMT"
	for _, tt := range []struct {
		status      int
		after, date string
		want        time.Duration
		ok          bool
	}{
		{429, "2", noon, 2 * time.Second, true},
		{503, "2", noon, 2 * time.Second, true},
		{429, "0", noon, 0, true},
		{429, "3599", noon, 3599 * time.Second, true},
		{429, "3601", noon, time.Hour, true},
		{429, "99999999999999999999999", noon, time.Hour, true},
		{429, "Tue, 29 Jul 2025 12:00:30 GMT", noon, 30 * time.Second, true},
		{503, "Tue, 29 Jul 2025 13:00:01 GMT", noon, time.Hour, true},
		{429, "Tue, 29 Jul 2025 11:59:59 GMT", noon, 0, true},
		{429, "Tuesday, 29-Jul-25 12:00:30 GMT", noon, 30 * time.Second, true}, // RFC 850
		{429, "Tue, 29 Jul 2025 12:00:30 GMT", "yesterday", 0, false},
		{429, "Tue, 29 Jul 2025 12:00:30 GMT", "", 0, false}, // no Date
		{429, "", noon, 0, false},
		{429, "-1", noon, 0, false},
		{429, "+1", noon, 0, false},
		{429, "1.5", noon, 0, false},
		{429, "2s", noon, 0, false},
		{429, "soon", noon, 0, false},
		{502, "2", noon, 0, false},
	} {
		c := client(t, "http://host/", 0)
		c.HTTP.Transport = InMemory(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for name, value := range map[string]string{"Retry-After": tt.after, "Date": tt.date} {
				if value != "" {
					w.Header().Set(name, value)
				}
			}
			w.WriteHeader(tt.status)
		}))
		err := c.Send(t.Context(), secretMessage, 1)
		later, ok := errors.AsType[*RetryLaterError](err)
		if err == nil || ok != tt.ok {
			t.Errorf("%d, Retry-After %q, Date %q: Send = %v, want a *RetryLaterError: %t", tt.status, tt.after, tt.date, err, tt.ok)
		} else if ok && (later.After != tt.want || later.Status != tt.status) {
			t.Errorf("%d, Retry-After %q, Date %q: Send = %+v, want after %v", tt.status, tt.after, tt.date, *later, tt.want)
		}
		if _, good := errors.AsType[*RejectedError](err); good {
			t.Errorf("%d: Send = %v, want an error that asks for another try", tt.status, err)
		}
	}
	err := &RetryLaterError{Status: 429, After: 2 * time.Second}
	if got, want := err.Error(), "gateway: status 429, try again in 2s"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
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
		if errors.Is(err, ErrNotConnected) {
			t.Errorf("%s: Send = %v, but there was a connection", name, err)
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
	if err == nil || !strings.Contains(err.Error(), "refused") || !errors.Is(err, ErrNotConnected) {
		t.Errorf("nobody there: Send = %v, want that there was no connection", err)
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
