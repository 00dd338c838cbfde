package throttle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/rediserr"
)

// What a caller can act on. Each comes with a typed error that carries the data
// and unwraps to it. No error text contains a key: it may be personal data.
var (
	// ErrInvalidLimit: the numbers of a limit make no sense.
	ErrInvalidLimit = errors.New("throttle: invalid limit")
	// ErrInvalidConfig: a limiter can't be built like this.
	ErrInvalidConfig = errors.New("throttle: invalid configuration")
	// ErrInvalidKey: the key is empty or longer than [KeyMax].
	ErrInvalidKey = errors.New("throttle: invalid key")
	// ErrInvalidJob: the job id is empty or longer than [JobMax].
	ErrInvalidJob = errors.New("throttle: invalid job")
	// ErrInvalidCost: fewer than one permit was asked for.
	ErrInvalidCost = errors.New("throttle: invalid cost")
	// ErrExceedsLimit: more permits than a window holds; it can never succeed. See [ExceedsLimitError].
	ErrExceedsLimit = errors.New("throttle: cost exceeds the limit")
	// ErrThrottled: not now. See [ThrottledError].
	ErrThrottled = errors.New("throttle: limit reached")
	// ErrTooLate: not before the deadline or within the time-out. See [TooLateError].
	ErrTooLate = errors.New("throttle: too late")
	// ErrWithdrawn: the call was taken back by its token before it arrived.
	ErrWithdrawn = errors.New("throttle: call was withdrawn")
	// ErrUnavailable: Redis did not answer, or not as it should. Whether the call took effect
	// is not known. Its text has the client's or the server's own words, which hold no key.
	// When the caller's context ended before the answer came, the error says so instead, and
	// unwraps to the error of the context and to its cause, too.
	ErrUnavailable = errors.New("throttle: redis unavailable")
	// ErrStoredLimit: this version can't read the limit that is stored for the rule. Nothing
	// is granted until it is set anew or taken away; what was granted can be given back. Or
	// [Config.LimitOf] does not find the limit of a key, or an older one than another process.
	ErrStoredLimit = errors.New("throttle: stored limit can't be read")
	// ErrLeaseLost: the lease has ended, and its place may be another's by now.
	ErrLeaseLost = errors.New("throttle: lease lost")
	// ErrSchema: the state in Redis was written by a newer version of this package.
	ErrSchema = errors.New("throttle: state of a newer schema")
	// ErrCorrupt: what a key spent can't be read, because something else has written to Redis
	// there. Nothing is granted on the key until [Limiter.Reset] forgets it.
	ErrCorrupt = errors.New("throttle: corrupt state, which a reset of the key forgets")
)

// ExceedsLimitError says which cost can never be met. It unwraps to [ErrExceedsLimit].
type ExceedsLimitError struct {
	Rule  string
	Cost  int
	Limit Limit
}

func (e *ExceedsLimitError) Error() string {
	if most := e.Limit.MaxCost(); e.Cost <= e.Limit.permits && e.Limit.kind == kindSliding {
		return fmt.Sprintf("throttle: rule %q: cost %d, want at most %d at once under %v, which keeps a record of each permit: other kinds take "+
			"any cost", e.Rule, e.Cost, most, e.Limit)
	}
	return fmt.Sprintf("throttle: rule %q: cost %d exceeds the limit %v", e.Rule, e.Cost, e.Limit)
}

func (e *ExceedsLimitError) Unwrap() error { return ErrExceedsLimit }

// ThrottledError says which rule refuses and until when. It unwraps to [ErrThrottled].
type ThrottledError struct {
	Rule       string
	At         time.Time     // the instant that Redis answered, by its clock
	RetryAfter time.Duration // from the answer to At
}

func (e *ThrottledError) Error() string {
	return fmt.Sprintf("throttle: rule %q refuses for %v", e.Rule, e.RetryAfter.Round(time.Millisecond))
}

func (e *ThrottledError) Unwrap() error { return ErrThrottled }

