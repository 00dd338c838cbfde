package worker

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

const (
	// refundsMax bounds the refunds that wait for Redis to come back. One that
	// finds no room leaves a permit charged, never one too few.
	refundsMax = 4096
	// refundFor is how long a refund is tried at least: else as long as the grant
	// that it may take back counts.
	refundFor   = 2 * time.Minute
	refundPause = 500 * time.Millisecond
	// hintsTogether bounds how many hints are passed on in one call.
	hintsTogether = 256
	// logQuiet is the least time between two lines about the same trouble.
	logQuiet = 5 * time.Second
)

// refund is a grant that may have been charged and was not used.
type refund struct {
	policy *throttle.Policy
	throttle.Request
	until time.Time
}

// refundLater takes a call back whose answer never came, once Redis answers.
// The job keeps its place in the line: only the token is withdrawn.
func (a *Adapter) refundLater(p *throttle.Policy, r throttle.Request) {
	r.Job = ""
	counts := time.Duration(0)
	for _, l := range p.Rules() { // by which limits it was charged is not known when no answer came
		counts = max(counts, l.Limit().Window(), l.LimitLastKnown().Window())
	}
	select {
	case a.refunds <- refund{p, r, time.Now().Add(max(refundFor, counts))}:
	default:
		a.logFew("refunds", func() { a.log.Warn("too many refunds wait for Redis: some permits stay charged") })
	}
}

// passRefunds tries each refund until Redis answers it, in turn, so that one
// that is refused holds up no other.
func (a *Adapter) passRefunds(ctx context.Context) {
	var left []refund
	t := time.NewTicker(refundPause)
	defer t.Stop()
	for {
		more := a.refunds
		if len(left) >= refundsMax {
			more = nil
		}
		select {
		case <-ctx.Done():
			a.lastRefunds(left)
			return
		case r := <-more:
			left = append(left, r)
		case <-t.C:
			left = a.tryRefunds(ctx, left)
		}
	}
}

// tryRefunds makes what refunds it can, and answers those that are left. When
// Redis does not answer one, it would not answer the next.
func (a *Adapter) tryRefunds(ctx context.Context, all []refund) []refund {
	var left []refund
	for i, r := range all {
		turns, err := r.policy.Refund(ctx, r.Request)
		a.hint(turns...)
		if err == nil || time.Now().After(r.until) {
			continue
		}
		left = append(left, r)
		if errors.Is(err, throttle.ErrUnavailable) && !throttle.Answered(err) {
			return append(left, all[i+1:]...)
		}
	}
	return left
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
		_, _ = r.policy.Refund(ctx, r.Request)
	}
}

// hint passes on that jobs may come earlier. It never blocks.
func (a *Adapter) hint(turns ...throttle.Promotion) {
	for _, t := range turns {
		select {
		case a.hints <- t:
		default:
		}
	}
}

// passHints re-times the tasks that may come earlier, in any queue. All that have
// come in meanwhile go together: while a slot is free every call tells who may have it,
// and one by one they would be behind for good.
func (a *Adapter) passHints(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-a.hints:
			for queue, turns := range a.gather(t) {
				a.passOn(ctx, queue, turns)
			}
		}
	}
}

// gather adds to a hint those that wait behind it: by queue, the earliest of each task.
func (a *Adapter) gather(t throttle.Promotion) map[string]map[string]throttle.Promotion {
	all := make(map[string]map[string]throttle.Promotion)
	for n := 1; ; n++ {
		if queue, id, ok := luascripts.TaskOf(t.Job); ok { // or somebody who blocks in an Acquire: it looks for itself
			if all[queue] == nil {
				all[queue] = make(map[string]throttle.Promotion)
			}
			if known, ok := all[queue][id]; !ok || t.At.Before(known.At) {
				all[queue][id] = t
			}
		}
		if n == hintsTogether {
			return all
		}
		select {
		case t = <-a.hints:
		default:
			return all
		}
	}
}

func (a *Adapter) passOn(ctx context.Context, queue string, turns map[string]throttle.Promotion) {
	if w := a.wakers[queue]; w != nil {
		w.wakeOffered(ctx, turns)
	}
	if len(turns) == 0 {
		return
	}
	var earlier []luascripts.Retiming
	for id, t := range turns {
		earlier = append(earlier, luascripts.Retiming{ID: id, At: t.At, Any: true})
	}
	if _, err := luascripts.Retime(ctx, a.rdb, a.keys(queue), true, earlier); err != nil {
		return // they come at the instants that they were promised
	}
	if w := a.wakers[queue]; w != nil {
		for _, t := range turns {
			w.expect(t.Wait)
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
