// Package memory keeps limits in this process: the twin of the scripts that
// package limitscripts calls. It decides as they do, to the
// microsecond, for a limiter without Redis, for the time that Redis is away,
// and for tests that compare the two.
//
//	file          its twin     what it is
//	store.go                   the store, its calls, its keys and their expiry
//	acquire.go    decide.lua   the call that grants, books or refuses
//	booking.go    cancel.lua   what becomes of bookings and grants: cancel, adjust (adjust.lua), close (close.lua),
//	                           and their instants, anew (refresh.lua)
//	call.go       decide.lua   what a call on several rules reads first, and which rule holds a job up (rulecall.lua)
//	rulecall.go   rulecall.lua one rule on one key, as a job finds it (line.lua); where a job waits (places.lua)
//	gate.go       gate.lua     when work may run
//	lease.go      leases.lua   at most so many at once
//	promotion.go  line.lua     which jobs are told that they may come earlier (leases.lua)
//	line.go       line.lua     the jobs that wait, in which order, and what they were promised; the
//	                           tokens of attempts (tokens.lua)
//	ledger.go     ledger.lua   what the algorithms have in common, and a change of limit
//	sliding.go    sliding.lua  the grants themselves
//	counter.go    counter.lua  the kinds that count: fixed, calendar, step
//	tat.go        tat.lua      the kinds that keep one instant: gcra, smooth, warmup
//	sortedset.go  (ZSET)       a sorted set
//
// Several rules are decided together, narrowest first. A job waits in the line of
// one, that which holds it up. In those before it keeps its turn: jobs of its
// policy stay behind it. For jobs of other policies it does not exist. In wider ones
// it has no place. On each key a job that wants so many permits has one ticket, by
// whatever policy it asks.
//
//	nowhere ──> waits at rule 1 ──> turn at 1, waits at 2 ──> granted: nowhere
//	              │      ^                │      ^
//	              v      │                v      │
//	            parked: came too late, or a narrower rule holds it up again
//
// A refund leaves owed what was granted after its grant; what was granted
// before its limit was changed stays spent. A changed limit looks at the state
// as if it had been changed right after the newest grant.
//
// Times are microseconds since 1970 in an int64. An instant that is further
// away than an int64 reaches is cut to [never].
//
// It does not wait, wake or start anything, and holds no more than what a
// script would hold in Redis: a key that expired is dropped when it is looked
// at, or by the sweep of the calls that follow.
package memory
