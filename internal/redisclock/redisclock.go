// Package redisclock says which local instant an instant of a Redis server is.
//
// Each reply tells what the server's clock showed at some moment between the call and its
// arrival. One reply leaves that moment open by as much as it took. Several replies narrow
// it: the server's clock is ahead of ours by at least what the fastest answer shows, and at
// most by what the fastest request shows. So one reply that was long on its way is seen to
// be old, and a network that is always slow is not taken for one. It is the intersection of
// intervals by which Marzullo and Cristian synchronise clocks.
//
// Instants of this process are counted by its monotonic clock: they do not move when its
// clock is set. When a server's clock is set, the next reply contradicts what was known,
// and everything before it is forgotten.
package redisclock

import (
	"sync"
	"time"
)

// horizon is for how long a reply counts, and at most twice as long. Two clocks that run
// apart by 100 µs a second, which is much, differ by 6 ms after that.
const horizon = 30 * time.Second

// Clock is what is known of the clock of one server. The zero value knows nothing. It is
// safe for concurrent use.
type Clock struct {
	mu             sync.Mutex
	epoch          time.Time // local instants are counted from here
	recent, before bounds
	turned         time.Duration // since when recent collects
	since          time.Duration // when the first reply arrived of those that are known
	confirmed      bool          // a call that was made after that one's arrival was answered, too
}

// bounds are how far the server's clock is ahead: its time in nanoseconds since 1970, less
// the local time since the epoch.
type bounds struct {
	least, most int64
	any         bool
}

// and are the bounds that both give.
func (b bounds) and(o bounds) bounds {
	switch {
	case !b.any:
		return o
	case !o.any:
		return b
	}
	return bounds{max(b.least, o.least), min(b.most, o.most), true}
}

// Observe learns from a reply which says that the server's clock showed server. The call
// was made at began, and the reply arrived at ended. It returns when that was, by the local,
// monotonic clock: at the latest, so that whoever waits until so long after it is never
// early. Confirmed says that this does not rest on one reply alone, which may have been long
// on its way.
func (c *Clock) Observe(server, began, ended time.Time) (local time.Time, confirmed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch.IsZero() {
		c.epoch = began
	}
	from, to := began.Sub(c.epoch), ended.Sub(c.epoch)
	seen := bounds{least: server.UnixNano() - int64(to), most: server.UnixNano() - int64(from), any: true}
	switch {
	case to-c.turned >= 2*horizon:
		c.recent, c.before, c.turned = bounds{}, bounds{}, to
	case to-c.turned >= horizon:
		c.recent, c.before, c.turned = bounds{}, c.recent, to
	}
	known := c.recent.and(c.before)
	if !known.any || seen.least > known.most || seen.most < known.least {
		c.recent, c.before, c.turned = seen, bounds{}, to
		c.since, c.confirmed = to, false
	} else {
		c.recent = c.recent.and(seen)
		c.confirmed = c.confirmed || from >= c.since
	}
	least := c.recent.and(c.before).least
	return c.epoch.Add(time.Duration(server.UnixNano() - least)), c.confirmed
}

// Ahead is how far c is ahead of another server's clock. It is 0 unless the replies prove a
// difference: most servers' clocks are kept equal, and an estimate that moves with every
// reply would move the instants that are told.
func (c *Clock) Ahead(of *Clock) time.Duration {
	if c == of {
		return 0
	}
	ours, epoch := c.known()
	theirs, their := of.known()
	if !ours.any || !theirs.any {
		return 0
	}
	shift := int64(epoch.Sub(their)) // between the local times from which both are counted
	least, most := ours.least-theirs.most-shift, ours.most-theirs.least-shift
	if least <= 0 && 0 <= most {
		return 0
	}
	return time.Duration(least + (most-least)/2)
}

func (c *Clock) known() (bounds, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recent.and(c.before), c.epoch
}
