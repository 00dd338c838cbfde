// Package queue is the side of Headway that puts tasks in: it says which limits
// a task type needs, finds the keys and the costs of a task, and enqueues.
//
// A [Policy] lists the rules of a task type: each names a limit and says how a
// task's key is found, or names a gate. A [Client] enqueues tasks on asynq and refuses at once what no pool could ever
// run:
//
//	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{{
//		Type: "sms:send",
//		Rules: []queue.Rule{
//			{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
//			{Name: "provider", Limit: throttle.GCRA(100, time.Second, 20), Constant: "acme"},
//		},
//	}}})
//	...
//	task := queue.NewTask("sms:send", payload, asynq.MaxRetry(3))
//	info, err := client.Enqueue(ctx, task)
//
// # Booking at enqueue
//
// [Client.Book] takes a place in the line of the task's key before it enqueues the task,
// and tells its instant; a worker then takes the task once, and what would come too late
// is refused. [Client.BookMany] and [Client.EnqueueMany] take many tasks with few calls
// to Redis.
//
// # Policy files
//
// [ReadPolicies] and [ReadPolicyFiles] read the same policies from YAML, with
// every fault and its line at once, so that limits can be changed without a
// build.
//
// # Batches and schedules
//
// Package queue/batch feeds the elements of a source to a queue at the pace of their
// limits. Package queue/schedule enqueues tasks at the ticks of cron specs.
//
// # What happens to asynq's options
//
// They mean what they mean in asynq, on a [Task] and at the enqueueing call. asynq alters
// some of them without a word: a time-out of 500 ms becomes 30 min, one of 1.5 s becomes
// 1 s, and an option of a foreign type is dropped. Each of those is an [OptionError] here.
// Some things are not refused, because asynq documents or needs them: a time-out of 0 is
// asynq's default of 30 min unless there is a deadline; a deadline and a later start
// (ProcessAt, ProcessIn) count in whole seconds, rounded down; and a task with both a
// group and a later start is not grouped.
//
// # Personal data
//
// Keys and payloads are phone numbers and texts. No error text of this package
// contains a payload, a key, a cost, a zone or a part of one; they name the task
// type, the rule and the JSON path instead. The cause of a failed [KeyFunc],
// [CostFunc] or [ZoneFunc] is reachable with errors.As, and its text is not ours.
//
// # Where to read
//
//	task.go       Task; option.go what happens to its options
//	policy.go     Policy and Rule; validate.go what is refused, with all faults at once
//	demand.go     what a task needs by its policy: keys, costs, zones; jsonpath.go and zone.go find them
//	file*.go      policies in a YAML file, and which changes of it can be followed
//	client.go     Client, Enqueue; many.go Book, and both for many tasks
//	backend.go    what batches and schedules need of this package
//	errors.go     the errors
//
// This package does not decide whether a task may run now: package throttle
// does, when a pool asks, and when a client books. It does not hold back what a plain asynq client
// enqueues; the pool refuses that with the same [DemandError], and a cost above
// the limit in force with a throttle.ExceedsLimitError.
package queue
