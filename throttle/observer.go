package throttle

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/headwayq/headway/internal/luascripts"
)

// Observer hears what limiters decide.
type Observer interface {
	// Decided is called with the answer to each call that asks for permits,
	// in the goroutine of that call, many at a time. It must not block. A caller
	// that waits in [Limiter.Acquire] asks several times. The Decision prints
	// without its key; its field Key is there.
	Decided(ctx context.Context, d Decision, err error)
}

// Counts is how often a limiter of this process decided what, since it was
// made. Answers are counted, not permits.
type Counts struct {
	Granted  uint64 // the limit admitted it, or a fallback
	Booked   uint64 // got a place in a line; asking about one again is not counted
	Refused  uint64 // TryAcquire was answered no
	TooLate  uint64 // [ErrTooLate]; in shadow mode what would have been
	Exceeded uint64 // [ErrExceedsLimit]; in shadow mode what would have been
	Shadowed uint64 // granted in shadow mode although the limit did not admit it; none of Granted
	Fallback uint64 // of all, those decided without Redis
	Failed   uint64 // not decided: [ErrUnavailable], or a state that can't be read
}

type counters struct {
	granted, booked, refused, tooLate, exceeded, shadowed, fallback, failed atomic.Uint64
}

func (c *counters) add(mode luascripts.Mode, d *Decision, err error) {
	if d.Fallback != FailClosed {
		c.fallback.Add(1)
	}
	if d.Shadowed {
		c.shadowed.Add(1)
	}
	switch {
	case errors.Is(err, ErrTooLate) || d.instead == insteadOfLate:
		c.tooLate.Add(1)
	case errors.Is(err, ErrExceedsLimit) || d.instead == insteadOfNever:
		c.exceeded.Add(1)
	case isCallers(err) || d.instead == insteadOfWait:
	case err != nil || d.instead == insteadOfFault:
		c.failed.Add(1)
	case d.Granted:
		c.granted.Add(1)
	case mode == luascripts.Try || d.Refused:
		c.refused.Add(1)
	case d.Promised.IsZero():
		c.booked.Add(1)
	}
}

// isCallers says that an error is its caller's own doing, and no decision.
func isCallers(err error) bool {
	for _, own := range []error{ErrInvalidKey, ErrInvalidJob, ErrInvalidCost, ErrWithdrawn} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}
