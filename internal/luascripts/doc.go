// Package luascripts holds every script that Headway runs in Redis and builds
// every key that they touch.
//
// One script is one .lua file, one Go function and one header; a test compares
// the three. What several scripts share (the clock, the ledger of an algorithm,
// the line) is a part: a .lua file that is put before the script's own body, so
// that a decision is written once. A constant may be named in any file: its value
// stands there before Redis gets a script.
//
//	part          what it is
//	clock.lua     the one reading of Redis' clock
//	numbers.lua   numbers as text, lives of keys
//	seven.lua     instants as 7 bytes
//	form.lua      what calls of acquire.lua have in common
//	one.lua       the shortest way of acquire.lua: `sliding 1/W`, nobody waits
//	pair.lua      a short way of acquire.lua: two rules, `sliding 1/W` and `sliding n/W`
//	pairof.lua    which calls may take it
//	pairline.lua  how it begins: who waits
//	lone.lua      one for a call that comes alone: `sliding n/W`, nobody waits
//	ring.lua      one for several at once: `sliding n/W`, nobody waits
//	rest.lua      which way the other calls take
//	run.lua       a short way of acquire.lua: one rule, nobody waits
//	widest.lua    a place in the line of the widest rates, or none
//	admit.lua     the long way of acquire.lua: all rules, with those who wait
//	ledger.lua    what was spent on a key: open, slot, spend, free
//	sliding.lua   the algorithm of `sliding n/W`, a log of grants
//	tally.lua     what the ledgers of all other algorithms have in common
//	fixed.lua     the algorithm of `fixed n/W`
//	calendar.lua  the algorithm of `calendar n/unit zone`
//	instant.lua   what gcra.lua and smooth.lua have in common
//	gcra.lua      the algorithm of `gcra n/W burst b` and `bucket n/W burst b`
//	step.lua      the algorithm of `bucket n/W burst b step`
//	smooth.lua    the algorithm of `smooth n/W burst s` and `leaky n/W`
//	warmup.lua    the algorithm of `warmup n/W over D cold c`
//	leases.lua    the algorithm of `concurrent n lease d`
//	remember.lua  tokens that are not the newest any more
//	tokens.lua    which attempt holds which grant
//	correct.lua   what a grant's holder gives back, or pays more
//	tickets.lua   the numbers of line.lua, and one look at one of its members
//	line.lua      who waits, in which order, and what they were promised
//	places.lua    how a job gets its places in the lines
//	comeback.lua  who comes back into a line, before others
//	parts.lua     the rules that one call decides together, each on its key
//	arguments.lua  the parts of a call that has them as arguments
//	whereabouts.lua  in which line a booking stands
//	gate.lua      when work may run at all
//	taskid.lua    how a task's id is written in our keys
//	deferred.lua  what a deferral or an enqueueing writes into asynq's hash of a task
//	put.lua       a new task goes into a queue
//	batch.lua     how a batch ends, and its rate
//
//	script       what it does                                   slot
//	acquire.lua  grant, book or refuse, for up to 64 calls      the limits' keys
//	check.lua    the current instants of up to 8 bookings       the limits' keys
//	cancel.lua   give back a grant, leave the line              the limits' keys
//	settle.lua   a grant turns out to have cost more, or less   the limits' keys
//	close.lua    nothing goes on a key until an instant         the limits' keys
//	release.lua  a lease ends before its time                   the limit's key
//	renew.lua    a lease goes on                                the limit's key
//	peek.lua     look, and change nothing                       the limit's key
//	locate.lua   where one booking stands, and change nothing   the limits' keys
//	list.lua     a portion of a line, and change nothing        the limit's key
//	reset.lua    forget what was spent                          the limit's key
//	enqueue.lua  new tasks -> pending, scheduled, or booked      the queue
//	feed.lua     elements of a batch -> new tasks               the queue
//	batchstart.lua  a batch begins                              the queue
//	batchclaim.lua  one process alone feeds it                  the queue
//	batchcount.lua  tasks of it have ended                      the queue
//	batchsweep.lua  which have ended unseen                     the queue
//	batchpeek.lua   as it is                                    the queue
//	batchlist.lua   its elements in order                       the queue
//	batchset.lua    pause, resume, cancel, another pace         the queue
//	batchdrop.lua   what waits of a cancelled one is deleted    the queue
//	tick.lua     a tick of a schedule, once for all replicas    the queue
//	defer.lua    active task -> asynq's retry set + due index   the queue
//	due.lua      what is due on a queue                         the queue
//	wake.lua     due tasks -> head of pending                   the queue
//	retime.lua   move due tasks to another instant              the queue
//	forget.lua   drop what a deferral left of a running task       the queue
//	find.lua     where a task is, and change nothing            the queue
//	walk.lua     what is deferred on a queue, by portions       the queue
//	claim.lua    one pool alone plans a queue anew              the queue
//	planned.lua  it has done so                                 the queue
//	rules.lua    which pools run which numbers                  the prefix
//	setlimit.lua the limit of a rule that goes before code      the rule
//	closerule.lua  nothing goes by a rule until an instant      the rule
//
// Scripts use only commands of Redis 6.2, take every number as text and answer
// integers (and task or job ids, which are text). Times are microseconds since
// 1970, which a Lua number holds exactly until the year 2255. A script that
// takes permits makes a write that allocates its first write, so that a Redis
// that is full refuses it whole.
package luascripts
