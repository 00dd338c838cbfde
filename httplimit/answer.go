package httplimit

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/headwayq/headway/throttle"
)

// problem is a problem document (RFC 9457).
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

// quotaExceeded is a type that the draft of the RateLimit fields defines, with
// violated-policies.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// StatusOf is what an error is answered with unless [Config.OnError] does: 403 for
// a request without a key, 413 for one that costs more than its limit holds, 400
// for one with a fault in its key or cost, and otherwise 503.
func StatusOf(err error) int {
	_, fault := errors.AsType[*RequestError](err)
	switch {
	case errors.Is(err, ErrNoKey):
		return http.StatusForbidden
	case errors.Is(err, throttle.ErrExceedsLimit):
		return http.StatusRequestEntityTooLarge
	case fault, errors.Is(err, throttle.ErrInvalidKey), errors.Is(err, throttle.ErrInvalidCost):
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

// refuse answers a request that comes too early.
func (l *Middleware) refuse(w http.ResponseWriter, r *http.Request, d throttle.Decision) {
	after := strconv.FormatInt(retryAfter(d), 10)
	w.Header().Set("Retry-After", after)
	if l.cfg.OnRefuse != nil {
		l.cfg.OnRefuse(w, r, d)
		return
	}
	p := problem{Type: quotaExceeded, Title: "Quota Exceeded", Status: l.cfg.Status, Detail: "Try again in " + after + " s."}
	if l.cfg.Headers == HeadersOn {
		p.Violated = []string{d.Rule}
	}
	p.write(w)
}

// fail answers a request about which nothing could be decided.
func (l *Middleware) fail(w http.ResponseWriter, r *http.Request, err error) {
	if l.cfg.OnError != nil {
		l.cfg.OnError(w, r, err)
		return
	}
	status := StatusOf(err)
	problem{Type: "about:blank", Title: http.StatusText(status), Status: status}.write(w)
}

// write fails only when the client is gone.
func (p problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil {
		panic("httplimit: " + err.Error()) // texts and numbers
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store") // RFC 6585: no cache may keep a 429
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}
