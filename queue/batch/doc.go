// Package batch turns the elements of a source, of any length, into tasks of one type on
// one queue, at the pace of their limits: each once, and never more than a window ahead.
//
// A [Spec] describes a batch. [Control] starts, watches, pauses, changes and cancels
// batches from any process. A [Feeder] feeds them from a [Source]; of several processes
// with the same source one feeds a batch at a time. All of it is in Redis: nothing is
// lost with a process. See docs/batches.md.
package batch
