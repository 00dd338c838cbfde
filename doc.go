// Package headway is throttling for background jobs on asynq and Redis. Headway
// is the distance that one bus keeps behind the one before it: here, the
// distance that one job keeps behind the last job on the same key, such as one
// SMS per phone number per 60 seconds.
//
// The root holds no code. Begin with the package that fits:
//
//	throttle        limits on Redis, for any program
//	queue           tasks that are throttled: their keys, their costs, a client
//	queue/batch     batches that are enqueued at the pace of their limits
//	queue/schedule  cron schedules that any number of processes may run
//	worker          the pool that runs tasks, and defers what may not run yet
//	inspect         what waits and why, and what an operator may do about it
//	event           what happens to tasks, for metrics, traces and logs
//	httplimit       the same limits before an http.Handler
//
// The command cmd/headway is the operator's tool: "headway prove" sends messages through a
// gateway that may fail, and proves that the limits held.
//
// Whole programs are examples/sms-sender, which keeps to limits by phone number, and
// examples/batch-mailer, which sends a nightly batch.
package headway
