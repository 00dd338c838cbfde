package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// exhausted starts a pool with one permit per window for type sms, whose permit
// for the phone +1 is spent. It returns when.
func (r *rig) exhausted(per time.Duration, h asynq.Handler, base asynq.Config) (*throttle.Limiter, time.Time) {
	r.Helper()
	lim := r.limiter("sms", throttle.Sliding(1, per))
	cfg := policies(phone("sms", per))
	cfg.Asynq = base
	r.start(h, cfg)
	d, err := lim.TryAcquire(r.Context(), "+1", 1) // last, for on a busy machine a pool takes a while to start
	if err != nil || !d.Granted {
		r.Fatalf("TryAcquire = %v, %v", d, err)
	}
	return lim, d.At
}

func TestUniqueStaysUniqueWhileDeferred(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	r.exhausted(3*time.Second, seen.handler(), asynq.Config{})
	r.enqueue("sms", "a", to("+1"), asynq.Unique(time.Second))
	r.eventually("deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
	for len(seen.all()) == 0 {
		if err := r.tryEnqueue("sms", "b", to("+1"), asynq.Unique(time.Second)); !errors.Is(err, asynq.ErrDuplicateTask) {
			if len(seen.all()) > 0 {
				break // a is through
			}
			t.Fatalf("the same task while the first is deferred: %v, want %v", err, asynq.ErrDuplicateTask)
		}
		if info := r.info("a"); info == nil && len(seen.all()) == 0 {
			t.Fatal("the first one is gone")
		}
	}
	r.eventually("done", func() bool { return r.info("a") == nil })
	if r.info("b") == nil {
		if err := r.tryEnqueue("sms", "c", to("+1"), asynq.Unique(time.Second)); err != nil {
			t.Errorf("the same task after the first was done: %v", err)
		}
	}
}

func TestRetentionKeepsWhatRanOnce(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	r.exhausted(500*ms, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		seen.note(ctx, task)
		_, err := task.ResultWriter().Write([]byte("sent"))
		return err
	}), asynq.Config{})
	r.enqueue("sms", "a", to("+1"), asynq.Retention(time.Hour))
	r.eventually("completed", func() bool { return r.is("a", asynq.TaskStateCompleted) })
	never(t, 1200*ms, "a completed task runs again", func() bool { return seen.count("a") != 1 })
	if got := r.info("a"); got.State != asynq.TaskStateCompleted || string(got.Result) != "sent" {
		t.Errorf("%v with result %q, want completed and sent", got.State, got.Result)
	}
}

func TestTimeoutStartsAnewWithEachDelivery(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	r.exhausted(2500*ms, seen.handler(), w.config())
	r.enqueue("sms", "a", to("+1"), asynq.Timeout(time.Second), asynq.MaxRetry(0))
	r.eventually("done", func() bool { return seen.count("a") == 1 && r.info("a") == nil })
	r.wantQueue(1, 0, 0)
	w.want(t, 0, 0)
}

func TestDeadlineBeforeTheBookingIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	lim, _ := r.exhausted(time.Hour, seen.handler(), w.config())
	start := time.Now()
	r.enqueue("sms", "a", to("+1"), asynq.Deadline(start.Add(20*time.Second)), asynq.MaxRetry(5))
	r.eventually("archived", func() bool { return r.is("a", asynq.TaskStateArchived) })
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("refused after %v, want at once", took)
	}
	if got := r.info("a"); got.Retried != 0 || !strings.Contains(got.LastErr, "throttle: rule") || !strings.Contains(got.LastErr, "at the earliest") {
		t.Errorf("archived after %d retries with %q", got.Retried, got.LastErr)
	}
	if n := r.peek(lim, "+1").Waiting; n != 0 {
		t.Errorf("%d wait in the line, want none", n)
	}
	if len(w.handled) != 1 || !errors.Is(w.handled[0], throttle.ErrTooLate) {
		t.Errorf("the ErrorHandler saw %v, want ErrTooLate", w.handled)
	}
	if n := len(seen.all()); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}

func TestDeadlineAfterTheBookingIsNoObstacle(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	r.exhausted(time.Second, seen.handler(), asynq.Config{})
	r.enqueue("sms", "a", to("+1"), asynq.Deadline(time.Now().Add(20*time.Second)), asynq.MaxRetry(0))
	seen.ran(t, 1)
	r.eventually("done", func() bool { return r.info("a") == nil })
	r.wantQueue(1, 0, 0)
}

// A booking at 1.9 s is pushed behind 3.4 s by a permit that came back and was
// taken again, and the deadline is at 2 to 3 s.
func TestBookingMovedBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	const per = 1900 * ms
	lim := r.limiter("sms", throttle.Sliding(1, per))
	d, err := lim.Policy().Redeem(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: "other"})
	if err != nil || !d.Granted {
		t.Fatalf("Redeem = %v, %v", d, err)
	}
	start := time.Now()
	r.start(seen.handler(), policies(phone("sms", per)))
	r.enqueue("sms", "a", to("+1"), asynq.Deadline(start.Truncate(time.Second).Add(3*time.Second)), asynq.MaxRetry(3))
	r.eventually("deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
	r.eventually("1.5s", func() bool { return time.Since(start) > 1500*ms })
	if _, err := throttle.ForWorkers.Return(t.Context(), lim.Policy(), d.Request); err != nil {
		t.Fatal(err)
	}
	if d, err := lim.Policy().Redeem(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: "other"}); err != nil || !d.Granted {
		t.Fatalf("Redeem of the first place = %v, %v", d, err)
	}
	r.eventually("archived", func() bool { return r.is("a", asynq.TaskStateArchived) })
	if got := r.info("a").LastErr; !strings.Contains(got, "at the earliest") {
		t.Errorf("archived with %q, want a text that says too late", got)
	}
	if n := r.peek(lim, "+1").Waiting; n != 0 {
		t.Errorf("%d wait in the line, want none", n)
	}
	if n := len(seen.all()); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}

