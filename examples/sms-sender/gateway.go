package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/worker"
)

// postTimeout is how long a POST may take, from the connection to the answer.
const postTimeout = 10 * time.Second

// gatewayClient posts messages to the gateway.
type gatewayClient struct {
	url  string
	http *http.Client
}

func newGatewayClient(url string, via http.RoundTripper) *gatewayClient {
	return &gatewayClient{url: url, http: &http.Client{
		Transport: via, Timeout: postTimeout,
		// A redirect that is followed would hand the message to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// notConnectedError says that nothing was sent for sure.
type notConnectedError struct{ error }

// send posts a message. Its error says to the pool what comes next:
//
//   - 429 or 503 with a Retry-After: nothing goes to this phone until then, and it costs no retry
//   - any other 5xx or 429, or no answer: asynq tries again by its rules
//   - no connection: the same, and as nothing was sent its permits go back
//   - any other answer: no further try
//
// It quotes neither the URL nor the answer: these may hold a token, or the message.
func (c *gatewayClient) send(ctx context.Context, m e2e.Message, granted time.Time) error {
	body, err := m.Encode()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("gateway: the request cannot be made")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(e2e.GrantedHeader, strconv.FormatInt(granted.UnixMicro(), 10)) // for the check of the embedded gateway
	resp, err := c.http.Do(req)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return notConnectedError{op}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return errors.New("gateway: no answer")
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	status := resp.StatusCode
	if status >= 200 && status < 300 {
		return nil
	}
	err = fmt.Errorf("gateway: status %d", status)
	after, told := retryAfter(resp.Header)
	switch {
	case told && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable):
		return worker.RetryAfter(err, after)
	case status >= 500 || status == http.StatusTooManyRequests:
		return err
	}
	return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
}

// retryAfter reads Retry-After: seconds, or a date that counts from the Date of the
// same answer. At most an hour is heeded.
func retryAfter(h http.Header) (after time.Duration, ok bool) {
	v := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(v, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, time.Hour), true
	}
	at, err := http.ParseTime(v)
	from, dateErr := http.ParseTime(h.Get("Date"))
	if err != nil || dateErr != nil {
		return 0, false
	}
	return min(max(0, at.Sub(from)), time.Hour), true
}
