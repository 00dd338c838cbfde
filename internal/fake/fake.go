// Package fake is how limiters are told to count in memory, by a clock that the caller
// moves. Package throttletest uses it for tests, and a simulation for runs that take no time.
package fake

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Source is where fake limiters hear of the time and of faults. All of its
// functions must be safe for concurrent use.
type Source struct {
	Now   func() time.Time     // the clock that decides
	Fault func() error         // why a call fails now; nil for none
	Join  func(changed func()) // hands over what to call after either changed

	Decided func(decision any, err error) // hears each throttle.Decision
}

// Client stands for a Redis server that does not exist. throttle.New knows it, and
// makes limiters that count in memory. No call may reach its UniversalClient, which
// is nil.
type Client struct {
	redis.UniversalClient
	Source

	once   sync.Once
	server any
}

// Server returns what the limiters of the client share; create makes it at the first
// call.
func (c *Client) Server(create func() any) any {
	c.once.Do(func() { c.server = create() })
	return c.server
}

// StandingClock is a client on a Redis whose clock stands still until a test moves it. How old an answer is can't be told by such a
// clock.
type StandingClock interface{ ClockStands() }
