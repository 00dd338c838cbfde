package batch

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

const (
	// spentBy is how long after its instant a ledger may not know of a job that was booked:
	// for so long a place is kept.
	spentBy = 100 * time.Millisecond
	// giveBackFor bounds the calls that give back bookings.
	giveBackFor = time.Second
	// feedBytes bounds the messages of one call, but for one that is longer by itself.
	feedBytes = 1 << 20
)

// feedCall is a call that enqueues pieces, or counts them as refused.
type feedCall struct {
	args   luascripts.FeedArgs
	pieces []*item
}

// feed enqueues up to n elements, and answers whether it did anything.
func (g *feeding) feed(ctx context.Context, now time.Time, n int) (bool, error) {
	if aside, err := g.putAside(ctx, n); aside || err != nil {
		return aside, err
	}
	var pieces []*item
	for bytes := 0; len(pieces) < n; {
		p := g.lanes.nextRetry(now)
		if p == nil {
			p = g.lanes.next(now)
		}
		if p != nil {
			if bytes += len(p.task.Message.Message); len(pieces) > 0 && bytes > feedBytes {
				g.lanes.back(p, now) // the next call is at once
				break
			}
			pieces = append(pieces, p)
			continue
		}
		if some, err := g.read(ctx); err != nil || !some {
			if err != nil && len(pieces) == 0 {
				return false, err
			}
			break
		}
	}
	tried := len(pieces) > 0
	// Between the booking and the enqueueing the pieces have places, and no task that
	// would ever come for them: a feeder that is stopped there finishes first.
	ctx, cancel := outlive(ctx, feedRelease)
	defer cancel()
	pieces, err := g.book(ctx, pieces)
	defer func() { g.lanes.settled(g.f.now()) }()
	if err != nil && len(pieces) == 0 {
		return false, err
	}
	refused := g.refused[:min(len(g.refused), luascripts.BatchMax-len(pieces))]
	g.refused = g.refused[len(refused):]
	c := g.call(pieces, refused)
	if len(c.pieces) == 0 && !c.args.End {
		return tried && g.soon(now), nil
	}
	return true, g.send(ctx, c)
}

// outlive returns a context that ends d after ctx does.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// soon says that a lane is open again already.
func (g *feeding) soon(now time.Time) bool {
	at, ok := g.lanes.opens()
	return ok && !at.After(now)
}

// call is the call for some pieces.
func (g *feeding) call(pieces, refused []*item) *feedCall {
	c := &feedCall{pieces: slices.Concat(pieces, refused)}
	c.args = luascripts.FeedArgs{
		Batch: g.id, Owner: g.owner, Call: newOwner(), PaceAt: g.pacedBehind(len(pieces)), Tasks: make([]luascripts.FeedTask, len(c.pieces)),
	}
	positions := make([]int64, len(c.pieces))
	for i, p := range c.pieces {
		positions[i] = p.position
		t := &c.args.Tasks[i]
		if t.Position, t.Element = p.position, p.settledAs(); p.fault == nil {
			p.task.Message.Since = time.Now().UnixNano()
			t.EnqueueTask = p.task.Message
		} else {
			t.Token = newOwner()
		}
	}
	c.args.Cursor, c.args.Mark = g.track.with(positions)
	c.args.End = g.over && g.lanes.held == 0 && len(g.refused) == 0 && g.unprepared == nil && g.track.all(positions)
	return c
}

// settledAs names the element among those that are settled. An id that is none can't.
func (p *item) settledAs() string {
	if luascripts.IsElementID(p.ID) {
		return p.ID
	}
	return "!" + formatPosition(p.position)
}

