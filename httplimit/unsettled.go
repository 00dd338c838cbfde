package httplimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/throttle"
)

const (
	// unsettledMax bounds the requests whose leases and permits wait for Redis to come back. When one finds no room, its
	// slot stays taken until its lease ends, or its permits stay charged. No limit is exceeded by that.
	unsettledMax = 4096
	// unsettledPause is how long it is between two tries.
	unsettledPause = 500 * time.Millisecond
	// refundFor is how long a refund is tried at least. It is tried for as long as the permits count, if that is longer.
	refundFor = 2 * time.Minute
)

// unsettled repeats what Redis did not answer after a handler had returned. It has a goroutine only while something is
// left, so that a Middleware need not be closed.
type unsettled struct {
	log *zap.Logger

	mu      sync.Mutex
	left    []settlement
	running bool
	full    bool // and the log says so
}

// settlement ends the leases of a request, or gives its permits back. To make it twice does no harm.
type settlement struct {
	call  func(context.Context) error
	until time.Time // then Redis counts nothing of it any more
}

// add lets a settlement be repeated for so long. It never blocks.
func (u *unsettled) add(call func(context.Context) error, d time.Duration) {
	u.mu.Lock()
	tell := false
	if len(u.left) < unsettledMax {
		u.left = append(u.left, settlement{call, time.Now().Add(d)})
	} else {
		tell = !u.full
		u.full = true
	}
	begins := !u.running
	u.running = true
	u.mu.Unlock()
	if tell {
		u.log.Warn("too many requests wait to be settled: a slot stays taken until its lease ends, or permits stay charged")
	}
	if begins {
		go u.run()
	}
}

// run ends when nothing is left, at the latest when what is left has no effect any more.
func (u *unsettled) run() {
	for {
		time.Sleep(unsettledPause)
		u.mu.Lock()
		all := u.left
		u.left = nil
		u.running = len(all) > 0
		if len(all) == 0 {
			u.full = false
			u.mu.Unlock()
			return
		}
		u.mu.Unlock()
		failed := try(all)
		u.mu.Lock()
		u.left = append(u.left, failed...)
		u.mu.Unlock()
	}
}

// try makes what it can, drops what has no effect any more, and returns what is left. It ends with the first call that Redis does not answer: Redis would
// hardly answer the next one. That one comes last the next time: on Redis Cluster the others may be of nodes that answer.
func try(all []settlement) (left []settlement) {
	now := time.Now()
	all = slices.DeleteFunc(all, func(s settlement) bool { return now.After(s.until) })
	for i, s := range all {
		ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
		err := s.call(ctx)
		cancel()
		if err == nil {
			continue
		}
		left = append(left, s)
		if errors.Is(err, throttle.ErrUnavailable) && !throttle.ForWorkers.Answered(err) {
			return append(slices.Clone(all[i+1:]), left...)
		}
	}
	return left
}

// longestLease is the longest lease of a grant, as far as it is known.
func longestLease(p *throttle.Policy, d throttle.Decision) time.Duration {
	longest := throttle.ForWorkers.LeaseFor(p, d)
	for _, l := range p.Rules() { // LeaseFor is the shortest of several leases
		if l.Limit().IsConcurrent() {
			longest = max(longest, throttle.ForWorkers.LimitLastKnown(l).Window())
		}
	}
	return longest
}

// longestCount is for how long, at most, permits of a policy count.
func longestCount(p *throttle.Policy) time.Duration {
	longest := refundFor
	for _, l := range p.Rules() {
		longest = max(longest, throttle.ForWorkers.Counts(l.Limit()), throttle.ForWorkers.Counts(throttle.ForWorkers.LimitLastKnown(l)))
	}
	return longest
}
