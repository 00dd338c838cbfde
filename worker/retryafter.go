package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

// Bounds of a Retry-After.
const (
	RetryAfterMin = time.Millisecond
	RetryAfterMax = 24 * time.Hour
)

// RetryAfterError is a handler's answer that its provider wants to be asked later.
// The key of a rule is closed for so long, everything booked on it moves behind,
// other keys go on, and the task goes first when it is open again. That is no
// failure and costs no retry, as long as the policy's MaxPostpones allows it; what
// comes above that is Err, and a failure like any other. The attempt has paid,
// unless the error is also marked as [NotCharged].
type RetryAfterError struct {
	Err   error         // what the provider said; nil is fine
	After time.Duration // less than RetryAfterMin counts as that, more than RetryAfterMax too
	Rule  string        // whose key is closed; the policy's narrowest limit when empty
}

func (e *RetryAfterError) Error() string {
	text := fmt.Sprintf("worker: put off for %v", e.After.Round(time.Millisecond))
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *RetryAfterError) Unwrap() error { return e.Err }

// RetryAfter makes a [RetryAfterError] for the policy's narrowest key.
func RetryAfter(err error, d time.Duration) error { return &RetryAfterError{Err: err, After: d} }

// RetryAt is [RetryAfter] until an instant by the local clock.
func RetryAt(err error, t time.Time) error { return RetryAfter(err, time.Until(t)) }

// RetryAfterFrom reads how long an HTTP answer wants to be left alone: its
// Retry-After, in seconds or as a date, the latter by the answer's own Date when it
// has one. It is at most most, which is at most [RetryAfterMax] and defaults to that;
// ok is false when there is none, or none that can be read.
func RetryAfterFrom(resp *http.Response, most time.Duration) (d time.Duration, ok bool) {
	if most <= 0 || most > RetryAfterMax {
		most = RetryAfterMax
	}
	text := strings.TrimSpace(resp.Header.Get("Retry-After"))
	if text == "" {
		return 0, false
	}
	if strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds > int64(most/time.Second) {
			return most, true // more digits than a number has are a long time too
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	now := time.Now()
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		now = date
	}
	return min(max(0, at.Sub(now)), most), true
}

// putOff closes the key and defers the task until it opens. When it was put off too
// often, or has no policy, or Redis does not answer, what the handler said stands.
func (t *attempt) postpone(ctx context.Context, p taskPolicy, later *RetryAfterError, err error) error {
	g, ok := t.grantOf(p, later.Rule)
	if !ok {
		return err
	}
	rule := later.Rule
	if rule == "" {
		rule = g.policy.Rules()[0].Rule()
	}
	after, cancel := t.after(ctx)
	defer cancel()
	times, failed := luascripts.Postpones(after, t.a.rdb, t.a.keys(t.queue), t.taskID)
	tooOften := times >= p.maxPostpones()
	d := min(max(later.After, RetryAfterMin), RetryAfterMax)
	tooLate := t.MaxWait() != 0 && t.MaxWait() < d
	switch {
	case failed != nil:
	case tooOften, tooLate, gaveUp(ctx): // it does not come back for a place
		failed = closeKey(after, g, rule, d)
	default:
		_, failed = g.policy.Postpone(after, rule, g.Request, d)
	}
	if failed != nil {
		t.a.logFew("put off", func() {
			t.a.log.Warn("a key can't be closed: its task is tried again", zap.String("rule", rule), zap.Error(failed))
		})
		return err
	}
	switch {
	case tooOften, gaveUp(ctx):
		return err
	case tooLate:
		t.a.counters.refused.Add(1)
		late := &throttle.TooLateError{Rule: rule, At: time.Now().Add(d), Wait: d, MaxWait: t.MaxWait()}
		return forGood(fmt.Errorf("%w: %w", late, err))
	}
	t.a.counters.postponed.Add(1)
	cause := &throttle.ThrottledError{Rule: rule, At: time.Now().Add(d), RetryAfter: d}
	from := luascripts.BookingRef{Deadline: t.deadline, Rules: luascripts.NewBookedRules(g.policy.String(), g.Costs(), g.policy.IDs(g.Request))}
	return t.deferTo(deferral{rule: rule, wait: d, place: from, cause: fmt.Errorf("%w: %w", cause, err), putOff: true}, g)
}

// gaveUp says that asynq has ended the attempt of a handler, whose error nobody reads.
func gaveUp(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), throttle.ErrLeaseLost)
}

// closeKey closes the key of a rule of a grant.
func closeKey(ctx context.Context, g held, rule string, d time.Duration) error {
	for i, l := range g.policy.Rules() {
		if l.Rule() == rule {
			key := g.Key
			if i > 0 {
				key = g.More[i-1].Key
			}
			_, err := l.CloseKey(ctx, key, d)
			return err
		}
	}
	return nil
}

// grantOf is the grant of the attempt by a rule, or of its policy.
func (t *attempt) grantOf(p taskPolicy, rule string) (held, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, g := range t.grants {
		if rule == "" && i == 0 && p.decide != nil {
			return g, true
		}
		for _, l := range g.policy.Rules() {
			if l.Rule() == rule {
				return g, true
			}
		}
	}
	return held{}, false
}
