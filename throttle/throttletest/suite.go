package throttletest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Limiter is what the suite asks of a limiter. [Of] makes one of a
// [throttle.Limiter]; what wraps one or replaces one may be tested as well. The
// comments of throttle.Limiter, and of throttle.Policy for calls with a Request, say
// what each method promises. AcquireWithin is Acquire with a longest wait, none for zero
// and below. A Decision needs its Request, Granted, At and Now.
//
// What a limiter has beyond it is tested if it is there: SetLimit, Reserve and
// Return.
type Limiter interface {
	TryAcquire(ctx context.Context, key string, n int) (throttle.Decision, error)
	Acquire(ctx context.Context, key string, n int) error
	AcquireWithin(ctx context.Context, key string, n int, d time.Duration) error
	Book(ctx context.Context, r throttle.Request) (throttle.Decision, error)
	Redeem(ctx context.Context, r throttle.Request) (throttle.Decision, error)
	Cancel(ctx context.Context, r throttle.Request) ([]throttle.Promotion, error)
	Refund(ctx context.Context, r throttle.Request) ([]throttle.Promotion, error)
	Peek(ctx context.Context, key string, most int) (throttle.State, error)
	Available(ctx context.Context, key string) (int, error)
	TimeUntil(ctx context.Context, key string, n int) (time.Duration, error)
	Reset(ctx context.Context, key string) ([]throttle.Promotion, error)
}

// Of is a limiter with the calls for jobs of its policy.
func Of(l *throttle.Limiter) Limiter { return whole{l} }

type whole struct{ *throttle.Limiter }

func (w whole) AcquireWithin(ctx context.Context, key string, n int, d time.Duration) error {
	if d <= 0 {
		d = -1
	}
	_, err := w.Policy().Acquire(ctx, throttle.Request{Key: key, Cost: n, MaxWait: d})
	return err
}

func (w whole) Book(ctx context.Context, r throttle.Request) (throttle.Decision, error) {
	return w.Policy().Book(ctx, r)
}

func (w whole) Redeem(ctx context.Context, r throttle.Request) (throttle.Decision, error) {
	return w.Policy().Redeem(ctx, r)
}

func (w whole) Cancel(ctx context.Context, r throttle.Request) ([]throttle.Promotion, error) {
	return w.Policy().Cancel(ctx, r)
}

func (w whole) Refund(ctx context.Context, r throttle.Request) ([]throttle.Promotion, error) {
	return w.Policy().Refund(ctx, r)
}

func (w whole) Return(ctx context.Context, r throttle.Request) ([]throttle.Promotion, error) {
	return throttle.ForWorkers.Return(ctx, w.Policy(), r)
}

func (w whole) SetLimit(ctx context.Context, limit throttle.Limit) error {
	_, err := w.Limiter.SetLimit(ctx, limit, throttle.SetLimitOptions{})
	return err
}

// Subject is a limiter under test, and its clock.
type Subject struct {
	// Limiter has nothing spent and nobody waiting.
	Limiter Limiter

	// Advance moves the clock that the limiter decides by, which otherwise
	// stands still; it is never asked to move less than a microsecond. Without
	// it the clock is taken to be the real one: what needs more than a fraction
	// of a second to pass is skipped, and waits may be shorter than exact ones by
	// what has passed. Defaults to nil.
	Advance func(d time.Duration)

	// GoesBack says that Advance also takes negative durations. Defaults to false.
	GoesBack bool
}

// Run holds a limiter to what every limiter of this module does, each promise as
// a subtest, one after another. newSubject is called for each with the limit that
// it needs.
func Run(t *testing.T, newSubject func(t *testing.T, limit throttle.Limit) Subject) {
	t.Helper()
	for _, c := range allCases() {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, newSubject(t, c.limit), nil)
		})
	}
}

// RunInBubble is [Run] for a limiter that goes by the local clock, such as one of
// [throttle.NewLocal]: each subtest plays in a bubble of testing/synctest, where
// time passes at once and waits are exact, those of blocking calls too. The
// limiter must be made in newLimiter, and must not use a socket.
func RunInBubble(t *testing.T, newLimiter func(t *testing.T, limit throttle.Limit) Limiter) {
	t.Helper()
	for _, c := range allCases() {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.run(t, Subject{Limiter: newLimiter(t, c.limit), Advance: time.Sleep}, synctest.Wait)
			})
		})
	}
}

// scenario is one promise.
type scenario struct {
	name  string
	limit throttle.Limit
	moves bool // the clock has to be moved
	back  bool // and backward
	play  func(*testbed)
}

func allCases() []scenario {
	var all []scenario
	for _, some := range [][]scenario{
		numberCases(), tightCases(), lineCases(), grantCases(), refusalCases(),
		lookCases(), blockingCases(), changeCases(), crowdCases(), reserveCases(),
	} {
		all = append(all, some...)
	}
	return all
}

func (c scenario) run(t *testing.T, s Subject, settle func()) {
	t.Helper()
	switch {
	case s.Limiter == nil:
		t.Fatal("throttletest: the subject has no Limiter")
	case c.moves && s.Advance == nil:
		t.Skip("it needs a clock that can be moved")
	case c.back && !s.GoesBack:
		t.Skip("it needs a clock that can be moved back")
	}
	st := &testbed{T: t, Subject: s, l: s.Limiter, limit: c.limit, settle: settle, began: time.Now()}
	st.start = st.peek(0).Now
	c.play(st)
}
