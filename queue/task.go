package queue

import (
	"bytes"
	"maps"
	"slices"

	"github.com/hibiken/asynq"
)

// Task is a task to be enqueued: a type, a payload, headers and asynq's options.
// It differs from an *asynq.Task in two ways: its options can be read, so that
// [Client.Enqueue] can check them, and it can be enqueued by many goroutines at
// once. asynq appends the options of an enqueueing call to the slice inside its
// own task, where two calls can overwrite each other's.
//
// A Task never changes after it was made, and is safe for concurrent use. The
// zero Task has no type and is refused by asynq.
type Task struct {
	typ     string
	payload []byte
	headers map[string]string
	opts    []asynq.Option
}

// NewTask returns a task. It copies payload and opts. typ must not be blank;
// this and the options are checked when the task is enqueued, as in asynq.
func NewTask(typ string, payload []byte, opts ...asynq.Option) *Task {
	return NewTaskWithHeaders(typ, payload, nil, opts...)
}

// NewTaskWithHeaders is [NewTask] for a task with headers, which are copied too.
func NewTaskWithHeaders(typ string, payload []byte, headers map[string]string, opts ...asynq.Option) *Task {
	return &Task{
		typ:     typ,
		payload: bytes.Clone(payload),
		headers: maps.Clone(headers),
		opts:    slices.Clone(opts),
	}
}

// Type returns the task's type.
func (t *Task) Type() string { return t.typ }

// Payload returns a copy of the payload.
func (t *Task) Payload() []byte { return bytes.Clone(t.payload) }

// Headers returns a copy of the headers, nil if there are none.
func (t *Task) Headers() map[string]string { return maps.Clone(t.headers) }

// Options returns a copy of the options that the task was made with, in their
// order. Where two are of one kind, asynq takes the last.
func (t *Task) Options() []asynq.Option { return slices.Clone(t.opts) }

// with is the task's options and those of a call, which come after them.
func (t *Task) with(opts []asynq.Option) []asynq.Option { return slices.Concat(t.opts, opts) }

// asynqTask builds a task for one enqueueing call, sharing nothing with t: asynq
// appends to the options, and hands the payload out again in its TaskInfo.
func (t *Task) asynqTask() *asynq.Task {
	return asynq.NewTaskWithHeaders(t.typ, t.Payload(), t.headers, t.Options()...)
}
