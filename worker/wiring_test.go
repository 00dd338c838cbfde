package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/worker"
)

// A middleware around the adapter's handler that does not return its error would have asynq
// delete, archive or fail a task that never ran.
func TestDeferredTaskStaysDeferredWhateverAMiddlewareAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer error
		opts   []asynq.Option
	}{
		"done":                  {nil, nil},
		"done with a retention": {nil, []asynq.Option{asynq.Retention(time.Hour)}},
		"done with a lock":      {nil, []asynq.Option{asynq.Unique(time.Hour)}},
		"revoked":               {asynq.RevokeTask, nil},
		"failed":                {errors.New("something"), nil},
		"failed for good":       {asynq.SkipRetry, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, seen := newRig(t), &runs{}
			a := r.adapter(policies(phone("sms", 500*ms)))
			cfg := a.Server(asynq.Config{Concurrency: 4, DelayedTaskCheckInterval: 100 * ms})
			if err := a.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			inner := a.Handler(seen.handler())
			r.serve(a.Client(), cfg, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				if err := inner.ProcessTask(ctx, task); err != nil {
					return tc.answer // it meant to log the error
				}
				return nil
			}))
			for i := range 3 {
				// payloads differ for the lock, phones do not
				r.enqueuePlain("sms", fmt.Sprint(i), fmt.Sprintf(`{"to":"+1","n":%d}`, i), append(tc.opts, asynq.MaxRetry(0))...)
			}
			seen.ran(t, 3)
			r.eventually("all are through", func() bool { return r.queueInfo().Processed == 3 })
			r.wantQueue(3, 0, 0)
			if s := a.Stats(); s.Hidden < 2 || s.Hidden != s.Deferred {
				t.Errorf("%d deferrals, %d of them hidden, want 2 or more and all", s.Deferred, s.Hidden)
			}
			if n := r.logs.FilterMessageSnippet("a middleware around the adapter's handler").Len(); n != 1 {
				t.Errorf("%d lines about the middleware, want 1", n)
			}
		})
	}
}

// A task whose server lacks a part of the adapter fails, and its error says what to add.
func TestIncompleteAdapterFailsItsFirstTask(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lacks string
		serve func(*rig, *worker.Adapter, asynq.Handler)
	}{
		"Start": {"call Adapter.Start", func(r *rig, a *worker.Adapter, h asynq.Handler) {
			r.serve(a.Client(), a.Server(asynq.Config{Concurrency: 1}), a.Handler(h))
		}},
		"Client": {"Adapter.Client as its Redis client", func(r *rig, a *worker.Adapter, h asynq.Handler) {
			cfg := a.Server(asynq.Config{Concurrency: 1})
			if err := a.Start(r.Context()); err != nil {
				r.Fatal(err)
			}
			cfg.TaskCheckInterval = 10 * ms
			r.serve(r.rdb, cfg, a.Handler(h))
		}},
		"Server": {"Adapter.Server", func(r *rig, a *worker.Adapter, h asynq.Handler) {
			if err := a.Start(r.Context()); err != nil {
				r.Fatal(err)
			}
			r.serve(a.Client(), asynq.Config{Concurrency: 1, TaskCheckInterval: 10 * ms, LogLevel: asynq.FatalLevel}, a.Handler(h))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, seen := newRig(t), &runs{}
			tc.serve(r, r.adapter(policies(phone("sms", time.Minute))), seen.handler())
			r.enqueuePlain("sms", "a", to("+1"), asynq.MaxRetry(1))
			r.eventually("a failure", func() bool { info := r.info("a"); return info != nil && info.LastErr != "" })
			if got := r.info("a").LastErr; !strings.Contains(got, tc.lacks) || strings.Count(got, "without it") != 1 {
				t.Errorf("the task failed with %q, want %q alone", got, tc.lacks)
			}
			if r.logs.FilterMessageSnippet("the adapter around its handler is not complete").Len() != 1 {
				t.Error("the log has no line about it")
			}
			if len(seen.all()) > 0 {
				t.Error("the handler ran")
			}
		})
	}
}

// A server whose handler is not the adapter's runs its tasks without limits. That can't be
// seen at start, so it is told with the first task of each type.
func TestServerWithoutTheAdaptersHandlerIsTold(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{"done": nil, "failed": errors.New("something"), "failed for good": asynq.SkipRetry} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			a := r.adapter(policies(phone("sms", time.Minute)))
			cfg := a.Server(asynq.Config{Concurrency: 1})
			if err := a.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.serve(a.Client(), cfg, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return answer }))
			for i := range 2 {
				r.enqueuePlain("sms", fmt.Sprint(i), to("+1"))
			}
			r.eventually("both are counted", func() bool { return a.Stats().Bypassed >= 2 })
			if n := r.logs.FilterMessageSnippet("Wrap the handler of the server with Adapter.Handler").Len(); n != 1 {
				t.Errorf("%d lines about it, want 1", n)
			}
		})
	}
}

