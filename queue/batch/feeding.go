package batch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/throttle"
)

const (
	// While the window is used up it is looked for room after feedPollMin to
	// feedPollMax, as fast as elements end.
	feedPollMin = 20 * time.Millisecond
	feedPollMax = 250 * time.Millisecond
	// maintainEvery is how often a batch is looked after beside feeding it, and sweepEvery
	// how often it is swept for what ended unseen, before the source has ended.
	maintainEvery = time.Second
	sweepEvery    = 5 * time.Second
	// resumeAfter is how long a pool may still put tasks away when a batch goes on, and
	// resumeFor how long what was deferred for a pause stays away by itself.
	resumeAfter = 300 * time.Millisecond
	resumeFor   = 65 * time.Minute
	// reservationsEvery is how often reservations that are over are dropped.
	reservationsEvery = time.Second
)

// errLost: the batch is another's now, or is gone, or Redis does not know what was fed last.
var errLost = errors.New("batch: the batch is another's")

// feeding is one batch that this process feeds. Its loop has two goroutines beside it:
// one reads the source, one looks after what is enqueued.
type feeding struct {
	f     *Feeder
	log   *zap.Logger
	queue string
	id    string
	keys  queuescripts.QueueKeys
	owner uint64

	// As the last answers had it.
	batch      batchscripts.Batch
	spec       Spec
	policy     policy
	unfinished int
	calls      int64     // that fed the batch, as far as we know
	claimed    time.Time // by our clock
	resumed    time.Time // as it was when what had been deferred for a pause was brought back, by us or who had it before

	clock        redisClock
	pace         pacer
	input        input
	keyQueues    *keyQueues
	backpressure backpressure
	rest         rest
	ended        bool      // Redis knows that the source has ended
	refused      []*item   // to be counted
	unsure       *feedCall // sent, and not answered
	expired      time.Time // when reservations were last dropped
	looked       int64     // the next look for reservations to drop begins at this position of the unfinished elements
	poll         time.Duration
	polled       bool // there was no room at the last look
	failures     int  // in a row
}

func newFeeding(f *Feeder, queue, id string) *feeding {
	g := &feeding{
		f: f, queue: queue, id: id, keys: f.c.Keys(queue), owner: newOwner(), poll: feedPollMin,
		log: f.log.With(zap.String("queue", queue), zap.String("batch", id)),
	}
	g.clock.local, g.pace.clock = f.now, &g.clock
	g.keyQueues = newKeyQueues(g.policy.width, g.policy.regain)
	return g
}

// begin takes the batch, and learns what is settled; errLost when another has it.
func (g *feeding) begin(ctx context.Context) error {
	if err := g.claim(ctx); err != nil {
		return err
	}
	if g.policy.leased() {
		g.keyQueues.least, g.keyQueues.longest = againLease, againLeaseMax
	}
	g.input = newInput(g.f.cfg.Sources[g.spec.Source], g.batch, g.sourceFailed)
	g.ended = g.batch.End
	g.resumed = g.batch.Rebooked
	g.backpressure.before = g.unfinished
	return batchscripts.EachElement(g.input.cursor.next, 500, func(from int64, most int) ([]batchscripts.Element, error) {
		return batchscripts.AheadElements(ctx, g.f.c.Redis(), g.keys, g.id, from, most)
	}, func(settled []batchscripts.Element) error {
		for _, e := range settled {
			g.input.settled[e.ID] = true
		}
		return g.renew(ctx)
	})
}

// claim takes or renews the lease.
func (g *feeding) claim(ctx context.Context) error {
	began := g.f.now()
	r, err := batchscripts.Claim(ctx, g.f.c.Redis(), g.keys, batchscripts.ClaimArgs{ID: g.id, Owner: g.owner, Lease: feedLease, Rebooked: g.resumed})
	switch {
	case err != nil:
		return err
	case r.Status != batchscripts.ClaimOurs:
		return errLost
	case !g.batch.Started.IsZero() && !r.Started.Equal(g.batch.Started):
		return errLost // it was cancelled, and started again: none of what we know is about that one
	case !g.knows(r.Calls):
		return errLost // what we know to be settled may not be: Redis has lost calls, as after a failover, or others fed
	}
	g.batch, g.unfinished, g.calls, g.claimed = r.Batch, r.Unfinished, r.Calls, began
	g.spec = specOf(g.queue, r.Batch)
	g.policy.Policy, g.policy.limited = g.f.c.Policy(g.spec.Type)
	g.clock.offset = r.Now.Sub(g.f.now())
	g.pace.Pace = g.spec.Pace
	if g.unsure == nil {
		g.pace.resume(r.PaceAt, r.Now)
	}
	return nil
}