// send sends a call until it is answered: as long as that is not known, nothing else is
// done, for it may have been.
func (g *feeding) send(ctx context.Context, c *feedCall) error {
	g.unsure = c
	if err := g.f.c.RegisterQueue(ctx, g.queue); err != nil {
		return err
	}
	r, err := luascripts.Feed(ctx, g.f.c.Redis(), g.keys, c.args)
	if err != nil {
		return err
	}
	g.unsure = nil
	now := g.f.now()
	g.offset = r.Now.Sub(now)
	switch r.Status {
	case luascripts.NotOwner:
		g.lost(ctx, c)
		return errLost
	case luascripts.NotRunning:
		g.returned(ctx, c, now)
		g.claimed = time.Time{} // to learn what it does
		return nil
	}
	g.open, g.paceAt = r.Open, c.args.PaceAt
	g.fed(ctx, c, r.Codes, now)
	g.ended = c.args.End && !slices.Contains(r.Codes, luascripts.FeedNoRoom)
	if g.ended {
		g.log.Info("all elements of a batch are enqueued", zap.Int64("elements", g.track.cursor))
	}
	return nil
}

// fed notes what became of the pieces of a call.
func (g *feeding) fed(ctx context.Context, c *feedCall, codes []int64, now time.Time) {
	var settled []int64
	var leave []*item
	for i, p := range c.pieces {
		if codes[i] == luascripts.FeedNoRoom {
			g.putBack(p, now)
			continue
		}
		settled = append(settled, p.position)
		switch codes[i] {
		case luascripts.Enqueued:
			g.lanes.fed(p, p.bookedAt, p.bookedAt.Add(spentBy))
			g.lag.booked(p.bookedAt)
			continue
		case luascripts.FeedSettled: // the place is that of the task
			g.lanes.fed(p, p.bookedAt, p.bookedAt.Add(spentBy))
			continue
		case luascripts.FeedRefused:
			g.refuse(p, p.fault)
		default:
			g.refuse(p, backend.Refusal(codes[i]))
		}
		g.lanes.forget(p)
		leave = append(leave, p)
	}
	g.track.settle(settled)
	g.leave(ctx, leave)
}

// putBack puts a piece of a call where it came from.
func (g *feeding) putBack(p *item, at time.Time) {
	if p.fault != nil {
		g.refused = append(g.refused, p)
		return
	}
	g.lanes.back(p, at)
}

// returned takes the pieces of a call back, and gives their places up: the batch does
// not run.
func (g *feeding) returned(ctx context.Context, c *feedCall, now time.Time) {
	for _, p := range c.pieces {
		g.putBack(p, now)
	}
	g.leave(ctx, c.pieces)
}

// lost gives the places of a call up when the batch is gone. When it is another's, that
// one may have booked the same job, and stand in the same place.
func (g *feeding) lost(ctx context.Context, c *feedCall) {
	if _, errs := luascripts.ReadBatches(ctx, g.f.c.Redis(), g.keys, []string{g.id}); errors.Is(errs[0], luascripts.ErrNoBatch) {
		g.leave(ctx, c.pieces)
	}
}

// leave gives up the places that were taken for pieces.
func (g *feeding) leave(ctx context.Context, pieces []*item) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackFor)
	defer cancel()
	var turns []throttle.Promotion
	for _, p := range pieces {
		if p.task == nil || !p.task.Own || p.task.Policy == nil {
			continue
		}
		next, err := p.task.Policy.Cancel(ctx, p.task.Request)
		if err != nil {
			break // they fall out of their lines
		}
		p.task.Own = false
		turns = append(turns, next...)
	}
	g.f.c.Promote(ctx, turns)
}

// refuse tells of an element that is no task.
func (g *feeding) refuse(p *item, err error) {
	reason := g.f.c.SafeText(err)
	for _, own := range []error{ErrInvalid, queue.ErrInvalidOption, throttle.ErrExceedsLimit, throttle.ErrTooLate} {
		if errors.Is(err, own) {
			reason = err.Error()
		}
	}
	if de, ok := errors.AsType[*queue.DemandError](err); ok {
		reason = de.Error()
	}
	g.log.Debug("an element is refused", zap.Int64("position", p.position), zap.String("reason", reason))
	if f := g.f.cfg.Refused; f != nil {
		f(g.id, p.Element, err)
	}
}
