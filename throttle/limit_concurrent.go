package throttle

import "time"

// Bounds of a lease.
const (
	LeaseMin = 100 * time.Millisecond
	LeaseMax = day
)

// Concurrent lets at most n run at once. Who is granted holds a lease; it ends
// when it is released, at once, or when nobody renewed it for so long: a holder
// that died gives its place back within one lease. How many are free follows from
// the leases that have not ended and from nothing else.
//
//	instant = now, when fewer than n leases are live; else when the next of them ends
//
// With Concurrent(2, 30*time.Second) and two leases that were taken at 0 s and
// renewed at 10 s, who comes at 15 s is promised 40 s, and goes at 21 s when one of
// the two is released then: whoever releases tells the next in line.
//
// n is 1 to [PermitsMax], lease [LeaseMin] to [LeaseMax]; choose a lease longer than
// any pause of a process that is still alive. Each grant costs one. A worker renews
// and releases by itself; others use [Policy.Renew] and [Policy.Release]. It can't be
// changed into a limit of another kind at run time, nor back.
func Concurrent(n int, lease time.Duration) Limit {
	return Limit{kind: kindConcurrent, permits: n, window: lease}
}

// IsConcurrent says whether the limit is one of [Concurrent].
func (l Limit) IsConcurrent() bool { return l.kind == kindConcurrent }

func (l Limit) leaseFaults(f *faultList) {
	switch {
	case l.window < LeaseMin || l.window > LeaseMax:
		f.add("lease", formatWindow(l.window), formatWindow(LeaseMin)+" to "+formatWindow(LeaseMax))
	case l.window%time.Microsecond != 0:
		f.add("lease", formatWindow(l.window), "whole microseconds")
	}
}
