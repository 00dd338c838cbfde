package httplimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/throttle"
)

const (
	// unsettledMax bounds the settlements that wait for Redis to come back, with the one that is tried. When one finds no
	// room, its slot stays taken until its lease ends, or its permits stay charged. No limit is exceeded by that.
	unsettledMax = 4096
	// The pause between two tries doubles while Redis answers none of them.
	pauseLeast = 20 * time.Millisecond
	pauseMost  = 250 * time.Millisecond
)

// unsettled repeats what Redis did not answer after a handler had returned. It has a goroutine only while something is
// left, so that a Middleware need not be closed.
type unsettled struct {
	log *zap.Logger

	mu   sync.Mutex
	left []settlement // run tries the first one
	// The log says so already. Both are forgotten when nothing is left.
	full, refused bool
}

// settlement ends the leases of a request, or gives its permits back. To make it twice does no harm.
type settlement struct {
	call  func(context.Context) error
	until time.Time // then Redis counts nothing of it any more
}

// add lets a settlement be repeated for so long. It never blocks.
func (u *unsettled) add(call func(context.Context) error, d time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.left) >= unsettledMax {
		if !u.full {
			u.log.Warn("too many requests wait to be settled: a slot stays taken until its lease ends, or permits stay charged")
		}
		u.full = true
		return
	}
	u.left = append(u.left, settlement{call, time.Now().Add(d)})
	if len(u.left) == 1 {
		go u.run()
	}
}

// run tries the settlements in turn, until none is left. One that is not answered goes behind all others: on Redis Cluster
// those may be of masters that answer.
func (u *unsettled) run() {
	pause := pauseLeast
	for {
		time.Sleep(pause)
		u.mu.Lock()
		first := u.left[0]
		u.mu.Unlock()
		err := first.try()
		if unanswered(err) {
			pause = min(max(2*pause, pauseLeast), pauseMost)
		} else {
			pause = 0
		}
		if !u.next(err) {
			return
		}
	}
}

// next moves on from the first settlement, which ended with err. It says whether any is left.
func (u *unsettled) next(err error) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	first := u.left[0]
	u.left[0] = settlement{} // the array outlives it
	u.left = u.left[1:]
	switch {
	case err == nil:
	case unanswered(err):
		u.left = append(u.left, first)
	case !u.refused:
		u.refused = true
		u.log.Warn("a request can't be settled: a slot stays taken until its lease ends, or permits stay charged", zap.Error(err))
	}
	if closed(err) {
		u.left = nil // all go by one client
	}
	if len(u.left) == 0 {
		u.left, u.full, u.refused = nil, false, false
	}
	return len(u.left) > 0
}

// try makes a settlement, unless it has no effect any more. A hook of the client that panics ends no process: in a
// handler it would not either.
func (s settlement) try() (err error) {
	if time.Now().After(s.until) {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("httplimit: a hook of the client panicked with a %T", p) // its value may hold a key
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	return s.call(ctx)
}

// unanswered says that Redis may answer the same call later: it did not, or could not at the moment. What it refused,
// it would refuse again.
func unanswered(err error) bool {
	return errors.Is(err, throttle.ErrUnavailable) && !throttle.ForWorkers.Answered(err) && !closed(err)
}

// closed says that the user has closed the client. Package throttle passes on only the client's words.
func closed(err error) bool {
	return err != nil && strings.Contains(err.Error(), redis.ErrClosed.Error())
}
