package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

var errGateway = errors.New("gateway: 502")

// witness is the user's side of an asynq.Config: it notes every error that it
// is asked about.
type witness struct {
	mu                       sync.Mutex
	handled, judged, delayed []error
}

func (w *witness) config() asynq.Config {
	note := func(list *[]error, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		*list = append(*list, err)
	}
	return asynq.Config{
		Concurrency:    4,
		ErrorHandler:   asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { note(&w.handled, err) }),
		IsFailure:      func(err error) bool { note(&w.judged, err); return true },
		RetryDelayFunc: func(_ int, err error, _ *asynq.Task) time.Duration { note(&w.delayed, err); return 0 },
	}
}

// want checks that nothing but real errors was seen: n handled, m retried.
func (w *witness) want(t *testing.T, handled, retried int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.handled) != handled || len(w.judged) != retried || len(w.delayed) != retried {
		t.Errorf("ErrorHandler saw %v, IsFailure %v, RetryDelayFunc %v; want %d, %d, %d errors", w.handled, w.judged, w.delayed, handled, retried, retried)
	}
	for _, err := range slices.Concat(w.handled, w.judged, w.delayed) {
		// The colon belongs to it: the text of a panic names this file, and with it its folders.
		if errors.Is(err, throttle.ErrThrottled) || strings.Contains(err.Error(), "throttle: ") {
			t.Errorf("the user's functions saw a throttle: %v", err)
		}
	}
}

// quiet checks that no retry, failure or worse was logged.
func (r *rig) quiet() {
	r.Helper()
	for _, e := range r.logs.All() {
		if e.Level > 0 || strings.Contains(e.Message, "Retry exhausted") {
			r.Errorf("logged at %v: %s", e.Level, e.Message)
		}
	}
}

// tenKeys acquires on ten keys, one after the other, each of which it finds
// exhausted the first time; then it is done.
type tenKeys struct {
	lim   *throttle.Limiter
	fails int // real failures first

	mu        sync.Mutex
	exhausted map[string]bool
	deferrals int
	done      int
}

func (h *tenKeys) ProcessTask(ctx context.Context, _ *asynq.Task) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fails > 0 {
		h.fails--
		return errGateway
	}
	for i := range 10 {
		key := fmt.Sprintf("key%d", i)
		if !h.exhausted[key] {
			h.exhausted[key] = true
			if d, err := h.lim.TryAcquire(ctx, key, 1); err != nil || !d.Granted {
				return fmt.Errorf("%s was not to be had: %v, %w", key, d, err)
			}
		}
		if err := h.lim.Acquire(ctx, key, 1); err != nil {
			h.deferrals++
			return err
		}
	}
	h.done++
	return nil
}

func TestThrottledIsNotFailed(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		for _, last := range []bool{false, true} {
			name := map[bool]string{false: "our client", true: "plain client"}[plain] +
				map[bool]string{false: ", no retries", true: ", last attempt"}[last]
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, w := newRig(t), &witness{}
				h := &tenKeys{lim: r.limiter("ten", throttle.Sliding(1, 400*ms)), exhausted: map[string]bool{}}
				fails, lastErr := 0, ""
				if last {
					fails, lastErr = 1, errGateway.Error()
				}
				h.fails = fails
				r.start(h, worker.Config{Asynq: w.config()})

				enqueue := r.enqueue
				if plain {
					enqueue = r.enqueuePlain
				}
				enqueue("any", "a", "{}", asynq.MaxRetry(fails), asynq.Retention(time.Hour))
				r.eventually("deferred", func() bool { return r.is("a", asynq.TaskStateRetry) && r.info("a").Retried == fails })
				if got := r.info("a"); got.State == asynq.TaskStateRetry && got.LastErr != lastErr {
					t.Errorf("while deferred: LastErr = %q, want %q", got.LastErr, lastErr)
				}
				r.eventually("done", func() bool { return r.is("a", asynq.TaskStateCompleted) || r.is("a", asynq.TaskStateArchived) })

				if h.deferrals != 10 || h.done != 1 {
					t.Errorf("%d deferrals and %d runs to the end, want 10 and 1", h.deferrals, h.done)
				}
				got := r.info("a")
				if got.State != asynq.TaskStateCompleted || got.Retried != fails || got.LastErr != lastErr {
					t.Errorf("%v after %d retries with LastErr %q, want completed, %d, %q", got.State, got.Retried, got.LastErr, fails, lastErr)
				}
				r.wantQueue(1+fails, fails, 0)
				w.want(t, fails, fails)
				r.quiet()
			})
		}
	}
}

// acquires is a handler that needs one permit of a key.
func acquires(l *throttle.Limiter, key string, then func(context.Context, *asynq.Task, error) error) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error { return then(ctx, task, l.Acquire(ctx, key, 1)) }
}

func TestDeferralIsKnownThroughWrapping(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"middleware: %w", "middleware: %v"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r, w, seen := newRig(t), &witness{}, &runs{}
			lim := r.limiter("one", throttle.Sliding(1, 2*time.Second)) // a grant that is 200 ms late is asked for once more
			r.take(lim, "k")
			mux := asynq.NewServeMux()
			mux.Use(func(next asynq.Handler) asynq.Handler {
				return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
					if err := next.ProcessTask(ctx, task); err != nil {
						return fmt.Errorf(format, err)
					}
					return nil
				})
			})
			mux.Handle("any", acquires(lim, "k", func(ctx context.Context, task *asynq.Task, err error) error {
				seen.note(ctx, task)
				return err
			}))
			r.start(mux, worker.Config{Asynq: w.config()})
			r.enqueuePlain("any", "a", "{}", asynq.MaxRetry(0))
			r.eventually("done", func() bool { return seen.count("a") == 2 && r.info("a") == nil })
			r.wantQueue(1, 0, 0)
			w.want(t, 0, 0)
			r.quiet()
		})
	}
}

