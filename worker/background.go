package worker

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

const (
	// refundsMax bounds the refunds that wait for Redis to come back. One that
	// finds no room leaves a permit charged, never one too few.
	refundsMax = 4096
	// refundFor is how long a refund is tried; after a minute a copy of the
	// call that it takes back is not expected any more.
	refundFor   = 2 * time.Minute
	refundPause = 500 * time.Millisecond
	// logQuiet is the least time between two lines about the same trouble.
	logQuiet = 5 * time.Second
)

// refund is a grant that may have been charged and was not used.
type refund struct {
	limiter *throttle.Limiter
	throttle.Request
	until time.Time
}

// refundLater takes a call back whose answer never came, once Redis answers.
// The job keeps its place in the line: only the token is withdrawn.
func (a *Adapter) refundLater(l *throttle.Limiter, r throttle.Request) {
	r.Job = ""
	select {
	case a.refunds <- refund{l, r, time.Now().Add(refundFor)}:
	default:
		a.logFew("refunds", func() { a.log.Warn("too many refunds wait for Redis: some permits stay charged") })
	}
}

// passRefunds tries each refund until Redis answers it, in turn, so that one
// that can't be made holds up no other.
func (a *Adapter) passRefunds(ctx context.Context) {
	var left []refund
	t := time.NewTicker(refundPause)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			a.lastRefunds(left)
			return
		case r := <-a.refunds:
			left = append(left, r)
		case <-t.C:
		}
		left = slices.DeleteFunc(left, func(r refund) bool { return a.refunded(ctx, r) })
	}
}

// refunded makes a refund, or gives it up in the end.
func (a *Adapter) refunded(ctx context.Context, r refund) bool {
	turn, err := r.limiter.Refund(ctx, r.Request)
	a.hint(turn)
	return err == nil || time.Now().After(r.until)
}

// lastRefunds tries once more, for a moment, what is left at the end.
func (a *Adapter) lastRefunds(left []refund) {
	ctx, cancel := context.WithTimeout(context.Background(), afterTimeout)
	defer cancel()
	for {
		select {
		case r := <-a.refunds:
			left = append(left, r)
			continue
		default:
		}
		break
	}
	for _, r := range left {
		if ctx.Err() != nil {
			return
		}
		_, _ = r.limiter.Refund(ctx, r.Request)
	}
}

// hint passes on that a job may come earlier. It never blocks.
func (a *Adapter) hint(t throttle.Turn) {
	if t.Job == "" {
		return
	}
	select {
	case a.hints <- t:
	default:
	}
}

// passHints re-times the tasks that may come earlier, in any queue.
func (a *Adapter) passHints(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-a.hints:
			queue, id, ok := taskOf(t.Job)
			if !ok {
				continue // somebody who blocks in an Acquire: it looks for itself
			}
			_, err := luascripts.Retime(ctx, a.rdb, a.keys(queue), true, []luascripts.Retiming{{ID: id, At: t.At}})
			if err != nil {
				continue // it comes at the instant that it was promised
			}
			if w := a.wakers[queue]; w != nil {
				w.expect(t.Wait)
			}
		}
	}
}

// logFew logs the same trouble at most every [logQuiet].
func (a *Adapter) logFew(what string, log func()) {
	now := time.Now()
	if last, ok := a.reported.Load(what); ok && now.Sub(last.(time.Time)) < logQuiet {
		return
	}
	a.reported.Store(what, now)
	log()
}

// failed logs that a call of the background work failed, and waits a moment.
func (a *Adapter) failed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	a.logFew(what, func() { a.log.Warn(what, zap.Error(err)) })
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}
