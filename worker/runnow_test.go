package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
	"github.com/headwayq/headway/worker"
)

// inspector sees the policies of a rig's pool.
func (r *rig) inspector(policies ...queue.Policy) *inspect.Inspector {
	r.Helper()
	i, err := inspect.New(r.rdb, inspect.Config{Policies: policies})
	if err != nil {
		r.Fatal(err)
	}
	return i
}

var aTest = inspect.Reason{Who: "ann", Why: "a test"}

// An operator lets a task run now: it runs at once without a permit, those behind it move up, it
// is counted as forced, and its next attempt asks its rules again.
func TestRunNowBreaksTheLimitOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := phone("sms", time.Hour)
	var ran runs
	var forced atomic.Int64
	pool, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if _, granted := worker.GrantFrom(ctx); granted {
			t.Error("the handler has a grant, though no rule was asked")
		}
		ran.note(ctx, task)
		return errors.New("it fails")
	}), worker.Config{
		Policies: []queue.Policy{p},
		Asynq:    asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }},
		Observer: event.Observer{Granted: func(_ context.Context, e event.Granted) {
			if e.Forced {
				forced.Add(1)
			}
		}},
	})
	i := r.inspector(p)
	spent := r.take(pool.Limiter("sms"), "+1")
	for _, id := range []string{"a", "b"} {
		r.enqueue("sms", id, to("+1"), asynq.MaxRetry(5))
		r.eventually(id+" is deferred", func() bool { return r.is(id, asynq.TaskStateRetry) })
	}
	if err := i.RunNow(t.Context(), "default", "a", aTest); err != nil {
		t.Fatal(err)
	}
	ran.ran(t, 1)
	r.eventually("b has the place of a", func() bool {
		e, err := i.Explain(t.Context(), "default", "b")
		return err == nil && e.Jobs == 0 && e.At.Sub(spent.At).Round(time.Minute) == time.Hour
	})
	r.eventually("the next attempt of a waits behind b", func() bool {
		e, err := i.Explain(t.Context(), "default", "a")
		return err == nil && e.State == inspect.StateLimit && e.Jobs == 1 && e.Asynq.Retried == 1 && !e.RunNow
	})
	if s := pool.Stats(); s.Forced != 1 || forced.Load() != 1 || s.Granted != 0 {
		t.Errorf("Stats has Forced %d and Granted %d, the Observer heard of %d, want 1, 0 and 1", s.Forced, s.Granted, forced.Load())
	}
	if n, err := pool.Limiter("sms").Available(t.Context(), "+1"); err != nil || n != 0 {
		t.Errorf("%d permits are left, %v, want none: what was spent before stays spent", n, err)
	}
	changes, err := i.Audit(t.Context(), 0, 10)
	if err != nil || len(changes) != 1 || changes[0].Action != inspect.ActionRunNow || changes[0].Task != "a" || changes[0].Who != "ann" {
		t.Errorf("the audit list has %+v, %v", changes, err)
	}
}

// Neither a shut gate, nor the pause of a batch, nor a key that can't be found keeps a task back
// that an operator lets run.
func TestRunNowPassesGatesAndPauses(t *testing.T) {
	t.Parallel()
	later := time.Now().UTC().Add(6 * time.Hour)
	shut, err := gate.Parse(fmt.Sprintf("%02d:00-%02d:01 UTC", later.Hour(), later.Hour()))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	p := queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "hours", Gate: shut},
		{Name: "phone", Limit: throttle.Sliding(1, time.Hour), Key: queue.MustJSONKey("$.to")},
	}}
	var ran runs
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		ran.note(ctx, task)
		return nil
	}), policies(p))
	i := r.inspector(p)
	r.enqueue("sms", "gated", to("+1"))
	r.eventually("it waits for the gate", func() bool { return r.is("gated", asynq.TaskStateRetry) })
	if err := i.RunNow(t.Context(), "default", "gated", aTest); err != nil {
		t.Fatal(err)
	}
	ran.ran(t, 1)

	c, err := queue.NewClient(r.rdb, queue.ClientConfig{Policies: []queue.Policy{p}})
	if err != nil {
		t.Fatal(err)
	}
	control := batch.NewControl(c)
	if _, err := control.Start(t.Context(), batch.Spec{ID: "winter", Type: "sms", Source: "none", Total: 1}); err != nil {
		t.Fatal(err)
	}
	if err := control.Pause(t.Context(), "default", "winter"); err != nil {
		t.Fatal(err)
	}
	id := batchscripts.TaskID("winter", "0")
	r.enqueue("sms", id, `{}`) // without a key
	r.eventually("it waits for its batch", func() bool { return r.is(id, asynq.TaskStateRetry) })
	if err := i.RunNow(t.Context(), "default", id, aTest); err != nil {
		t.Fatal(err)
	}
	ran.ran(t, 2)
}

