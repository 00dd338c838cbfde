package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

var errBusy = errors.New("busy")

// A provider puts a task off beyond its deadline: it fails at once, for good, and
// its key is closed all the same.
func TestPostponedBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, _ := r.start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		return worker.RetryAfter(errBusy, time.Hour)
	}), policies(phone("sms", ms)))
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(5), asynq.Deadline(time.Now().Add(time.Minute)))
	r.eventually("archived", func() bool { return r.is("a", asynq.TaskStateArchived) })
	wantClosed(t, p.Limiter("sms"))
	if n := p.Stats().Postponed; n != 0 {
		t.Errorf("Postponed = %d, want 0", n)
	}
	wantNobody(t, r, "a")
}

// In shadow mode it is a failure like any other, which asynq tries again, and it is counted.
// A Retry-After that is not too late defers its task, and holds up no other of its key.
func TestPostponedInShadow(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	cfg := policies(phone("sms", ms))
	cfg.Throttle.Shadow = true
	cfg.Asynq.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	noted := seen.handler()
	p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		_ = noted.ProcessTask(ctx, task)
		if id, _ := asynq.GetTaskID(ctx); id != "other" && seen.count(id) == 1 {
			return worker.RetryAfter(errBusy, time.Hour)
		}
		return nil
	}), cfg)
	r.enqueue("sms", "late", to("+1"), asynq.MaxRetry(5), asynq.Deadline(time.Now().Add(time.Minute)))
	r.eventually("late ran again", func() bool { return seen.count("late") == 2 })
	r.enqueue("sms", "in time", to("+1"), asynq.MaxRetry(5))
	r.eventually("in time is deferred", func() bool { return r.is("in time", asynq.TaskStateRetry) })
	r.enqueue("sms", "other", to("+1"))
	r.eventually("other ran", func() bool { return seen.count("other") == 1 })
	s := p.Stats()
	if s.Refused != 0 || s.Postponed != 1 || s.Shadowed[worker.ShadowedTooLate] != 2 {
		t.Errorf("%d refused, %d postponed, shadowed %v; want none, 1, and 2 too late: its return and, as its key is closed, its next start", s.Refused, s.Postponed, s.Shadowed)
	}
	if n := r.queueInfo().Archived; n != 0 {
		t.Errorf("%d archived, want none", n)
	}
}

// A handler returns a Retry-After when asynq has given its attempt up already: its key is
// closed, and no booking is left that would hold others up.
func TestPostponedAfterTheAttemptWasGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gaveUp := make(chan struct{})
	p, _ := r.start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		<-gaveUp
		return worker.RetryAfter(errBusy, time.Hour)
	}), policies(phone("sms", ms)))
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0), asynq.Timeout(time.Second))
	r.eventually("archived", func() bool { return r.is("a", asynq.TaskStateArchived) })
	close(gaveUp)
	wantClosed(t, p.Limiter("sms"))
	wantNobody(t, r, "a")
}

// A Retry-After that names a rule which its task does not have counts as a failure, and is told.
func TestRetryAfterOfARuleThatIsNotThePolicysIsTold(t *testing.T) {
	t.Parallel()
	for typ, text := range map[string]string{"sms": "names a rule by which its task holds no grant", "mail": "a task type without a policy"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
				return &worker.RetryAfterError{Err: errBusy, After: time.Hour, Rule: "provider"}
			}), policies(phone("sms", ms)))
			for _, id := range []string{"a", "b"} {
				r.enqueuePlain(typ, id, to("+1"), asynq.MaxRetry(0))
			}
			r.eventually("both failed", func() bool { return r.queueInfo().Archived == 2 })
			lines := r.logs.FilterMessageSnippet(text).All()
			if len(lines) != 1 || lines[0].ContextMap()["rule"] != "provider" || lines[0].ContextMap()["type"] != typ {
				t.Errorf("the log has %v about it, want one line with the type and the rule", lines)
			}
		})
	}
}

// wantClosed waits until a key is closed.
func wantClosed(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	eventually(t, "closed", func() bool {
		d, err := l.TryAcquire(t.Context(), "+1", 1)
		return err == nil && !d.Granted && d.At.Sub(d.Now) > time.Minute
	})
}

// wantNobody checks that a task has no place in the line of its key.
func wantNobody(t *testing.T, r *rig, id string) {
	t.Helper()
	line, err := r.rdb.ZRangeArgs(t.Context(), redis.ZRangeArgs{Key: "hw:{+1}:sms:line", ByScore: true, Start: "-inf", Stop: "(2251799813685248"}).Result()
	if err != nil || len(line) > 0 {
		t.Errorf("%q stand in line, %v, want nobody: %s has ended", line, err, id)
	}
}

// A handler that panics has failed.
func TestChargeSuccessAndAPanic(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	policy := phone("sms", time.Hour)
	policy.Charge = queue.ChargeSuccess
	p, _ := r.start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { panic("a fault") }), policies(policy))
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(1))
	r.eventually("back in line", func() bool { return r.is("a", asynq.TaskStateRetry) })
	if n, err := p.Limiter("sms").Available(t.Context(), "+1"); err != nil || n != 1 {
		t.Errorf("%d permits left, %v, want 1", n, err)
	}
}
