package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// A handler adjusts what it has paid, and then defers or fails without having
// used anything: what it has paid comes back, and nothing of what others paid.
func TestAdjustedChargeIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		actual int
		free   bool // NotCharged, and not a deferral
	}{{"to less", 0, false}, {"to more", 3, false}, {"to less, not charged", 1, true}, {"to more, not charged", 3, true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			limit := throttle.Fixed(6, time.Hour)
			sms, other := r.limiter("sms", limit), r.limiter("other", throttle.Sliding(1, time.Hour))
			r.take(other, "x")
			if d, err := sms.TryAcquire(t.Context(), "+1", 3); err != nil || !d.Granted {
				t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
			}
			p := phone("sms", time.Hour)
			p.Rules[0].Limit, p.Rules[0].Cost = limit, func(*asynq.Task) (int, error) { return 2, nil }
			failed := make(chan error, 1)
			r.start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				err := worker.Adjust(ctx, tc.actual)
				switch {
				case err != nil:
				case tc.free:
					err = worker.NotCharged(errors.New("refused"))
				default:
					err = other.Acquire(ctx, "x", 1)
				}
				failed <- err
				return err
			}), policies(p))
			r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(1))
			if err := within1(t, failed); tc.free == errors.Is(err, throttle.ErrThrottled) {
				t.Fatalf("the handler ends with %v", err)
			}
			r.eventually("back in line", func() bool { return r.is("a", asynq.TaskStateRetry) })
			if n, err := sms.Available(t.Context(), "+1"); err != nil || n != 3 {
				t.Errorf("%d permits left, %v, want the 3 that nobody else has spent", n, err)
			}
		})
	}
}

func within1(t *testing.T, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(within):
		t.Fatal("no handler ran")
		return nil
	}
}

// An Adjust of a handler fails, and is made again: the observer hears of it once.
func TestVirtualAdjustedIsToldWhenItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, m := mini(t, 1)
		var told []event.Adjusted // by the handler, which calls the observer
		p := phone("sms", time.Hour)
		p.Rules[0].Limit, p.Rules[0].Cost = throttle.Fixed(5, time.Hour), func(*asynq.Task) (int, error) { return 3, nil }
		cfg := policies(p)
		cfg.Observer.Adjusted = func(_ context.Context, e event.Adjusted) { told = append(told, e) }
		ended := make(chan error, 1)
		started(t, clients[0], asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			m.SetError("ERR an outage")
			first := worker.Adjust(ctx, 1)
			m.SetError("")
			if first == nil {
				first = errors.New("the first Adjust succeeded")
			} else {
				first = errors.Join(worker.Adjust(ctx, 1), worker.Adjust(ctx, 1))
			}
			ended <- first
			return first
		}), cfg)
		enqueue(t, clients[0], queue.NewTask("sms", []byte(to("+1")), asynq.MaxRetry(0)))
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if len(told) != 1 || told[0].From != 3 || told[0].To != 1 {
			t.Errorf("the observer heard %+v, want one from 3 to 1", told)
		}
	})
}