// knows says that so many calls have fed the batch as this process knows of: a call whose answer did not come
// may be among them. More are those of a feeder that took over while this one stood still; whether Redis
// had lost some before is not known then.
func (g *feeding) knows(calls int64) bool {
	first := g.batch.Started.IsZero()
	return first || calls == g.calls || g.unsure != nil && calls == g.calls+1
}

// renew renews the lease in the middle of what takes long.
func (g *feeding) renew(ctx context.Context) error {
	if g.f.now().Sub(g.claimed) < feedRenew {
		return nil
	}
	return g.claim(ctx)
}

// bookMany books, and keeps the lease meanwhile: one after another, as on a Redis Cluster where
// the keys of a policy are in several slots, bookings may take longer than the lease lasts.
func (g *feeding) bookMany(ctx context.Context, requests []throttle.BookRequest) []throttle.Booking {
	lease := batchscripts.ClaimArgs{ID: g.id, Owner: g.owner, Lease: feedLease, Renew: true, Rebooked: g.resumed}
	kept, stop := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() {
		for pause(kept, feedRenew) == nil {
			_, _ = batchscripts.Claim(kept, g.f.c.Redis(), g.keys, lease) // the call that feeds is told whose the batch is
		}
	})
	defer keeper.Wait()
	defer stop()
	return throttle.ForWorkers.BookMany(ctx, g.f.c.Redis(), requests)
}

// run feeds until ctx ends or the batch is lost, and gives it up. It answers when its
// source has returned, and nil when it has.
func (g *feeding) run(ctx context.Context) (left <-chan struct{}) {
	ctx, stop := context.WithCancel(ctx)
	var maintainer sync.WaitGroup
	maintainer.Go(func() { g.maintain(ctx) })
	g.log.Info("feeding a batch", zap.Int64("cursor", g.input.cursor.next))
	g.loop(ctx)
	stop()
	maintainer.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), feedRelease)
	defer cancel()
	_, _ = batchscripts.Claim(ctx, g.f.c.Redis(), g.keys, batchscripts.ClaimArgs{ID: g.id, Owner: g.owner}) // or its lease runs out
	if left = g.input.close(); left != nil {
		g.log.Warn("the source of a batch does not heed the end of its context: it is left alone")
	}
	return left
}

func (g *feeding) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		var more <-chan given
		if g.canAccept() {
			more = g.input.more()
		}
		select {
		case <-ctx.Done():
			return
		case x := <-more:
			g.input.reader.had = &x
		case <-timer.C:
		}
		wait, err := g.pass(ctx)
		if errors.Is(err, errLost) {
			if why, forgotten := g.why(ctx); forgotten {
				g.log.Warn(why)
			} else {
				g.log.Info(why)
			}
			return
		}
		g.f.reached(ctx, g.name(), err)
		if err != nil {
			g.failures++
			wait = min(feedPollMin<<min(g.failures, 10), time.Second)
		} else {
			g.failures = 0
		}
		timer.Reset(wait)
	}
}

// why is why a batch is not ours any more, for a log line, and whether Redis has lost some of it.
func (g *feeding) why(ctx context.Context) (text string, forgotten bool) {
	switch v, errs := batchscripts.Read(ctx, g.f.c.Redis(), g.keys, []string{g.id}); {
	case errors.Is(errs[0], batchscripts.ErrNotFound):
		return "the batch is gone", false
	case errs[0] != nil:
		return "the batch is another's, or gone", false
	case v[0].State == batchscripts.Ended:
		return "the batch has ended", false
	case v[0].Calls < g.calls:
		return "Redis does not know what was fed last, as after a failover: the source is read again from where Redis stands, and tasks may run twice", true
	}
	return "the batch is another's", false
}

// canAccept says that an element that comes now could go at once.
func (g *feeding) canAccept() bool {
	return g.failures == 0 && g.batch.State == batchscripts.Running && g.unsure == nil && g.input.item == nil && g.mayRead() &&
		g.room() > 0 && g.pace.allows(1) > 0 && !g.f.now().Before(g.rest.until)
}

// name is the batch's among all queues.
func (g *feeding) name() string { return g.queue + "/" + g.id }

func (g *feeding) room() int { return g.batch.Ceiling() - g.unfinished }

