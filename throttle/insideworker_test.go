package throttle_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

var errDeferred = errors.New("deferred")

// host is a worker as [throttle.Host] sees it.
type host struct {
	maxWait time.Duration
	asked   []throttle.Request
	settled []throttle.Decision
	refuse  error // of Begin
	late    int   // so many grants are not fresh
	putOff  []throttle.Decision
}

func (h *host) Job() string            { return "task" }
func (h *host) MaxWait() time.Duration { return h.maxWait }

func (h *host) Ask(ctx context.Context, p *throttle.Policy, r throttle.Request) (throttle.Decision, error) {
	h.asked = append(h.asked, r)
	return p.Redeem(ctx, r)
}

func (h *host) Begin(ctx context.Context, p *throttle.Policy, d throttle.Decision) (bool, error) {
	h.settled = append(h.settled, d)
	if len(h.settled) <= h.late {
		_, err := throttle.ForWorkers.Return(ctx, p, d.Request)
		return false, err
	}
	return h.refuse == nil, h.refuse
}

func (h *host) DeferStale(_ context.Context, _ *throttle.Policy, d throttle.Decision) error {
	h.putOff = append(h.putOff, d)
	return errDeferred
}

func (h *host) Defer(context.Context, *throttle.Policy, throttle.Decision) error { return errDeferred }

// Inside a worker Acquire does not wait: it settles, or defers.
func TestAcquireInsideAWorker(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	h := &host{}
	ctx := throttle.ForWorkers.WithHost(t.Context(), h)
	if err := l.Acquire(ctx, key, 1); err != nil || len(h.settled) != 1 || !h.settled[0].Granted {
		t.Errorf("Acquire = %v, settled %v, want one grant", err, h.settled)
	}
	if err := l.Acquire(ctx, key, 1); !errors.Is(err, errDeferred) {
		t.Errorf("the second Acquire = %v, want the host's error", err)
	}
	if h.asked[1].Job != "task" || h.asked[0].Token == h.asked[1].Token {
		t.Errorf("asked for %v, want the host's job and a token for each attempt", h.asked)
	}
	if got, err := l.Peek(t.Context(), key, 1); err != nil || got.Waiting != 1 || got.Booked[0].Job != "task" {
		t.Errorf("Peek = %+v, %v, want the task in the line", got, err)
	}
	h.refuse = errors.New("shut down")
	s.at(time.Minute)
	if err := l.Acquire(ctx, key, 1); !errors.Is(err, h.refuse) {
		t.Errorf("Acquire = %v, want what Adjust answered", err)
	}
}

// A grant that the host finds too old is asked for anew, and charged once.
func TestAcquireInsideAWorkerAsksAnewWhenLate(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(3, time.Minute))
	h := &host{late: 2}
	if err := l.Acquire(throttle.ForWorkers.WithHost(t.Context(), h), key, 1); err != nil || len(h.settled) != 3 {
		t.Fatalf("Acquire = %v, settled %v, want the third grant", err, h.settled)
	}
	if h.asked[0].Token == h.asked[1].Token || h.asked[1].Token == h.asked[2].Token {
		t.Errorf("asked for %v, want a token for each attempt", h.asked)
	}
	if got, err := l.Peek(t.Context(), key, 1); err != nil || got.Available != 2 || got.Waiting != 0 {
		t.Errorf("Peek = %+v, %v, want one permit charged and nobody waiting", got, err)
	}
}

// Of the caller's bound and the host's the shorter one holds.
func TestAcquireInsideAWorkerIsBounded(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	s.try(l, 1)
	for _, tt := range []struct{ host, caller, want time.Duration }{
		{0, 0, 0}, {0, time.Second, time.Second}, {time.Second, 0, time.Second},
		{time.Second, 2 * time.Second, time.Second}, {2 * time.Second, time.Second, time.Second}, {-1, time.Second, -1},
	} {
		h := &host{maxWait: tt.host}
		ctx := throttle.ForWorkers.WithHost(t.Context(), h)
		var err error
		if tt.caller == 0 {
			err = l.Acquire(ctx, key, 1)
		} else {
			err = acquireWithin(ctx, l, key, 1, tt.caller)
		}
		if got := h.asked[0].MaxWait; got != tt.want {
			t.Errorf("host %v, caller %v: MaxWait = %v, want %v", tt.host, tt.caller, got, tt.want)
		}
		if want := map[bool]error{true: errDeferred, false: throttle.ErrTooLate}[tt.want == 0]; !errors.Is(err, want) {
			t.Errorf("host %v, caller %v: Acquire = %v, want %v", tt.host, tt.caller, err, want)
		}
	}
}
