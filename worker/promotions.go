package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/throttle"
)

const (
	// withdrawalsMax bounds the refunds and releases that wait for Redis to come back. When one finds no
	// room, a permit stays charged that was not used, or a slot stays taken until its lease ends. No limit
	// is exceeded by that.
	withdrawalsMax = 4096
	// withdrawFor is how long a refund is tried at least. It is tried for as long as the grant
	// that it takes back counts, if that is longer.
	withdrawFor   = 2 * time.Minute
	withdrawPause = 500 * time.Millisecond
	// promotionsMax bounds the promotions that wait to be passed on.
	promotionsMax = 1024
	// goneAfter is how long a task must have been missing before its place is given up.
	goneAfter = 500 * time.Millisecond
	// leaveTogether is how many places are given up at the same time.
	leaveTogether = 16
	// promotionsTogether bounds how many promotions are passed on in one call.
	promotionsTogether = 256
)

// withdrawal gives something back that Redis still counts, because it did not answer when that was to be done:
//   - a grant that is not used, or one that may have been made, because its call had no answer;
//   - the leases of a grant whose handler has returned.
type withdrawal struct {
	call  func(context.Context) ([]throttle.Promotion, error) // to make it twice does no harm
	until time.Time
}

// withdrawals repeats such calls until Redis answers them.
type withdrawals struct {
	*core
	promotions *promotions
	waiting    chan withdrawal
}

func newWithdrawals(c *core, p *promotions) *withdrawals {
	return &withdrawals{core: c, promotions: p, waiting: make(chan withdrawal, withdrawalsMax)}
}

// later takes a call back in the background. The booking of the job stays: only
// the token is withdrawn. It never blocks.
func (f *withdrawals) later(p *throttle.Policy, r throttle.Request) {
	r.Job = ""
	counts := time.Duration(0)
	for _, l := range p.Rules() { // without an answer it is not known by which limits it was charged
		counts = max(counts, throttle.ForWorkers.Counts(l.Limit()), throttle.ForWorkers.Counts(throttle.ForWorkers.LimitLastKnown(l)))
	}
	refund := func(ctx context.Context) ([]throttle.Promotion, error) { return p.Refund(ctx, r) }
	if !f.add(refund, max(withdrawFor, counts)) {
		f.logFew("withdrawals", func() { f.log.Warn("too many grants wait to be given back: some permits stay charged") })
	}
}

// releaseLater ends the leases of a grant in the background. They are not renewed any more, so nothing is left to be done
// after the length of the longest. It never blocks.
func (f *withdrawals) releaseLater(p *throttle.Policy, d throttle.Decision) {
	longest := throttle.ForWorkers.LeaseFor(p, d)
	for _, l := range p.Rules() { // LeaseFor is the shortest of several leases
		if l.Limit().IsConcurrent() {
			longest = max(longest, throttle.ForWorkers.LimitLastKnown(l).Window())
		}
	}
	release := func(ctx context.Context) ([]throttle.Promotion, error) { return p.Release(ctx, d) }
	if !f.add(release, longest) {
		f.logFew("releases", func() {
			f.log.Warn("too many leases wait to be released: some slots stay taken until their leases end")
		})
	}
}

// add lets a call be repeated for so long. It says whether there was room for it.
func (f *withdrawals) add(call func(context.Context) ([]throttle.Promotion, error), d time.Duration) bool {
	select {
	case f.waiting <- withdrawal{call, time.Now().Add(d)}:
		return true
	default:
		return false
	}
}

// run tries each withdrawal until Redis answers it. They are tried in turn, so that one that
// is refused holds up no other.
func (f *withdrawals) run(ctx context.Context) {
	var left []withdrawal
	t := time.NewTicker(withdrawPause)
	defer t.Stop()
	for {
		more := f.waiting
		if len(left) >= withdrawalsMax {
			more = nil
		}
		select {
		case <-ctx.Done():
			f.tryLast(left)
			return
		case r := <-more:
			left = append(left, r)
		case <-t.C:
			left = f.try(ctx, left)
		}
	}
}

// try makes the withdrawals that it can, and returns those that are left. It ends with the
// first that Redis does not answer: Redis would hardly answer the next one. That one comes last
// the next time: on Redis Cluster the others may be of nodes that answer.
func (f *withdrawals) try(ctx context.Context, all []withdrawal) []withdrawal {
	var left []withdrawal
	for i, r := range all {
		promoted, err := r.call(ctx)
		f.promotions.add(promoted...)
		if err == nil || time.Now().After(r.until) {
			continue
		}
		left = append(left, r)
		if errors.Is(err, throttle.ErrUnavailable) && !throttle.ForWorkers.Answered(err) {
			return append(slices.Clone(all[i+1:]), left...)
		}
	}
	return left
}

