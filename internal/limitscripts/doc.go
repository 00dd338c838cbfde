// Package limitscripts calls the scripts about limits, and builds the keys of limits. It knows nothing of tasks: what waits
// for a limit is a job. Package memory decides the same in Go.
//
//	key.go      the names of the keys of rules and of stored limits, and a user's key in them
//	limit.go    rules, limits and gates as arguments; peek, cancel, reset
//	acquire.go  acquire, for one call and for many together
//	slots.go    acquire on a Cluster, slot by slot
//	refresh.go  refresh, for many bookings together
//	lookup.go   the place of a booking in a line, and the jobs that wait in a line
//	lease.go    release, renew, adjust and close
//	stored.go   stored limits, and rules that are closed
package limitscripts
