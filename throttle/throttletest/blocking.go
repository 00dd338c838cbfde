package throttletest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle"
)

// short is the window where time passes really when the clock can't be moved. Three callers in a row have a longer one: on a busy
// machine answers take longer than a tenth of the short one, and then no grant is of use.
const (
	short  = 200 * ms
	longer = time.Second
)

// blockingCases: Acquire returns at its instant and not before, in order, and
// leaves nothing behind when its context ends.
func blockingCases() []scenario {
	one := throttle.Sliding(1, short)
	return []scenario{
		{name: "blocking/Acquire waits for its instant", limit: one, play: waitsForInstant},
		{name: "blocking/first come, first served", limit: throttle.Sliding(1, longer), moves: true, play: grantsInOrder},
		{name: "blocking/Acquire ends with its context", limit: throttle.Sliding(1, time.Hour), play: givesUp},
		{name: "blocking/an ended context gets nothing", limit: throttle.Sliding(1, time.Hour), play: func(s *testbed) {
			cause := errors.New("over before")
			ctx, end := context.WithCancelCause(s.Context())
			end(cause)
			if err := s.promptly("Acquire", func(context.Context) error { return s.l.Acquire(ctx, key, 1) }); !errors.Is(err, cause) {
				s.Errorf("Acquire = %v, want %v", err, cause)
			}
			s.free(1)
		}},
	}
}

func acquireOn(ctx context.Context, s *testbed) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.l.Acquire(ctx, key, 1) }()
	return done
}

func waitsForInstant(s *testbed) {
	if err := s.soon("the first Acquire", acquireOn(s.Context(), s)); err != nil {
		s.Fatalf("Acquire = %v, want nil", err)
	}
	done := acquireOn(s.Context(), s)
	if s.Advance != nil {
		s.lineUp(1)
		select {
		case err := <-done:
			s.Errorf("Acquire = %v before its instant", err)
			return
		default:
		}
		s.at(short)
	}
	if err := s.soon("Acquire", done); err != nil {
		s.Errorf("Acquire = %v, want nil", err)
	}
	if passed := time.Since(s.began); s.Advance == nil && passed < short {
		s.Errorf("two permits within %v, want %v between them", passed, short)
	}
	s.waiting(0)
}

// grantsInOrder lets three wait, who are served one by one.
func grantsInOrder(s *testbed) {
	s.try(1, 0)
	const callers = 3
	came := make(chan error, callers)
	for i := range callers {
		done := acquireOn(s.Context(), s)
		s.lineUp(i + 1)
		go func() {
			if err := <-done; err != nil {
				came <- err
				return
			}
			came <- turn(i)
		}()
	}
	for i := range callers {
		s.at(time.Duration(i+1) * longer)
		if err := s.soon(fmt.Sprintf("caller %d", i), came); err != turn(i) { //nolint:errorlint // turns are compared, not errors
			s.Fatalf("%v, want %v", err, turn(i))
		}
		s.waiting(callers - i - 1)
	}
}

// turn says who came.
type turn int

func (t turn) Error() string { return fmt.Sprintf("it was the turn of caller %d", int(t)) }

func givesUp(s *testbed) {
	s.try(1, 0)
	cause := errors.New("not needed any more")
	ctx, end := context.WithCancelCause(s.Context())
	first := acquireOn(ctx, s)
	s.lineUp(1)
	behind, leave := context.WithCancel(s.Context())
	defer leave()
	second := acquireOn(behind, s)
	s.lineUp(2)
	end(cause)
	if err := s.soon("Acquire", first); !errors.Is(err, cause) {
		s.Errorf("Acquire = %v, want the cause of its context's end", err)
	}
	s.lineUp(1)
	s.book("after", 1, 2*time.Hour) // behind the one that is left, and not behind a hole
	leave()
	if err := s.soon("Acquire", second); !errors.Is(err, context.Canceled) {
		s.Errorf("Acquire = %v, want %v", err, context.Canceled)
	}
	s.lineUp(1)
	s.book("after", 1, time.Hour)
}