// tryLast tries once more, for a moment, what is left at the end. Nobody here passes promotions on any more. The sweeper of
// another pool finds the next task of a slot that is free, and other tasks come when they were promised.
func (f *withdrawals) tryLast(left []withdrawal) {
	ctx, cancel := context.WithTimeout(context.Background(), afterTimeout)
	defer cancel()
	for {
		select {
		case r := <-f.waiting:
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
		_, _ = r.call(ctx)
	}
}

// promotions moves tasks forward that may come earlier than they were promised, in any
// queue.
type promotions struct {
	*core
	waiting chan throttle.Promotion
	missing map[string]time.Time // jobs whose tasks were not there, since when; only run has it
}

func newPromotions(c *core) *promotions {
	return &promotions{core: c, waiting: make(chan throttle.Promotion, promotionsMax), missing: make(map[string]time.Time)}
}

// add lets jobs come earlier, in the background. It never blocks: a promotion that finds
// no room is dropped, and its job comes later than it could.
func (q *promotions) add(promoted ...throttle.Promotion) {
	for _, p := range promoted {
		select {
		case q.waiting <- p:
		default:
		}
	}
}

// run passes promotions on. All that have come in meanwhile are handled in one call. While
// a slot is free every call names the jobs that may have it, and one by one the work would
// never catch up.
func (q *promotions) run(ctx context.Context, wakers map[string]*waker) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-q.waiting:
			for queue, tasks := range q.gather(p) {
				q.passOn(ctx, queue, tasks, wakers[queue])
			}
		}
	}
}

// gather returns a promotion and those that wait behind it, by queue.
func (q *promotions) gather(first throttle.Promotion) map[string]promotion.Tasks {
	promoted := []throttle.Promotion{first}
	for len(promoted) < promotionsTogether {
		select {
		case p := <-q.waiting:
			promoted = append(promoted, p)
			continue
		default:
		}
		break
	}
	return promotion.ByQueue(promoted...)
}

// passOn lets the promoted tasks of a queue come earlier. Of those that are offered a
// lease it wakes as many as there is room for. Without it all come at the instants that
// they were promised. w is nil for a queue that is not served here.
func (q *promotions) passOn(ctx context.Context, queue string, tasks promotion.Tasks, w *waker) {
	var gone []throttle.BookingRef
	found := func(p throttle.Promotion, code int64) {
		if code == luascripts.Ended || q.stayedAway(p) {
			gone = append(gone, p.Booking)
		}
	}
	if w != nil {
		w.wakeOffered(ctx, tasks, found)
	}
	if len(tasks) > 0 {
		moved, err := tasks.Retime(ctx, q.rdb, q.keys(queue), found)
		for _, id := range moved {
			q.promoted(ctx, queue, id, tasks[id])
		}
		if err == nil && w != nil {
			w.expect(tasks.First())
		}
	}
	q.cancelBookings(ctx, gone)
}

// stayedAway says that a task that does not exist did not exist [goneAfter] before either.
// Until then it may come: a task that is booked when it is enqueued has its place before it
// is written. The first time, the promotion is handled once more after that.
func (q *promotions) stayedAway(p throttle.Promotion) bool {
	since, known := q.missing[p.Job]
	if known && time.Since(since) < 20*goneAfter {
		if time.Since(since) < goneAfter {
			return false
		}
		delete(q.missing, p.Job)
		return true
	}
	if len(q.missing) >= promotionsMax {
		clear(q.missing)
	}
	q.missing[p.Job] = time.Now()
	time.AfterFunc(goneAfter, func() { q.add(p) })
	return false
}

// cancelBookings gives places up, and lets those come that are next.
func (q *promotions) cancelBookings(ctx context.Context, places []throttle.BookingRef) {
	for some := range slices.Chunk(places, leaveTogether) {
		var wg sync.WaitGroup
		for _, p := range some {
			wg.Go(func() {
				promoted, err := throttle.ForWorkers.CancelBooking(ctx, p)
				if err != nil {
					q.logAndPause(ctx, "the place of a task that is gone can't be given up", err)
				}
				q.add(promoted...)
			})
		}
		wg.Wait()
	}
}

// promoted tells the observer of a task that may come earlier.
func (c *core) promoted(ctx context.Context, queue, id string, p throttle.Promotion) {
	if tell := c.cfg.Observer.Promoted; tell != nil {
		tell(ctx, event.Promoted{Task: event.Task{Queue: queue, ID: id}, At: p.At, Offered: p.Offered})
	}
}
