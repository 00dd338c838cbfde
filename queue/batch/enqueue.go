package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

const (
	// spentBy is how long after its instant a ledger may not know of a job that was booked:
	// for so long a place is kept.
	spentBy = 100 * time.Millisecond
	// leaveFor bounds the calls that give back bookings.
	leaveFor = time.Second
	// feedBytes bounds the messages of one call, but for one that is longer by itself.
	feedBytes = 1 << 20
)

// feedCall is a call that enqueues items, or counts them as refused.
type feedCall struct {
	args  batchscripts.FeedArgs
	items []*item
}

// feed enqueues up to n elements, and answers whether it did anything.
func (g *feeding) feed(ctx context.Context, now time.Time, n int) (bool, error) {
	if booked, err := g.bookBlocked(ctx, n); booked || err != nil {
		return booked, err
	}
	var items []*item
	for bytes := 0; len(items) < n; {
		p := g.keyQueues.nextRetry(now)
		if p == nil {
			p = g.keyQueues.next(now)
		}
		if p != nil {
			if bytes += len(p.task.Message.Message); len(items) > 0 && bytes > feedBytes {
				g.keyQueues.back(p, now) // the next call is at once
				break
			}
			items = append(items, p)
			continue
		}
		if some, err := g.read(ctx); err != nil || !some {
			if err != nil && len(items) == 0 {
				return false, err
			}
			break
		}
	}
	tried := len(items) > 0
	// Between the booking and the enqueueing the items have places, and no task that
	// would ever come for them: a feeder that is stopped there finishes first.
	ctx, cancel := outlive(ctx, feedRelease)
	defer cancel()
	items, err := g.book(ctx, items)
	defer func() { g.keyQueues.settled(g.f.now()) }()
	if err != nil && len(items) == 0 {
		return false, err
	}
	refused := g.refused[:min(len(g.refused), batchscripts.ElementsMax-len(items))]
	g.refused = g.refused[len(refused):]
	c := g.call(items, refused)
	if len(c.items) == 0 && !c.args.End {
		return tried && g.soon(now), nil
	}
	return true, g.send(ctx, c)
}

// mayRead says that more can be held.
func (g *feeding) mayRead() bool {
	return g.input.readable(g.f.now()) && g.keyQueues.held < g.spec.Window && !g.farRead()
}

// read puts the next element into its key queue, and answers false when there is none now.
func (g *feeding) read(ctx context.Context) (bool, error) {
	if g.input.item == nil && (!g.mayRead() || !g.input.read(g.f.now)) {
		return false, nil
	}
	if g.input.item == nil {
		return true, nil // an error of the source, or an element that was settled before
	}
	if err := g.prepare(ctx, g.input.item); err != nil {
		return false, err
	}
	g.input.item = nil
	return true, nil
}

// sourceFailed logs an error of the source, ever less often when there are many in a row.
func (g *feeding) sourceFailed(err error, before int) {
	if before&(before-1) == 0 {
		g.log.Warn("the source of a batch failed", zap.String("error", g.f.c.SafeText(err)), zap.Int("before", before))
	}
}

// prepare makes a task of an element and puts it into its key queue; or the element is
// refused. The error is that of a Redis that does not answer.
func (g *feeding) prepare(ctx context.Context, p *item) error {
	if p.fault == nil && !batchscripts.IsElementID(p.ID) {
		p.fault = fmt.Errorf("%w: the id of an element is none", ErrInvalid)
	}
	if p.fault == nil {
		p.fault = checkElementOptions(p.Options)
	}
	if p.fault == nil {
		opts := append(slices.Clone(p.Options), asynq.Queue(g.queue), asynq.TaskID(batchscripts.TaskID(g.id, p.ID)))
		task, err := g.f.c.Prepare(ctx, g.spec.Type, p.Payload, opts)
		if errors.Is(err, throttle.ErrUnavailable) {
			return err
		}
		p.task, p.fault = task, err
	}
	if p.fault != nil {
		g.refused = append(g.refused, p)
		return nil //nolint:nilerr // it is the element's own fault
	}
	g.assignKeyQueue(p)
	g.keyQueues.add(p)
	return nil
}

// checkElementOptions returns the options that an element can't have, each an
// [*queue.OptionError].
func checkElementOptions(opts []asynq.Option) error {
	var errs []error
	for _, opt := range opts {
		if opt == nil {
			continue // as of any type that is not asynq's: refused when the task is prepared
		}
		switch opt.Type() {
		case asynq.QueueOpt:
			errs = append(errs, &queue.OptionError{Option: "Queue", Reason: "the queue is the batch's"})
		case asynq.TaskIDOpt:
			errs = append(errs, &queue.OptionError{Option: "TaskID", Reason: "the id of a task is made of its batch and its element"})
		}
	}
	return errors.Join(errs...)
}