// A middleware around the adapter's handler that calls it again when it fails does not run
// the user's handler a second time under one permit, and is told what to do instead.
func TestSecondCallOfOneAttemptIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.adapter(policies(phone("sms", time.Minute)))
	cfg := a.Server(asynq.Config{Concurrency: 1})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var ran atomic.Int64
	h := a.Handler(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		ran.Add(1)
		return errors.New("the gateway is away")
	}))
	r.serve(a.Client(), cfg, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if err := h.ProcessTask(ctx, task); err == nil {
			return nil
		}
		return h.ProcessTask(ctx, task)
	}))
	r.enqueuePlain("sms", "a", to("+1"), asynq.MaxRetry(1))
	r.eventually("a failure", func() bool { info := r.info("a"); return info != nil && info.LastErr != "" })
	if got := r.info("a").LastErr; !strings.Contains(got, "called it again in one attempt: let it return the error") {
		t.Errorf("the task failed with %q, want what to do about the middleware", got)
	}
	if n := ran.Load(); n != 1 {
		t.Errorf("the handler ran %d times under one permit, want once", n)
	}
}

// asynq ends a task whose deadline has passed without calling any handler.
func TestTaskThatAsynqEndsIsNoServerWithoutHandler(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	a := r.adapter(policies(phone("sms", ms)))
	cfg := a.Server(asynq.Config{Concurrency: 1})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.enqueuePlain("sms", "late", to("+1"), asynq.Deadline(time.Now().Add(-time.Minute)))
	r.enqueuePlain("sms", "a", to("+1"))
	r.serve(a.Client(), cfg, a.Handler(seen.handler()))
	r.eventually("one ended by asynq", func() bool { info := r.info("late"); return info != nil && info.LastErr != "" })
	seen.ran(t, 1)
	r.eventually("the other is done", func() bool { return r.info("a") == nil })
	if s := a.Stats(); s.Bypassed != 0 {
		t.Errorf("%d tasks count as run without limits, want none", s.Bypassed)
	}
}

// mux.Use(a.Handler) and a.Handler(mux) together ask the limits once.
func TestHandlerAroundAHandlerTwiceAsksTheLimitsOnce(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	a := r.adapter(policies(phone("sms", time.Minute)))
	cfg := a.Server(asynq.Config{Concurrency: 1})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	mux := asynq.NewServeMux()
	mux.Use(a.Handler)
	mux.Handle("sms", seen.handler())
	r.serve(a.Client(), cfg, a.Handler(mux))
	for i := range 2 {
		r.enqueuePlain("sms", fmt.Sprint(i), to(fmt.Sprint("+", i)))
	}
	seen.ran(t, 2)
	if s := a.Stats(); s.Granted != 2 || s.Refused != 0 {
		t.Errorf("%d grants and %d refusals of two tasks, want 2 and 0", s.Granted, s.Refused)
	}
	if n := r.logs.FilterMessageSnippet("around a handler twice").Len(); n != 1 {
		t.Errorf("%d lines about it, want 1", n)
	}
}

// A server that is not given what Adapter.Server returned keeps the limits. Its user's functions
// see throttles, and the log says why, once.
func TestUnusedServerConfigurationIsTold(t *testing.T) {
	t.Parallel()
	for name, unused := range map[string]bool{"unused": true, "used": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, seen := newRig(t), &runs{}
			a := r.adapter(policies(phone("sms", 300*ms)))
			base := asynq.Config{Concurrency: 4, DelayedTaskCheckInterval: 100 * ms, TaskCheckInterval: 10 * ms, LogLevel: asynq.FatalLevel}
			cfg := a.Server(base)
			if unused {
				cfg = base
			}
			if err := a.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.serve(a.Client(), cfg, a.Handler(seen.handler()))
			for i := range 4 {
				r.enqueuePlain("sms", fmt.Sprint(i), to("+1"), asynq.MaxRetry(5))
			}
			seen.ran(t, 4)
			want := 0
			if unused {
				want = 1
			}
			if n := r.logs.FilterMessageSnippet("does not have the configuration that Adapter.Server returned").Len(); n != want {
				t.Errorf("%d lines about it, want %d", n, want)
			}
			r.wantGaps(seen, 300*ms)
		})
	}
}