func TestSwallowedDeferralCancelsItsBooking(t *testing.T) {
	t.Parallel()
	for _, panics := range []bool{false, true} {
		t.Run(fmt.Sprintf("panics %v", panics), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			lim := r.limiter("one", throttle.Sliding(1, time.Minute))
			r.take(lim, "k")
			waiting := make(chan int, 1)
			p, _ := r.start(acquires(lim, "k", func(_ context.Context, _ *asynq.Task, err error) error {
				if !errors.Is(err, throttle.ErrThrottled) {
					t.Errorf("Acquire = %v, want a throttle", err)
				}
				waiting <- r.peek(lim, "k").Waiting
				if panics {
					panic("of the handler")
				}
				return nil
			}), policies(phone("sms", time.Hour)))
			r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
			if n := <-waiting; n != 1 {
				t.Errorf("%d wait while the handler runs, want 1", n)
			}
			r.eventually("an end", func() bool { return r.info("a") == nil || r.is("a", asynq.TaskStateArchived) })
			if n := r.peek(lim, "k").Waiting; n != 0 {
				t.Errorf("%d wait for nothing", n)
			}
			if n := r.peek(p.Limiter("sms"), "+1").Available; n != 0 {
				t.Errorf("%d permits came back of a handler that went on without what it asked for, want none", n)
			}
			if panics {
				r.wantQueue(1, 1, 1)
			} else {
				r.wantQueue(1, 0, 0)
			}
		})
	}
}

// Every attempt pays, one that panics too: it may have sent.
func TestPanicAfterGrantIsCharged(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	cfg := policies(phone("sms", 600*ms))
	cfg.Asynq = w.config()
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if seen.note(ctx, task); len(seen.all()) == 1 {
			panic("of the handler")
		}
		return nil
	}), cfg)
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(1))
	seen.ran(t, 2)
	r.eventually("done", func() bool { return r.info("a") == nil })
	got := seen.all()
	if gap := got[1].grant.At.Sub(got[0].grant.At); gap < 600*ms {
		t.Errorf("the second attempt was granted %v after the first, want at least 600ms", gap)
	}
	r.wantQueue(2, 1, 0)
	w.want(t, 1, 1)
}

func TestEarlierGrantsAreGivenBack(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	first, second := r.limiter("first", throttle.Sliding(1, time.Hour)), r.limiter("second", throttle.Sliding(1, 2*time.Second))
	r.take(second, "k")
	p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		for _, l := range []*throttle.Limiter{first, second} {
			if err := l.Acquire(ctx, "k", 1); err != nil {
				return err
			}
		}
		seen.note(ctx, task)
		return nil
	}), policies(phone("sms", time.Hour)))
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
	r.eventually("deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
	for _, l := range []*throttle.Limiter{p.Limiter("sms"), first} {
		key := map[bool]string{true: "k", false: "+1"}[l == first]
		if s := r.peek(l, key); s.Available != 1 || s.Waiting != 0 {
			t.Errorf("rule %s: %d available and %d waiting while deferred elsewhere, want 1 and 0", l.Rule(), s.Available, s.Waiting)
		}
	}
	seen.ran(t, 1)
	for _, l := range []*throttle.Limiter{p.Limiter("sms"), first} {
		key := map[bool]string{true: "k", false: "+1"}[l == first]
		if s := r.peek(l, key); s.Available != 0 {
			t.Errorf("rule %s: %d available after the run, want 0", l.Rule(), s.Available)
		}
	}
	r.eventually("done", func() bool { return r.info("a") == nil })
	r.wantQueue(1, 0, 0)
}

// A second Acquire of the same rule and key in one attempt can't be deferred:
// giving the first permit back would serve the second, and so on without end.
// It is refused for good, also when it could be had at once.
func TestSameKeyTwiceIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lim := r.limiter("two", throttle.Sliding(2, time.Hour))
	r.start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		if err := lim.Acquire(ctx, "other", 2); err != nil {
			return err
		}
		return errors.Join(lim.Acquire(ctx, "k", 1), lim.Acquire(ctx, "k", 1))
	}), worker.Config{})
	r.enqueue("any", "a", "{}")
	r.eventually("archived", func() bool { return r.is("a", asynq.TaskStateArchived) })
	if got := r.info("a").LastErr; !strings.Contains(got, worker.ErrTwice.Error()) || strings.Contains(got, `"k"`) {
		t.Errorf("LastErr = %q, want %q without the key", got, worker.ErrTwice)
	}
}

// A policy without a booking to tell the truth about: real errors of limited
// tasks are asynq's business, with the user's functions.
func TestRealErrorsStayReal(t *testing.T) {
	t.Parallel()
	r, w := newRig(t), &witness{}
	cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "sms", Limit: throttle.Sliding(100, time.Second), Key: queue.MustJSONKey("$.to")}}})
	cfg.Asynq = w.config()
	r.start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errGateway }), cfg)
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(2))
	r.eventually("archived", func() bool { return r.is("a", asynq.TaskStateArchived) })
	if got := r.info("a"); got.LastErr != errGateway.Error() || got.Retried != 2 {
		t.Errorf("archived after %d retries with %q", got.Retried, got.LastErr)
	}
	r.wantQueue(3, 3, 1)
	w.want(t, 3, 2)
	if n := r.logs.FilterMessageSnippet("Retry exhausted").Len(); n != 1 {
		t.Errorf("%d lines say that the retries are exhausted, want 1", n)
	}
}