// assignKeyQueue finds the key queue of an item: the narrowest key of its policy. The rules before the
// widest that are on other keys are narrow ones.
func (g *feeding) assignKeyQueue(p *item) {
	if p.task.Policy == nil {
		return
	}
	wants := append([]throttle.KeyCost{{Key: p.task.Request.Key, Cost: p.task.Request.Cost}}, p.task.Request.More...)
	p.queueKey = wants[0].Key
	widest := wants[g.policy.widest()].Key
	p.narrow = wants[:slices.IndexFunc(wants, func(w throttle.KeyCost) bool { return w.Key == widest })]
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

// soon says that a key queue is open again already.
func (g *feeding) soon(now time.Time) bool {
	at, ok := g.keyQueues.nextOpening()
	return ok && !at.After(now)
}

// call is the call for some items.
func (g *feeding) call(items, refused []*item) *feedCall {
	c := &feedCall{items: slices.Concat(items, refused)}
	c.args = batchscripts.FeedArgs{
		Batch: g.id, Owner: g.owner, Call: newOwner(), PaceAt: g.pace.after(len(items)), Calls: g.calls, Tasks: make([]batchscripts.FeedTask, len(c.items)),
	}
	positions := make([]int64, len(c.items))
	for i, p := range c.items {
		positions[i] = p.position
		t := &c.args.Tasks[i]
		if t.Position, t.Element = p.position, p.settledAs(); p.fault == nil {
			p.task.Message.Since = time.Now().UnixNano()
			t.EnqueueTask = p.task.Message
		} else {
			t.Token, t.Reason = newOwner(), string(reasonOf(p.fault))
		}
	}
	c.args.Cursor, c.args.Mark = g.input.cursor.with(positions)
	c.args.End = g.keyQueues.held == 0 && len(g.refused) == 0 && g.input.ended(positions)
	return c
}

// settledAs names the element among those that are settled. An id that is none can't.
func (p *item) settledAs() string {
	if batchscripts.IsElementID(p.ID) {
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
	r, err := batchscripts.Feed(ctx, g.f.c.Redis(), g.keys, c.args)
	if err != nil {
		return err
	}
	g.unsure = nil
	now := g.f.now()
	g.clock.offset = r.Now.Sub(now)
	switch r.Status {
	case batchscripts.NotOwner:
		g.lost(ctx, c)
		return errLost
	case batchscripts.NotRunning:
		g.returned(ctx, c, now)
		g.claimed = time.Time{} // to learn what it does
		return nil
	}
	g.unfinished, g.pace.at = r.Unfinished, c.args.PaceAt
	g.calls = max(g.calls, c.args.Calls+1)
	g.fed(ctx, c, r.Codes, now)
	g.ended = c.args.End && !slices.Contains(r.Codes, batchscripts.FeedNoRoom)
	if g.ended {
		g.log.Info("all elements of a batch are enqueued", zap.Int64("elements", g.input.cursor.next))
	}
	return nil
}

// fed notes what became of the items of a call.
func (g *feeding) fed(ctx context.Context, c *feedCall, codes []int64, now time.Time) {
	var settled []int64
	var leave []*item
	for i, p := range c.items {
		if codes[i] == batchscripts.FeedNoRoom {
			g.putBack(p, now)
			continue
		}
		settled = append(settled, p.position)
		switch codes[i] {
		case queuescripts.Enqueued:
			g.keyQueues.fed(p, p.bookedAt, p.bookedAt.Add(spentBy))
			g.backpressure.booked(p.bookedAt)
			continue
		case batchscripts.FeedSettled: // the place is that of the task
			g.keyQueues.fed(p, p.bookedAt, p.bookedAt.Add(spentBy))
			continue
		case batchscripts.FeedRefused:
			g.refuse(p, p.fault)
		default:
			g.refuse(p, backend.Refusal(codes[i]))
		}
		g.keyQueues.forget(p)
		leave = append(leave, p)
	}
	g.input.cursor.settle(settled)
	g.leave(ctx, leave)
}

// putBack puts an item of a call where it came from.
func (g *feeding) putBack(p *item, at time.Time) {
	if p.fault != nil {
		g.refused = append(g.refused, p)
		return
	}
	g.keyQueues.back(p, at)
}

// returned takes the items of a call back, and gives their places up: the batch does
// not run.
func (g *feeding) returned(ctx context.Context, c *feedCall, now time.Time) {
	for _, p := range c.items {
		g.putBack(p, now)
	}
	g.leave(ctx, c.items)
}

// lost gives the places of a call up when the batch is gone. When it is another's, that
// one may have booked the same job, and stand in the same place.
func (g *feeding) lost(ctx context.Context, c *feedCall) {
	if _, errs := batchscripts.Read(ctx, g.f.c.Redis(), g.keys, []string{g.id}); errors.Is(errs[0], batchscripts.ErrNotFound) {
		g.leave(ctx, c.items)
	}
}

// leave gives up the places that were taken for items.
func (g *feeding) leave(ctx context.Context, items []*item) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveFor)
	defer cancel()
	var promoted []throttle.Promotion
	for _, p := range items {
		if ctx.Err() != nil {
			break // the others are parked when their instants have come
		}
		if p.task == nil || !p.task.Own || p.task.Policy == nil {
			continue
		}
		next, err := p.task.Policy.Cancel(ctx, p.task.Request)
		promoted = append(promoted, next...)
		if err != nil && !luascripts.Sharded(g.f.c.Redis()) && !throttle.ForWorkers.Answered(err) {
			break // the one server does not answer; of a Cluster that of another key may
		}
		p.task.Own = err != nil
	}
	g.f.c.Promote(ctx, promoted)
}

