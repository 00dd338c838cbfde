package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// A policy for sms:sned once let all of sms:send through without a word.
func TestMisspeltPolicyIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := rigOn(t, nil, rdb)
		ran := &runs{}
		mux := asynq.NewServeMux()
		mux.Handle("sms:send", ran.handler())
		misspelt := phone("sms", time.Minute)
		misspelt.Type = "sms:sned"
		pool, _ := r.start(mux, policies(misspelt))
		r.wantWarning("policies are for task types that the mux has no handler for", `"types":["sms:sned"]`)

		for i := range 3 {
			r.enqueue("sms:send", fmt.Sprint("m", i), to("A"))
		}
		ran.ran(t, 3)
		r.wantWarning("a task type has no policy: its tasks run without limits", `"type":"sms:send","policies":["sms:sned"]`)
		if s := pool.Stats(); s.Unlimited != 3 {
			t.Errorf("%d tasks are counted as unlimited, want 3", s.Unlimited)
		}
		pool.Adapter().StartedEarlier(15 * time.Minute)
		time.Sleep(time.Minute + time.Second) // of the bubble, and not the very instant at which the pool looks each minute
		r.wantWarning("no task came for these policies", `"types":["sms:sned"]`)
	})
}

// wantWarning wants one warning that begins with text and has these fields.
func (r *rig) wantWarning(text, fields string) {
	r.Helper()
	var got []string
	for _, e := range r.logs.FilterLevelExact(zap.WarnLevel).All() {
		line, err := zapcore.NewJSONEncoder(zapcore.EncoderConfig{}).EncodeEntry(e.Entry, e.Context)
		if err != nil {
			r.Fatal(err)
		}
		if strings.HasPrefix(e.Message, text) {
			got = append(got, line.String())
		}
	}
	if len(got) != 1 || !strings.Contains(got[0], fields) {
		r.Errorf("warnings %q: %q, want one with %s", text, got, fields)
	}
}

func TestUnlimitedModes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode     worker.Unlimited
		warnings int
		runs     bool
	}{
		{worker.UnlimitedWarn, 1, true},
		{worker.UnlimitedAllow, 0, true},
		{worker.UnlimitedRefuse, 1, false},
	} {
		t.Run(fmt.Sprint(tt.mode), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				r := rigOn(t, nil, rdb)
				var failed []error
				ran := &runs{}
				cfg := policies(phone("sms", time.Minute))
				cfg.Unlimited, cfg.Asynq.ErrorHandler = tt.mode, asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { failed = append(failed, err) })
				told := make(chan event.Unlimited, 10)
				cfg.Observer.Unlimited = func(_ context.Context, e event.Unlimited) { told <- e }
				pool, stop := r.start(ran.handler(), cfg)
				r.enqueue("sms", "limited", to("A"))
				r.enqueue("mail", "unlimited", to("A"), asynq.MaxRetry(3))
				ran.ran(t, 1)
				r.eventually("the task has run or failed", func() bool { return ran.count("unlimited") == 1 || r.is("unlimited", asynq.TaskStateRetry) })
				stop()

				want := event.Unlimited{Task: event.Task{Queue: "default", Type: "mail", ID: "unlimited"}, Fails: !tt.runs}
				if e := <-told; e != want || len(told) > 0 {
					t.Errorf("told %+v and %d more, want %+v", e, len(told), want)
				}
				if (ran.count("unlimited") == 1) != tt.runs {
					t.Errorf("the task ran %d times", ran.count("unlimited"))
				}
				if n := r.logs.FilterLevelExact(zap.WarnLevel).FilterMessageSnippet("a task type has no policy").Len(); n != tt.warnings {
					t.Errorf("%d warnings, want %d", n, tt.warnings)
				}
				if s := pool.Stats(); s.Unlimited != 1 || s.Granted != 1 {
					t.Errorf("%d unlimited and %d granted, want 1 of each", s.Unlimited, s.Granted)
				}
				if tt.runs {
					return
				}
				var refused *worker.NoPolicyError
				if len(failed) != 1 || !errors.As(failed[0], &refused) || refused.Type != "mail" || !errors.Is(failed[0], worker.ErrNoPolicy) {
					t.Errorf("the error handler got %v, want a NoPolicyError about mail", failed)
				}
				if info := r.info("unlimited"); info.Retried != 1 || !strings.Contains(info.LastErr, `task type "mail" has no policy`) {
					t.Errorf("asynq has %d retries and %q, want a failure that says why", info.Retried, info.LastErr)
				}
			})
		})
	}
}

// What has no handler is asynq's to refuse, and a pool without any policy says so once.
func TestUnlimitedSaysNothingOfTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := rigOn(t, nil, rdb)
		mux, ran := asynq.NewServeMux(), &runs{}
		mux.Handle("sms", ran.handler())
		pool := started(t, rdb, mux, worker.Config{Servers: 1, Logger: r.log})
		r.enqueue("sms", "a", to("A"))
		r.enqueue("mail", "b", to("A"))
		ran.ran(t, 1)
		r.eventually("asynq fails what has no handler", func() bool { return r.is("b", asynq.TaskStateRetry) })
		if s := pool.Stats(); s.Unlimited != 1 {
			t.Errorf("%d tasks are counted as unlimited, want 1", s.Unlimited)
		}
		r.wantWarning("there are no policies: all tasks run without limits", "")
		if n := r.logs.FilterMessageSnippet("a task type has no policy").Len(); n != 0 {
			t.Errorf("%d lines about types, want none", n)
		}
	})
}

func TestUnlimitedNamesAtMostAHundredTypes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		core, logs := observer.New(zap.WarnLevel)
		ran := &runs{}
		started(t, rdb, ran.handler(), worker.Config{Servers: 1, Logger: zap.New(core), Policies: []queue.Policy{phone("sms", time.Minute)}})
		for i := range 110 {
			enqueue(t, rdb, queue.NewTask(fmt.Sprintf("mail:%d", i), nil))
		}
		ran.ran(t, 110)
		if named, more := logs.FilterMessageSnippet("a task type has no policy").Len(), logs.FilterMessageSnippet("more task types").Len(); named != 100 || more != 1 {
			t.Errorf("%d types are named, and %d lines say that there are more, want 100 and 1", named, more)
		}
	})
}

func TestUnlimitedIsValidated(t *testing.T) {
	t.Parallel()
	for mode, text := range map[worker.Unlimited]string{
		-1:                     "Unlimited is -1, want UnlimitedWarn, UnlimitedAllow or UnlimitedRefuse",
		3:                      "Unlimited is 3, want UnlimitedWarn, UnlimitedAllow or UnlimitedRefuse",
		worker.UnlimitedRefuse: "Unlimited is UnlimitedRefuse and there are no Policies: each task would be refused",
	} {
		err := worker.Config{Unlimited: mode}.Validate()
		if !errors.Is(err, worker.ErrInvalidConfig) || !strings.HasSuffix(err.Error(), text) {
			t.Errorf("Unlimited %d: %v, want %q", mode, err, text)
		}
	}
}
