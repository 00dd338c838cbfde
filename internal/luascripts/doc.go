// Package luascripts holds all scripts that Headway runs in Redis as one library, calls a script, and reads
// its answer. The functions that call scripts are in packages by role, which also build the keys:
//
//	limitscripts     calls about limits: folder limit
//	queuescripts     calls about tasks of a queue, and what else is known of a queue: folder queue
//	batchscripts     calls about batches: folder batch
//	schedulescripts  calls about schedules: queue/tick
//	history          what happened to tasks: folder history
//
// Each file of the folder lua is a module: its first lines require what it needs of
// others (ledger.lua requires a kind when it meets one), its last line returns what it gives. A script is a module that returns a
// function(keys, args). Go functions of the packages above call it, and a test of this package compares its header,
// its body and those Go functions. No two files have the same name: a function of the library is called by it alone. The folders are:
//
//	lib      the clock, numbers, identifiers
//	limit    one decision about limits, ledgers, leases and lines; their keys share the slot of a limit
//	queue    tasks of a queue: deferred, due, woken, enqueued; their keys share the slot of the queue, but that of rules.lua
//	batch    batches of a queue, in the queue's slot
//	history  what happened to tasks, by rule; its keys share a slot of their own
//
// All modules together are one library of Redis Functions. Its name carries a digest of its
// text, so processes of two releases use one server side by side. The first call that finds
// no library loads it, on Cluster on all masters; so does the first call after a FUNCTION
// FLUSH or after a failover to a server without it. Where the server has no functions
// (before Redis 7.0, or by the rights of the user) the same modules run by EVALSHA, each
// script with what it needs. Both ways give the same answers. A function is faster: Redis
// makes the modules of a library once, and those of a script at each call.
//
//	lib/binary     numbers as bytes
//	lib/clock      the one reading of Redis' clock
//	lib/memo       texts that many calls have in common are read once
//	lib/numbers    numbers as text, lives of keys
//	lib/server     since when this server knows of each grant
//	lib/taskid     how a task's id is written in our keys
//
//	limit/acquire     grant, book or refuse, for up to 64 calls
//	limit/adjust      a grant turns out to have cost more, or less
//	limit/cancel      give back a grant, leave the line
//	limit/close       nothing goes on a key until an instant
//	limit/closerule   nothing goes by a rule until an instant
//	limit/counter     the kinds that count: fixed, calendar, step
//	limit/decide      one call of acquire.lua, by all rules of its policy
//	limit/gate        when work may run at all
//	limit/leases      the algorithm of `concurrent n lease d`
//	limit/ledger      what was spent on a key: read, decided on, written
//	limit/line        who waits, in which order, and what they were promised
//	limit/list        reads a portion of a line
//	limit/lookup      reads where one booking stands
//	limit/peek        reads how many permits are left on a key, and which jobs wait there
//	limit/places      how a job gets its places in the lines, and comes back into them
//	limit/refresh     new instants of up to 8 bookings, which are promised to them
//	limit/release     a lease ends before its time
//	limit/renew       a lease goes on
//	limit/reset       forget what was spent
//	limit/rulecall    the rules that one call decides together, and where a booking stands
//	limit/shortcut    calls by one rule on one key on which nobody waits
//	limit/setlimit    the limit of a rule that goes before code
//	limit/sliding     the algorithm of `sliding n/W`, a log of grants
//	limit/tat         the kinds that keep one instant: gcra (bucket, too), smooth (leaky, too), warmup
//	limit/tokens      which ask has which grant, and what its holder corrects
//
//	queue/replan_claim   one pool alone plans a queue anew
//	queue/count          how many tasks of a queue are where
//	queue/defer          active task -> asynq's retry set + due index
//	queue/deferred       what a deferral or an enqueueing writes into asynq's hash of a task
//	queue/due            what is due on a queue, and which of it this pool wakes
//	queue/enqueue        new tasks -> pending, scheduled, or booked
//	queue/fetch          make pending tasks active
//	queue/fetched        which tasks a pool has fetched last
//	queue/forget         drop what a deferral left of a running task
//	queue/get_task       where a task is, and change nothing
//	queue/insert_task    a new task goes into a queue
//	queue/replan_done    the pool that claimed the queue is done
//	queue/requeue        fetched tasks that were not started -> front of pending
//	queue/retime         move due tasks to another instant
//	queue/rules          which rules run with which limits
//	queue/run_now        a task that waits -> front of pending, to run in spite of its rules
//	queue/scan_deferred  what is deferred on a queue, by portions
//	queue/tick           a tick of a schedule, once for all replicas
//	queue/wake           due tasks -> front of pending
//
//	batch/batch       how a batch ends, and its rate
//	batch/batchclaim  one process alone feeds a batch
//	batch/batchcount  tasks of a batch have ended
//	batch/batchdrop   what waits of a cancelled one is deleted
//	batch/batchlist   elements of a batch in order
//	batch/batchpeek   a batch as it is
//	batch/batchset    pause, resume, cancel, another pace
//	batch/batchstart  a batch begins
//	batch/batchsweep  which tasks of a batch have ended unseen
//	batch/feed        elements of a batch -> new tasks
//
//	history/record  what a process saw of a rule joins what others saw
//
// The Go files:
//
//	library.go   the modules, put together into the library or into a script
//	script.go    a script, how it is called and how its reply is read; instants and numbers as scripts have them
//	send.go      how a call is sent, and what is mended when a server lacks the library
//	newnode.go   the library on a master of a Cluster that gets its first slot
//	once.go      a call that the client must not repeat by itself
//	replicas.go  a WAIT behind a call
//	cluster.go   the slot of a key
//	taskid.go    how a task's id is written in our keys, and as a job in a line
//	key.go       what all callers of scripts agree on: the prefix of keys, and bounds
//
// Scripts use only commands of Redis 6.2, take every number as text and answer integers, and
// text where a header says so. Times are microseconds since 1970, which a Lua
// number holds exactly until the year 2255. The first write of a script that takes permits for
// one call is one that needs memory, so that a full Redis refuses the script before it has changed anything.
// Where calls share a script, an earlier call of it may take its job out of a line before that write.
package luascripts
