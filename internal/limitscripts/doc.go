// Package limitscripts calls the scripts about limits, and builds the keys of limits. It knows nothing of tasks: what waits
// for a limit is a job. Package memory decides the same in Go.
//
//	key.go       the names of the keys of rules and of stored limits, and a user's key in them
//	limit.go     rules, limits and gates as arguments
//	acquire.go   acquire, for one call and for many together
//	hashslots.go acquire on a Cluster, by hash slot
//	refresh.go   refresh, for many bookings together
//	cancel.go    what changes what was granted or booked: cancel, adjust, close, reset
//	lookup.go    what a key looks like, the place of a booking in a line, and the jobs that wait in a line
//	lease.go     release and renew
//	stored.go    stored limits, and rules that are closed
package limitscripts