// pass does what can be done now, and answers after what time to come again.
func (g *feeding) pass(ctx context.Context) (time.Duration, error) {
	now := g.f.now()
	if g.polled || g.failures > 0 || now.Sub(g.claimed) >= feedRenew {
		if err := g.claim(ctx); err != nil {
			return 0, err
		}
	}
	renewal := max(0, g.claimed.Add(feedRenew).Sub(now))
	if g.unsure != nil {
		return 0, g.send(ctx, g.unsure)
	}
	running := g.batch.State == batchscripts.Running
	if running && !g.batch.Resumed.Equal(g.resumed) {
		return g.resume(ctx)
	}
	if !running || g.ended {
		g.polled = false
		return min(renewal, feedLook), nil
	}
	g.input.open(ctx, g.spec, now)
	if now.Sub(g.expired) >= reservationsEvery {
		g.keyQueues.expire(now)
		g.expired = now
		if err := g.dropEnded(ctx, now); err != nil {
			return 0, err
		}
	}
	if g.unfinished == 0 {
		g.keyQueues.dropAll(now)
	}
	g.adapt()
	n := min(g.room(), batchscripts.ElementsMax)
	g.polled = n <= 0
	if g.polled {
		return g.poll, nil
	}
	if n = min(n, g.roomForPools(now)); n <= 0 {
		g.polled = true
		return latePoll, nil
	}
	if rest := g.rest.until.Sub(now); rest > 0 {
		return min(renewal, rest), nil
	}
	fed, err := g.feed(ctx, now, g.pace.allows(n))
	if err == nil && fed {
		g.rest.after(now, g.f.now())
	}
	if err != nil || fed {
		return 0, err
	}
	if g.farRead() && !g.input.over {
		g.polled = true // to book elements in their narrow lines as soon as there is room
		return min(feedPollMax, g.idle(now)), nil
	}
	return min(renewal, g.idle(now)), nil
}

// resume brings back what was deferred for a pause, before more is fed.
func (g *feeding) resume(ctx context.Context) (time.Duration, error) {
	since := g.clock.now().Sub(g.batch.Resumed)
	if since >= 0 && since < resumeAfter { // otherwise long ago: also when the clock went back meanwhile
		return resumeAfter - since, nil
	}
	if since < resumeFor {
		if err := g.rebook(ctx); err != nil {
			return 0, err
		}
		g.backpressure = backpressure{before: g.unfinished} // what it knew of instants is of before the pause
	}
	g.resumed = g.batch.Resumed
	return 0, g.claim(ctx) // which notes it for who comes after us
}

// adapt looks for room more often when there was much of it, and less often when there
// was hardly any.
func (g *feeding) adapt() {
	if !g.polled {
		return
	}
	all := g.batch.Ceiling()
	switch room := g.room(); {
	case room >= min(batchscripts.ElementsMax, (all+1)/2):
		g.poll = max(g.poll/2, feedPollMin)
	case room < min(batchscripts.ElementsMax/4, (all+7)/8):
		g.poll = min(g.poll*2, feedPollMax)
	}
}

// idle is how long nothing can go.
func (g *feeding) idle(now time.Time) time.Duration {
	wait := feedRenew
	if at, ok := g.keyQueues.nextOpening(); ok {
		wait = min(wait, max(0, at.Sub(now)))
	}
	if g.pace.N > 0 {
		wait = max(min(wait, feedRenew), 0)
		if pace := g.clock.here(g.pace.at).Sub(now); pace > 0 {
			wait = pace // nothing goes before, whatever else opens
		}
	}
	if !g.input.over && g.input.reopen.After(now) {
		wait = min(wait, g.input.reopen.Sub(now))
	}
	return max(wait, time.Millisecond)
}

// maintain looks after what is enqueued: it counts what ended unseen, brings back what was
// deferred for a pause, and takes out what waits of a batch that was cancelled.
func (g *feeding) maintain(ctx context.Context) {
	var looks recalls
	var swept time.Time
	for pause(ctx, maintainEvery) == nil {
		views, errs := batchscripts.Read(ctx, g.f.c.Redis(), g.keys, []string{g.id})
		if errs[0] != nil {
			continue // the feeding itself says so, and ends when the batch is gone
		}
		v := views[0]
		var err error
		now := g.f.now()
		switch {
		case v.State == batchscripts.Cancelled:
			_, err = g.f.c.drain(ctx, g.queue, v.Type, g.id)
		case v.State == batchscripts.Running && looks.due(v.Resumed, v.Now):
			if err = g.f.c.recall(ctx, g.queue, g.id); err == nil {
				looks.looked(v.Now)
			}
		case v.End || now.Sub(swept) >= sweepEvery:
			swept = now
			err = g.f.c.sweep(ctx, g.queue, g.id)
		}
		if err != nil && ctx.Err() == nil {
			g.log.Debug("a batch could not be looked after", zap.Error(err))
		}
	}
}

