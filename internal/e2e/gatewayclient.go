package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// GatewayTimeoutDefault is how long a POST may take, connect to answer.
const GatewayTimeoutDefault = 10 * time.Second

// RejectedError is an answer of the gateway that another try would not change: a
// 4xx other than 429, or a redirect, which is not followed.
type RejectedError struct{ Status int }

func (e *RejectedError) Error() string {
	return fmt.Sprintf("gateway: refused with status %d", e.Status)
}

// RetryAfterMax caps what a gateway may ask for in Retry-After.
const RetryAfterMax = time.Hour

// RetryLaterError is an answer 429 or 503 with a Retry-After: another try is
// worth it, but not before After has passed since the answer.
type RetryLaterError struct {
	Status int
	After  time.Duration // 0 to RetryAfterMax
}

func (e *RetryLaterError) Error() string {
	return fmt.Sprintf("gateway: status %d, try again in %v", e.Status, e.After)
}

// ErrNotConnected says that there was no connection, so that nothing was sent for
// sure.
var ErrNotConnected = errors.New("not connected")

// GatewayClient posts messages to a gateway. Its errors show no number, no text
// and nothing of the URL but the host. It is safe for concurrent use.
type GatewayClient struct {
	url     string
	timeout time.Duration
	HTTP    *http.Client
	Sender  int // which process this is, for the gateway's log; 0 says nothing
}

// NewGatewayClient returns a client for the gateway at an http or https URL, whose user
// and password, if any, are sent as basic authentication. Timeout is for one
// POST; zero means [GatewayTimeoutDefault].
func NewGatewayClient(rawURL string, timeout time.Duration) (*GatewayClient, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("gateway: the URL cannot be read") // err quotes it, password and all
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return nil, errors.New("gateway: want a URL like https://host/path")
	}
	if timeout < 0 {
		return nil, fmt.Errorf("gateway: time-out is %v, want at least 0", timeout)
	}
	if timeout == 0 {
		timeout = GatewayTimeoutDefault
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = transport.MaxIdleConns // one host is all there is; 2 would reconnect all the time
	return &GatewayClient{url: rawURL, timeout: timeout, HTTP: &http.Client{
		Transport: transport,
		// A followed redirect would hand the message to another host, or turn the POST into a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Send posts m, with the instant at which it was granted in µs since 1970 for
// the gateway's own check. An answer 2xx is nil. A *[RejectedError] is for
// good. Any other error is worth another try: 5xx, 429 (as a *[RetryLaterError]
// if the gateway says when), a network that fails, no
// answer in time, the end of ctx (which the error unwraps to). After such an
// error the gateway may have taken the message all the same, but after one that
// unwraps to errNotConnected.
func (c *GatewayClient) Send(ctx context.Context, m Message, grantedUs int64) error {
	body, err := m.Encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("gateway: the request cannot be made")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(GrantedHeader, strconv.FormatInt(grantedUs, 10))
	if c.Sender > 0 {
		req.Header.Set(SenderHeader, strconv.Itoa(c.Sender))
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return fmt.Errorf("gateway: %w: %w", ErrNotConnected, cause(err))
		}
		return fmt.Errorf("gateway: no answer: %w", cause(err))
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, GatewayBodyMax) // so that the connection can be used again
	switch s := resp.StatusCode; {
	case s >= 200 && s < 300:
		return nil
	case s >= 500 || s == http.StatusTooManyRequests:
		if after, ok := retryAfter(resp.Header); ok && (s == http.StatusServiceUnavailable || s == http.StatusTooManyRequests) {
			return &RetryLaterError{Status: s, After: after}
		}
		return fmt.Errorf("gateway: status %d, try again", s)
	default:
		return &RejectedError{Status: s}
	}
}

// retryAfter reads Retry-After: seconds, or a date, which counts from the Date of
// the same answer, so that no local clock is in it. Without a Date, or if either
// cannot be read, it is as if it were not there: asynq's delays are as good.
func retryAfter(h http.Header) (after time.Duration, ok bool) {
	v := h.Get("Retry-After")
	if v != "" && strings.Trim(v, "0123456789") == "" {
		seconds, err := strconv.ParseInt(v, 10, 64)
		if err != nil || seconds >= int64(RetryAfterMax/time.Second) { // out of range is a long time too
			return RetryAfterMax, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(v)
	from, dateErr := http.ParseTime(h.Get("Date"))
	if err != nil || dateErr != nil {
		return 0, false
	}
	return min(max(0, at.Sub(from)), RetryAfterMax), true
}

// Close gives idle connections back.
func (c *GatewayClient) Close() { c.HTTP.CloseIdleConnections() }

// cause returns what may be shown of err. The errors of net/url quote the URL,
// whose path or query may hold a token, and those of net/http quote what the
// gateway answered, which may hold the message.
func cause(err error) error {
	for _, plain := range []error{context.Canceled, context.DeadlineExceeded, io.ErrUnexpectedEOF, io.EOF} {
		if errors.Is(err, plain) {
			return plain
		}
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return e
	}
	return errors.New("connection or answer is broken")
}

// InMemory leads requests to a handler without a socket, for tests in virtual time.
// A handler that aborts gives no answer, as with net/http.
func InMemory(h http.Handler) http.RoundTripper {
	return RoundTripper(func(r *http.Request) (resp *http.Response, err error) {
		defer func() {
			switch aborted := recover(); aborted {
			case nil:
			case http.ErrAbortHandler:
				resp, err = nil, cmp.Or(r.Context().Err(), io.EOF)
			default:
				panic(aborted)
			}
		}()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result(), nil
	})
}

// RoundTripper is a function that answers requests.
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