// What runs, has ended, or is not there can't be let run, and the audit list says that it was not.
func TestRunNowOfATaskThatDoesNotWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("sms", "over", to("+1"))
	if err := r.insp.ArchiveTask("default", "over"); err != nil {
		t.Fatal(err)
	}
	i := r.inspector(phone("sms", time.Hour))
	for _, id := range []string{"over", "never"} {
		if err := i.RunNow(t.Context(), "default", id, aTest); !errors.Is(err, inspect.ErrNotWaiting) {
			t.Errorf("RunNow(%s) = %v, want %v", id, err, inspect.ErrNotWaiting)
		}
	}
	changes, err := i.Audit(t.Context(), 0, 1)
	if err != nil || len(changes) != 1 || changes[0].Failed == "" {
		t.Errorf("the audit list has %+v, %v, want a change that failed", changes, err)
	}
}

// A handler that tells what its work came to is right, too, when an operator lets it run: nothing was
// charged, and nothing is corrected.
func TestRunNowHasNothingToAdjust(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, own := phone("sms", time.Hour), r.limiter("own", throttle.Sliding(1, time.Hour))
	var ran runs
	pool, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		ran.note(ctx, task)
		if err := own.Acquire(ctx, "all", 1); err != nil { // a grant of its own, which is not what the policy charged
			return err
		}
		return worker.Adjust(ctx, 1)
	}), worker.Config{Policies: []queue.Policy{p}})
	r.take(pool.Limiter("sms"), "+1")
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
	r.eventually("a is deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
	if err := r.inspector(p).RunNow(t.Context(), "default", "a", aTest); err != nil {
		t.Fatal(err)
	}
	ran.ran(t, 1)
	r.eventually("a is done", func() bool {
		_, err := asynq.NewInspectorFromRedisClient(r.rdb).GetTaskInfo("default", "a")
		return errors.Is(err, asynq.ErrTaskNotFound)
	})
}

// A Retry-After of a run that an operator forced closes no key, for the policy has charged none: it is an ordinary
// failure, also when the handler has a grant of its own.
func TestRunNowHasNoKeyToClose(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, own := phone("sms", time.Hour), r.limiter("own", throttle.Sliding(2, time.Hour))
	pool, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		if err := own.Acquire(ctx, "all", 1); err != nil {
			return err
		}
		return worker.RetryAfter(errors.New("the provider is busy"), 30*time.Minute)
	}), worker.Config{Policies: []queue.Policy{p}})
	r.take(pool.Limiter("sms"), "+1")
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(5))
	r.eventually("a is deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
	if err := r.inspector(p).RunNow(t.Context(), "default", "a", aTest); err != nil {
		t.Fatal(err)
	}
	r.eventually("it counts as a failure", func() bool {
		info, err := asynq.NewInspectorFromRedisClient(r.rdb).GetTaskInfo("default", "a")
		return err == nil && info.Retried == 1 && info.State == asynq.TaskStateRetry
	})
	if d, err := own.TryAcquire(t.Context(), "all", 1); err != nil || !d.Granted {
		t.Errorf("TryAcquire = %v, %v, want the second permit: the key is not closed", d, err)
	}
}
