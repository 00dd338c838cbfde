// Package worker runs asynq tasks under limits: a task that may not run yet
// gives its worker slot back and is woken at the instant that Redis promised it.
//
//	pool, err := worker.New(rdb, mux, worker.Config{
//		Asynq:    asynq.Config{Concurrency: 20},
//		Policies: []queue.Policy{{Type: "sms:send", Rules: []queue.Rule{{Name: "sms", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")}}}},
//	})
//	...
//	err = pool.Run(ctx)
//
// # The life of a delivery
//
//	dequeue -> admission -+-> granted -> wait the rest (InlineWait) -> handler -> done, retry, archive
//	                      +-> booked  -> deferred: asynq's retry set + our due index -> waker -> head of pending
//	                      +-> never   -> archived with the reason (no key, cost above the limit, too late)
//
// A [Pool] owns one or several asynq servers in this process. Beneath it is the
// [Adapter], which works for a plain asynq.Server too: it wraps the Redis
// client that asynq is given, and there a throttle stops being a failure. No
// retry is counted, no error handler called, nothing archived, no statistic
// changed, and the last real error of the task stays visible.
//
// # What it promises
//
// A handler runs only after its permits were granted, and within moments of the
// grant: a process that was stopped in between acquires again. When Redis is
// away nothing is granted, a task that finished meanwhile is not run again by
// this process, and work goes on by itself afterwards. A pool whose clock is
// more than 5 s off Redis' refuses to start: asynq's leases and scores use the
// local clock.
//
// The pool does not make handlers exactly-once: a process that dies while its
// handler runs leaves a task that asynq delivers again after 60 to 120 s, and
// that pays again.
package worker
