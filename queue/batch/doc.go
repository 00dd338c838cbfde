// Package batch turns the elements of a source, of any length, into tasks of one type on
// one queue, at the pace of their limits. Each element becomes a task once, and never more
// than a window of them is enqueued and unfinished.
//
// A [Spec] describes a batch. [Control] starts, watches, pauses, changes and cancels
// batches from any process. A [Feeder] feeds them from a [Source]. When several processes
// have the same source, one of them feeds a batch at a time. All state is in Redis, so
// nothing is lost with a process. See docs/batches.md.
//
// The parts, in the order in which an element passes through them:
//
//	Source          yields elements, in a goroutine of its own
//	   |
//	input           reads ahead, and again after a failure; its cursor knows which
//	   |            elements are settled
//	   |
//	keyQueues       hold what may not go yet, in order by its narrowest key;
//	   |            blockedKeys are asked again while a rule refuses them
//	   |
//	feeding         the loop of one batch: lease, window, resume
//	   |   ^
//	   |   +------- pacer: how many may go now by the pace of the batch
//	   |   +------- backpressure: how many more may be booked while pools are behind
//	   |   +------- rest: how long to do nothing when it is far ahead
//	   v
//	enqueue         books the items together, then enqueues and settles them
//	   |            in one script that checks the lease
//	   v
//	the queue in Redis, whose pools run the tasks
//	   ^
//	maintain        counts what ended unseen, brings back what pools deferred for a pause,
//	                and takes out what a cancelled batch has left; tasks.go has how
package batch
