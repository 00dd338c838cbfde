// Package fake is the seam between throttle and throttletest: what a test tells
// limiters that count in memory.
package fake

import "time"

// Source is where fake limiters hear of the time and of faults. All of its
// functions must be safe for concurrent use.
type Source struct {
	Now   func() time.Time     // the clock that decides
	Fault func() error         // why a call fails now; nil for none
	Join  func(changed func()) // hands over what to call after either changed
}
