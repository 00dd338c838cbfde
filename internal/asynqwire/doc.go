// Package asynqwire holds what Headway knows of asynq's inside: the scripts by which
// asynq enqueues, fetches and finishes a task, the fields of its messages, and the lines
// of its log that matter to us. Package queuescripts knows asynq's keys, too. asynq publishes none of it, so all of it is pinned to one
// [Version], and the golden tests here run the real asynq and say what another version
// has changed.
//
// [Recognise] tells a worker's client what a script call of asynq does to a task.
// [DecodeMessage] reads the message that such a call carries. [Recorder] has asynq make
// a message without enqueueing it. [NewLogger] gives asynq's log lines to zap, and
// [Collapse] to a logger of asynq's own kind.
package asynqwire
