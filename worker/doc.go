// Package worker runs asynq tasks under limits: a task that may not run yet
// gives its worker slot back and is woken shortly before the instant that Redis promised it.
//
//	pool, err := worker.New(rdb, mux, worker.Config{
//		Asynq:    asynq.Config{Concurrency: 20},
//		Policies: []queue.Policy{{Type: "sms:send", Rules: []queue.Rule{{Name: "sms", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")}}}},
//	})
//	...
//	err = pool.Run(ctx)
//
// # The life of a task
//
//	fetch -> admission -+-> granted -> wait the rest (InlineWait) -> handler -> done, retry, archive
//	                    +-> booked  -> deferred: asynq's retry set + our due index -> waker -> front of pending
//	                    +-> never   -> archived with the reason (no key, cost above the limit, too late)
//
// A [Pool] owns one or several asynq servers in this process. Beneath it is the
// [Adapter], which works for a plain asynq.Server too: it wraps the Redis
// client that asynq is given. When asynq writes that a throttled task has failed, that client
// writes a deferral instead. So no retry is counted, no error handler called, nothing archived, no statistic
// changed, and the last real error of the task stays visible.
//
// # What it promises
//
// A handler runs only after its permits were granted, and within moments of the
// grant: a process that was stopped in between acquires again. When Redis is
// away nothing is granted, a task that finished meanwhile is not run again by
// this process, and work goes on by itself afterwards. A pool whose clock is
// more than 5 s off Redis' refuses to start. When the clock is set later, the
// leases and scores that asynq takes from it go on as if it had not been.
//
// The pool does not make handlers exactly-once: a process that dies while its
// handler runs leaves a task that asynq delivers again after 60 to 120 s, and
// that spends permits again.
package worker

// The parts of an adapter, and who calls whom:
//
//	a task is fetched      asynq.Server -> client -> fetcher -> Redis; with nothing to do it waits in idleServers
//	a task runs            asynq.Server -> attempt: admission -> handler -> outcome
//	a task is deferred     attempt -> deferrals; asynq.Server -> client -> due index in Redis
//	a task is woken        waker (refreshFilter says what to check first) -> pending list in Redis -> fetcher -> idleServers
//	a task may come early  attempt, waker, lateGiveBacks -> promotions -> waker
//	a limit changes        limitWatch -> waker
//	a client books a task  subscriber -> waker
//	a grant is not used, or a lease is released    attempt -> lateGiveBacks, when Redis does not answer at once
//	a batch is controlled  attempt -> batches; a task of it ends: client -> batchCounts
//	a task is deleted      sweeper, or waker at its instant -> the places of the task are given up -> promotions
//	a task is finished     client -> finishedTasks, when Redis does not answer before asynq's lease ends
//	a deferral is not written   unwrittenDeferrals writes it, or finds that asynq archived the task
//	a server changes       serverWatch, every 3 s: a new process, a clock that was set -> localClock
//	a policy file changes  policyFiles
//	once a minute          upkeep compares clocks, and forgets what is old
//
// All parts share core: Redis, the configuration, the limiters, the counters and the log.
// Each part has its state to itself:
//
//	adapter.go       Adapter makes the parts, starts and ends them; its hooks in asynq's configuration
//	config.go        Config
//	pool.go          Pool is an adapter and its servers; what Run does at SIGTERM, SIGINT and SIGTSTP (signals_*.go)
//	core.go          core, load
//	client.go        client, finishPipeline
//	fetch.go         fetcher, idleServers, and how the client fetches
//	admission.go     Adapter.Handler, and attempt until its handler has run
//	attempt.go       attempt as the host of its handler: ask, wait, hold, defer, give back
//	outcome.go       attempt after its handler: correct the charge, Retry-After
//	policyfiles.go   follows policy files
//	deferral.go      deferral, deferrals, unwrittenDeferrals
//	finished.go      finishedTasks: ends that could not be written; doneRun
//	batch.go         batches, batchCounts
//	waker.go         waker wakes what is due, in order, as workers are free; lead
//	refreshfilter.go refreshFilter: which bookings are asked about before their tasks are woken
//	replan.go        limitWatch, and what the waker does when a limit has changed
//	subscriber.go    subscriber
//	promotions.go    promotions, and lateGiveBacks: what is given back again until Redis takes it
//	upkeep.go        upkeep, serverWatch, localClock, sweeper, and the sign of life of the pool
//	unlimited.go     Unlimited: what becomes of a task whose type has no policy; typeWatch
//	stats.go         Stats, and the counters behind them
//	ttlmap.go        ttlMap, of which Adapter.inFlight and Adapter.recentlyDone are two