// TooLateError says that the instant of a job lies beyond what its caller
// allows. Nothing is booked then. A caller that waits for a slot of [Concurrent] gets this error
// only when its time is over. It unwraps to [ErrTooLate].
type TooLateError struct {
	Rule    string
	At      time.Time     // the first instant at which the rule would admit, by Redis' clock
	Wait    time.Duration // from the answer to At
	MaxWait time.Duration // what the caller allows, 0 or less when its deadline is over
}

func (e *TooLateError) Error() string {
	return fmt.Sprintf("throttle: rule %q admits in %v at the earliest, only %v are left",
		e.Rule, e.Wait.Round(time.Millisecond), e.MaxWait.Round(time.Millisecond))
}

func (e *TooLateError) Unwrap() error { return ErrTooLate }

type storedLimitError struct {
	Rule string
	Text string // as it is stored, its beginning
}

func (e *storedLimitError) Error() string {
	return fmt.Sprintf("throttle: rule %q: the stored limit %q can't be read", e.Rule, e.Text)
}

func (e *storedLimitError) Unwrap() error { return ErrStoredLimit }

// keyLimitError says that the limit of a key can't be found, see [Config.LimitOf].
type keyLimitError struct {
	Rule   string
	Reason string // never the text of the function's error, which may name the key
	Err    error  // of the function, or nil
}

func (e *keyLimitError) Error() string {
	return fmt.Sprintf("throttle: rule %q: the limit of the key is not known: %s", e.Rule, e.Reason)
}

func (e *keyLimitError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrStoredLimit}
	}
	return []error{ErrStoredLimit, e.Err}
}

// unavailableError says what kept Redis from answering, see [ErrUnavailable].
type unavailableError struct {
	Op     string // the script that was called
	Reason string // the client's or the server's own words; they hold no key

	cause    error // of the package context
	ended    error // why the caller's context ended; nil when it did not
	answered bool
	final    bool // the same call can't succeed later either
}

func (e *unavailableError) Error() string {
	if e.ended != nil {
		return "throttle: " + e.Op + ": the context ended before the answer came: " + e.ended.Error()
	}
	return "throttle: " + e.Op + ": redis: " + e.Reason
}

func (e *unavailableError) Unwrap() []error {
	all := []error{ErrUnavailable}
	for _, err := range []error{e.cause, e.ended} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// fault translates what a script call about several rules came back with; rule is
// the one that it stumbled over, from 1.
func (rs ruleSet) fault(ctx context.Context, op string, rule int, status limitscripts.Status, err error) error {
	if rule < 1 || rule > len(rs) {
		rule = 1
	}
	return rs[rule-1].fault(ctx, op, status, err)
}

// fault translates what a script call came back with; no error type of the
// Redis client leaves this package.
func (l *Limiter) fault(ctx context.Context, op string, status limitscripts.Status, err error) error {
	if err == nil {
		switch status {
		case limitscripts.NewerSchema:
			return fmt.Errorf("%w: rule %q", ErrSchema, l.rule)
		case limitscripts.Corrupt:
			return fmt.Errorf("%w: rule %q", ErrCorrupt, l.rule)
		}
		return nil
	}
	if _, ok := errors.AsType[*outdatedError](err); ok {
		return err
	}
	kind := rediserr.Of(err)
	u := &unavailableError{Op: op, Reason: strings.ReplaceAll(err.Error(), "\n", "; ")} // of several servers: a line each
	u.answered = errors.Is(err, errClock) || errors.Is(err, errHoldUnknown) || kind.Answered() && kind != rediserr.Passing
	u.final = !errors.Is(err, errClock) && !errors.Is(err, errHoldUnknown) && !rediserr.MayPass(err)
	if !u.answered && hasEnded(ctx) { // the caller's own doing, and not Redis'
		u.Reason, u.ended = "", context.Cause(ctx)
	}
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, end) || u.ended != nil && errors.Is(ctx.Err(), end) {
			u.cause = end
		}
	}
	return u
}

// hasEnded says that a context has ended, or that its deadline is past: a connection has the
// same deadline, and may notice it some microseconds before the context does.
func hasEnded(ctx context.Context) bool {
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}
