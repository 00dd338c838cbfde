// Package queuescripts calls the scripts about the tasks of a queue, and builds the keys of queues, asynq's own included.
//
//	key.go      the names of the keys of a queue, and of those that stand beside all queues
//	booking.go  what is stored beside a task that waits
//	enqueue.go  new tasks
//	queue.go    fetch, defer, due, wake, re-time, plan anew, and what else happens to waiting tasks
//	task.go     a task as it is
//	count.go    counts of a queue, and which queues there are
package queuescripts