func TestAggregateOfAGroupIsLimited(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	base := w.config()
	base.GroupGracePeriod, base.GroupMaxSize = time.Second, 2
	base.GroupAggregator = asynq.GroupAggregatorFunc(func(_ string, tasks []*asynq.Task) *asynq.Task {
		if len(tasks) != 2 {
			t.Errorf("%d tasks in the group, want 2", len(tasks))
		}
		return asynq.NewTask("sms", []byte(to("+1")), asynq.MaxRetry(0))
	})
	_, spent := r.exhausted(3*time.Second, seen.handler(), base)
	for _, id := range []string{"a", "b"} {
		r.enqueue("member", id, "{}", asynq.Group("g"))
	}
	seen.ran(t, 1)
	if got := seen.all()[0]; !got.limited || got.grant.At.Sub(spent) < 3*time.Second {
		t.Errorf("the aggregate was granted %v after the last, want 3s", got.grant.At.Sub(spent))
	}
	r.eventually("done", func() bool { return r.queueInfo().ProcessedTotal == 1 })
	never(t, 300*ms, "a second run", func() bool { return len(seen.all()) > 1 })
	r.wantQueue(1, 0, 0)
	w.want(t, 0, 0)
}

func TestTaskWithoutKeyIsArchivedAtOnce(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	cfg := policies(phone("sms", time.Minute))
	cfg.Asynq = w.config()
	p, _ := r.start(seen.handler(), cfg)
	for id, payload := range map[string]string{"a": `{"text":"a secret"}`, "b": `{"to":{"secret":1}}`, "c": "a secret", "d": `{"to":""}`} {
		r.enqueue("sms", id, payload, asynq.MaxRetry(5))
		r.eventually("archived", func() bool { return r.is(id, asynq.TaskStateArchived) })
		got := r.info(id)
		if got.Retried != 0 || !strings.Contains(got.LastErr, `task type "sms", rule "sms"`) || strings.Contains(got.LastErr, "secret") {
			t.Errorf("payload %s: archived after %d retries with %q", payload, got.Retried, got.LastErr)
		}
	}
	if got := p.Stats(); got.Refused != 4 || got.Admissions != 0 || len(seen.all()) != 0 {
		t.Errorf("%d refused, %d admissions, %d runs, want 4, 0, 0", got.Refused, got.Admissions, len(seen.all()))
	}
	if keys := r.rdb.Keys(t.Context(), "hw:{*}:sms*").Val(); len(keys) > 0 {
		t.Errorf("keys are left behind: %v", keys)
	}
	for _, e := range r.logs.All() {
		if strings.Contains(e.Message, "secret") {
			t.Errorf("logged: %s", e.Message)
		}
	}
}

func TestMuxWorksUnchanged(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	var passed []string
	mux := asynq.NewServeMux()
	mux.Use(func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if _, ok := worker.GrantFrom(ctx); ok != (task.Type() == "sms:send") {
				t.Errorf("the mux's middleware of %s has a grant: %v", task.Type(), ok)
			}
			passed = append(passed, task.Type())
			return next.ProcessTask(ctx, task)
		})
	})
	mux.Handle("sms:", seen.handler())
	limits := policies(phone("sms:send", time.Minute), phone("mail", time.Minute))
	limits.Policies[0].Rules[0].Name = "sms"
	limits.Asynq.Concurrency = 1
	p, _ := r.start(mux, limits)

	r.enqueue("mail", "nobody", to("+1"), asynq.MaxRetry(0))
	r.eventually("archived", func() bool { return r.is("nobody", asynq.TaskStateArchived) })
	if got := r.info("nobody").LastErr; !strings.Contains(got, "not found") {
		t.Errorf("a type without a handler: %q, want asynq's not found", got)
	}
	if s := r.peek(p.Limiter("mail"), "+1"); s.Available != 1 || s.Waiting != 0 {
		t.Errorf("a type without a handler: %d available and %d waiting, want 1 and 0", s.Available, s.Waiting)
	}
	r.enqueue("sms:send", "a", to("+1"))
	r.enqueue("sms:send", "b", to("+1"))
	seen.ran(t, 1)
	r.eventually("b deferred", func() bool { return r.is("b", asynq.TaskStateRetry) })
	if !slices.Equal(passed, []string{"mail", "sms:send"}) { // as in asynq, also what nobody handles
		t.Errorf("the mux's middleware saw %v, want mail and one sms:send", passed)
	}
	if s := r.peek(p.Limiter("sms"), "+1"); s.Available != 0 || s.Waiting != 1 {
		t.Errorf("%d available and %d waiting, want 0 and 1", s.Available, s.Waiting)
	}
}