// roomForPools is how many may be booked for pools that may be behind with what is due.
func (g *feeding) roomForPools(now time.Time) int {
	if !g.policy.limited {
		return batchscripts.ElementsMax
	}
	return g.backpressure.room(g.unfinished, g.batch.Ceiling(), now)
}

const (
	// overBefore is how much sooner than it was to be the end of an element is worth a look.
	overBefore = 2 * time.Second
	// overLook is how many unfinished elements are read for that, once in reservationsEvery.
	overLook = 1000
)

// dropEnded drops the reservations of elements that have ended although their instants have
// not come: what was blocked has been opened, and the ledgers know of them. Of a window that
// is longer than overLook each part is looked at in turn.
func (g *feeding) dropEnded(ctx context.Context, now time.Time) error {
	unknown := g.keyQueues.unknownAt(now.Add(overBefore))
	if len(unknown) == 0 {
		return nil
	}
	i, _ := slices.BinarySearch(unknown, g.looked)
	from := unknown[i%len(unknown)]
	unfinished, err := batchscripts.UnfinishedElements(ctx, g.f.c.Redis(), g.keys, g.id, from, overLook)
	if err != nil {
		return err
	}
	still, last := make(map[int64]bool, len(unfinished)), unknown[len(unknown)-1]
	for _, e := range unfinished {
		still[e.Position] = true
	}
	if len(unfinished) == overLook {
		last = unfinished[len(unfinished)-1].Position
	}
	g.looked = last + 1
	g.keyQueues.drop(now, func(e reserved) bool { return e.position >= from && e.position <= last && !still[e.position] })
	return nil
}

// rebook gives what is enqueued new places, in the order of the source: while the batch
// was paused some gave theirs up, and some behind them did not. It comes before anything
// else is fed.
func (g *feeding) rebook(ctx context.Context) error {
	c := g.f.c
	if !g.policy.limited {
		return c.recall(ctx, g.queue, g.id)
	}
	left := make(map[int64]bool) // positions of those that gave their places up
	for _, change := range []func([]batchscripts.Element) error{
		func(unfinished []batchscripts.Element) error {
			return c.unbook(ctx, g.queue, g.spec.Type, g.id, unfinished, left)
		},
		func(unfinished []batchscripts.Element) error { return g.bookAgain(ctx, unfinished, left) },
	} {
		err := c.eachUnfinished(ctx, g.queue, g.id, func(unfinished []batchscripts.Element) error {
			if err := g.renew(ctx); err != nil {
				return err
			}
			return change(unfinished)
		})
		if err != nil {
			return err
		}
	}
	return queuescripts.Notify(ctx, c.Redis(), g.keys, 0)
}

// bookAgain books what waits, and has it woken at its new instants. A task that gave its
// place up and has since been fetched is booked, too: its pool may not have asked yet, and
// would join the line behind all others. Was it quicker, the place is for nobody, and is
// parked when its instant has come.
func (g *feeding) bookAgain(ctx context.Context, unfinished []batchscripts.Element, left map[int64]bool) error {
	var requests []throttle.BookRequest
	var ids []string
	tasks := g.f.c.payloads(ctx, g.queue, g.spec.Type, g.id, unfinished, left)
	g.f.c.leaveOut(ctx, g.queue, g.id, unfinished, tasks)
	for i, task := range tasks {
		id := batchscripts.TaskID(g.id, unfinished[i].ID)
		if task == nil {
			continue // it runs, or has ended
		}
		request, err := g.policy.Request(task, luascripts.JobID(g.queue, id))
		if err != nil {
			continue // the pool says so
		}
		requests = append(requests, throttle.BookRequest{Policy: g.policy.Limits, Request: request})
		ids = append(ids, id)
	}
	var moves []queuescripts.Retiming
	for i, b := range g.bookMany(ctx, requests) {
		at, in := b.At, b.Wait()
		if b.Err != nil {
			in = time.Duration(i) * time.Microsecond
			at = g.clock.now().Add(in) // it hears it from a pool
		}
		moves = append(moves, queuescripts.Retiming{ID: ids[i], At: at, In: in, Reason: byBatch})
	}
	if len(moves) == 0 {
		return nil
	}
	_, err := queuescripts.Retime(ctx, g.f.c.Redis(), g.keys, moves)
	return err
}
