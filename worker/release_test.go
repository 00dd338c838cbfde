package worker_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// badError is an error whose text can't be read when it is nil.
type badError struct{ text string }

func (e *badError) Error() string { return e.text }

// onceBad panics when the first task is granted.
var onceBad = event.Observer{Granted: func(_ context.Context, e event.Granted) {
	if e.Task.ID == "bad" {
		panic("an observer")
	}
}}

// The slot of a `concurrent` limit is free for the next task, whatever the handler of the last
// one did. While it is not, its lease is renewed for the life of the process.
func TestSlotIsReleasedWhateverTheHandlerDoes(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func() error{
		"returns a typed nil error": func() error { var e *badError; return e },
		"panics":                    func() error { panic("a handler") },
		"ends its goroutine":        func() error { runtime.Goexit(); return nil },
		"has an observer that panics": func() error {
			t.Error("the handler runs although its observer panicked")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, seen := newRig(t), &runs{}
			cfg := policies(queue.Policy{Type: "job", Rules: []queue.Rule{{Name: "slots", Limit: throttle.Concurrent(1, time.Hour), Constant: "all"}}})
			if name == "has an observer that panics" {
				cfg.Observer = onceBad
			}
			cfg.Asynq.ShutdownTimeout = 100 * ms // asynq waits for a goroutine that has ended
			r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				if id, _ := asynq.GetTaskID(ctx); id == "bad" {
					return bad()
				}
				seen.note(ctx, task)
				return nil
			}), cfg)
			r.enqueue("job", "bad", "", asynq.MaxRetry(0))
			if name != "ends its goroutine" {
				r.eventually("the bad one has failed", func() bool { return r.is("bad", asynq.TaskStateArchived) })
			} else {
				r.eventually("the bad one runs", func() bool { return r.is("bad", asynq.TaskStateActive) })
			}
			r.enqueue("job", "good", "")
			seen.ran(t, 1)
		})
	}
}