// reasonOf is the reason for which an element is counted as refused.
func reasonOf(err error) event.Reason {
	switch {
	case errors.Is(err, throttle.ErrTooLate):
		return event.TooLate
	case errors.Is(err, throttle.ErrExceedsLimit):
		return event.ExceedsLimit
	}
	return event.Invalid
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

const (
	// tooLateAgain is the shortest wait before one is booked again whose line was too long.
	tooLateAgain = 100 * time.Millisecond
	// unreadableAgain is the wait while a limit in force can't be read.
	unreadableAgain = time.Second
)

// book takes places for items, and answers those that have one and can be enqueued. The
// others are back in their key queues, or refused. The error is that of a Redis that does not
// answer.
func (g *feeding) book(ctx context.Context, items []*item) (placed []*item, away error) {
	var requests []throttle.BookRequest
	for _, p := range items {
		if p.task.Policy != nil {
			requests = append(requests, throttle.BookRequest{Policy: p.task.Policy, Request: g.request(p), LastRuleOnly: true})
		}
	}
	bookings := g.bookMany(ctx, requests)
	now := g.f.now()
	blocked := make(map[string]bool)
	var leave []*item
	var promoted []throttle.Promotion
	for _, p := range items {
		if p.task.Policy == nil {
			placed = append(placed, p)
			continue
		}
		b := bookings[0]
		bookings = bookings[1:]
		promoted = append(promoted, b.Promoted...)
		took, err := g.answered(p, b, now, blocked[p.queueKey])
		switch {
		case took && blocked[p.queueKey]: // one before it has to wait
			leave = append(leave, p)
		case took:
			placed = append(placed, p)
			continue
		}
		blocked[p.queueKey] = true
		if err != nil {
			away = err
		}
	}
	g.leave(ctx, leave)
	g.f.c.Promote(ctx, promoted)
	return placed, away
}

// request is what an item asks: of narrow rules also what is reserved for others.
func (g *feeding) request(p *item) throttle.Request {
	r := p.task.Request
	r.More = slices.Clone(r.More)
	for i, n := range p.reservedBefore {
		if i == 0 {
			r.Cost += n
		} else {
			r.More[i-1].Cost += n
		}
	}
	r.MaxWait = g.f.cfg.Ahead
	if own := p.task.Longest(); own != 0 {
		r.MaxWait = min(r.MaxWait, own)
	}
	return r
}

// answered takes the answer about one item: whether it has a place, and otherwise puts
// it back or refuses it. behind says that one of its key queue that comes before it waits.
func (g *feeding) answered(p *item, b throttle.Booking, now time.Time, behind bool) (took bool, away error) {
	var late *throttle.TooLateError
	switch {
	case b.Err == nil && b.Refused:
		// The wide line is so long that who joins it now comes at its end.
		g.block(p, b.Rule, later(now.Add(unsettledPoll), g.clock.here(b.At).Add(-g.rest.ahead)), now, behind)
		return false, nil
	case b.Err == nil:
		p.task.Own = b.Promised.IsZero()
		g.place(p, b.Decision, now)
		if behind {
			g.keyQueues.back(p, now)
		}
		return true, nil
	case errors.As(b.Err, &late):
		if own := p.task.Longest(); own < 0 || own > 0 && late.Wait > own {
			break
		}
		g.block(p, late.Rule, now.Add(max(late.Wait-g.f.cfg.Ahead, tooLateAgain)), now, behind)
		return false, nil
	case errors.Is(b.Err, throttle.ErrExceedsLimit) && slices.ContainsFunc(p.reservedBefore, func(n int) bool { return n > 0 }):
		g.keyQueues.back(p, now.Add(unsettledPoll)) // alone it may fit
		return false, nil
	case errors.Is(b.Err, throttle.ErrStoredLimit), errors.Is(b.Err, throttle.ErrSchema), errors.Is(b.Err, throttle.ErrCorrupt):
		g.keyQueues.back(p, now.Add(unreadableAgain))
		return false, nil
	case errors.Is(b.Err, throttle.ErrUnavailable):
		g.keyQueues.back(p, now)
		return false, b.Err
	}
	g.keyQueues.forget(p)
	p.fault = b.Err
	g.refused = append(g.refused, p)
	return false, nil
}

// block puts an item back until the instant that it was told, or as one of its key queue that
// waits was told: then that is the first to be asked.
func (g *feeding) block(p *item, rule string, at, now time.Time, behind bool) {
	if behind {
		g.keyQueues.back(p, now)
		return
	}
	g.keyQueues.blockUntil(p, rule, at, now)
}

// place notes where an item stands, and when it is to be woken.
func (g *feeding) place(p *item, d throttle.Decision, now time.Time) {
	d.Request = p.task.Request
	p.task.Booked(d)
	g.rest.ahead = max(0, d.At.Sub(d.Now))
	p.bookedAt = now.Add(g.rest.ahead)
}

// formatPosition writes a position in decimal.
func formatPosition(n int64) string { return strconv.FormatInt(n, 10) }

const (
	// heldBackMore is how many elements beyond four windows may lie between the first
	// that is not settled and the last that was read: what is settled of them is named in
	// Redis.
	heldBackMore = 1000
	// bookBlockedMost is how many elements are booked in their narrow lines in one call.
	bookBlockedMost = 16
)

// farRead says that too much was read behind the first element that is not settled. Then no
// more is read.
func (g *feeding) farRead() bool { return len(g.input.cursor.slots) >= 4*g.spec.Window+heldBackMore }

// bookBlocked enqueues the oldest elements that are held back when they keep the source from
// being read on, although they can't go yet: in the lines of their narrow keys, as
// [queue.Client.Book] does. It costs each one admission more, and a place in the window until
// it has run; so it is done only while half of the window is free.
func (g *feeding) bookBlocked(ctx context.Context, n int) (bool, error) {
	if g.input.over || !g.farRead() || g.unfinished >= (g.batch.Ceiling()+1)/2 {
		return false, nil
	}
	items := g.keyQueues.oldestBlocked(min(n, bookBlockedMost), g.input.cursor.next+int64(len(g.input.cursor.slots)/2))
	if len(items) == 0 {
		return false, nil
	}
	defer func() { g.keyQueues.settled(g.f.now()) }()
	placed, err := g.bookNarrow(ctx, items)
	if len(placed) == 0 {
		return false, err
	}
	return true, g.send(ctx, g.call(placed, nil))
}

// bookNarrow books items in their narrow lines. The others are back in their key queues, or
// refused.
func (g *feeding) bookNarrow(ctx context.Context, items []*item) (placed []*item, away error) {
	requests := make([]throttle.BookRequest, len(items))
	for i, p := range items {
		r := p.task.Request
		r.MaxWait = p.task.Longest()
		requests[i] = throttle.BookRequest{Policy: p.task.Policy, Request: r}
	}
	ahead := g.rest.ahead // is of the wide line
	defer func() { g.rest.ahead = ahead }()
	bookings := g.bookMany(ctx, requests)
	now := g.f.now()
	var promoted []throttle.Promotion
	for i, b := range bookings {
		p := items[i]
		promoted = append(promoted, b.Promoted...)
		if b.Err == nil && b.Gated { // at a gate it has no place
			g.block(p, b.Rule, later(now.Add(unsettledPoll), g.clock.here(b.At)), now, false)
			continue
		}
		took, err := g.answered(p, b, now, false)
		if took {
			p.narrowBooked = true
			placed = append(placed, p)
		}
		if err != nil {
			away = err
		}
	}
	g.f.c.Promote(ctx, promoted)
	return placed, away
}
