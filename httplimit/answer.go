package httplimit

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

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

// The fields of draft-ietf-httpapi-ratelimit-headers-11.
const (
	policyField = "RateLimit-Policy"
	leftField   = "RateLimit"
	// burstParam is what a limit gives at once; the draft wants such parameters
	// to bear the name of who defines them.
	burstParam = ";headway-burst="
)

// tellPolicy adds each rule as a quota policy. Fields are added and not set, so
// that those of other middleware stay: both are lists.
func (l *Middleware) tellPolicy(h http.Header) {
	if l.cfg.Headers == HeadersOff {
		return
	}
	var b []byte
	for _, r := range l.rules {
		limit := throttle.ForWorkers.LimitLastKnown(r.Limiter)
		b = item(b, r.Limiter.Rule())
		b = strconv.AppendInt(append(b, ";q="...), int64(limit.Permits()), 10)
		switch w := limit.Window(); {
		case limit.IsConcurrent():
			b = append(b, `;qu="concurrent-requests"`...)
		case w%time.Second == 0: // the draft knows no fractions
			b = strconv.AppendInt(append(b, ";w="...), int64(w/time.Second), 10)
		}
		if n := limit.Burst(); n > 0 && n != limit.Permits() {
			b = strconv.AppendInt(append(b, burstParam...), int64(n), 10)
		}
	}
	h.Add(policyField, string(b))
}

// tellLeft adds what each rule has left.
func (l *Middleware) tellLeft(ctx context.Context, h http.Header, d throttle.Decision) {
	if l.cfg.Headers == HeadersOff || d.Shadowed || len(d.Left) != len(l.rules) {
		return
	}
	var b []byte
	for i, r := range l.rules {
		b = item(b, r.Limiter.Rule())
		b = strconv.AppendInt(append(b, ";r="...), int64(d.Left[i]), 10)
		if t := l.untilMore(ctx, d, i); t > 0 {
			b = strconv.AppendInt(append(b, ";t="...), t, 10)
		}
	}
	h.Add(leftField, string(b))
}

// untilMore is the seconds until a rule has more than now, 0 when that is not known.
func (l *Middleware) untilMore(ctx context.Context, d throttle.Decision, i int) int64 {
	rule := l.rules[i].Limiter
	switch {
	case !d.Granted && d.Rule == rule.Rule():
		return retryAfter(d)
	case d.Left[i] > 0 || throttle.ForWorkers.LimitLastKnown(rule).IsConcurrent() || d.Fallback != throttle.FailClosed:
		return 0
	}
	// Worth a look: the answer saves a request that would be refused, and no key
	// has more of them than permits.
	key := d.Key
	if i > 0 {
		key = d.More[i-1].Key
	}
	wait, err := rule.TimeUntil(ctx, key, 1)
	if err != nil {
		return 0
	}
	return seconds(wait)
}

// retryAfter is never 0: with that a client would come again at once.
func retryAfter(d throttle.Decision) int64 { return max(1, seconds(wait(d))) }

// seconds rounds up: who comes a second too early is refused again.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// item begins a member of a list with the name of a rule, which needs no escapes.
func item(b []byte, name string) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	return append(append(append(b, '"'), name...), '"')
}
