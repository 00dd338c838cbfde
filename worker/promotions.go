package worker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/bounded"
	"github.com/headwayq/headway/internal/giveback"
	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/throttle"
)

const (
	// withdrawFor is how long a refund is tried at least, so that a copy of its call that comes late is not charged.
	// It is tried for as long as the grant that it takes back counts, if that is longer.
	withdrawFor = 2 * time.Minute
	// promotionsMax bounds the promotions that wait to be passed on.
	promotionsMax = 1024
	// goneAfter is how long a task must have been missing before its place is given up.
	goneAfter = 500 * time.Millisecond
	// leaveTogether is how many places are given up at the same time.
	leaveTogether = 16
	// promotionPause is how long after a call that failed its promotions are passed on again.
	promotionPause = time.Second
	// leavePatience is how long places that are given up are waited for on a Cluster.
	leavePatience = time.Second
	// promotionsTogether bounds how many promotions are passed on in one call.
	promotionsTogether = 256
)

// lateGiveBacks give back in the background what Redis still counts, because it did not take it back at once:
//   - a grant that is not used, or one that may have been made, because its call had no answer;
//   - the leases of a grant whose handler has returned;
//   - the places of a task that has ended.
type lateGiveBacks struct {
	*giveback.Queue
	promotions *promotions
}

func newLateGiveBacks(c *core, p *promotions) lateGiveBacks {
	warn := func(line string, err error) { c.log.Warn(line, zap.Error(err)) }
	return lateGiveBacks{throttle.ForWorkers.NewGiveBacks(afterTimeout, warn), p}
}

// with returns a context in which throttle leaves here what it can't give back by itself.
func (l lateGiveBacks) with(ctx context.Context) context.Context {
	return throttle.ForWorkers.WithGiveBacks(ctx, l.Queue, l.promotions.add)
}

// add repeats a call that gives back what r was granted, for as long as that counts.
func (l lateGiveBacks) add(p *throttle.Policy, r throttle.Request, counts time.Duration, do func(context.Context) ([]throttle.Promotion, error)) {
	l.Add(throttle.ForWorkers.Servers(p, r), counts, func(ctx context.Context) error {
		promoted, err := do(ctx)
		l.promotions.add(promoted...)
		return err
	})
}

// refund takes a call back in the background. The booking of the job stays: only
// the token is withdrawn. It never blocks.
func (l lateGiveBacks) refund(p *throttle.Policy, r throttle.Request) {
	r.Job = ""
	leases, permits := throttle.ForWorkers.CountsFor(p, r)
	l.add(p, r, max(withdrawFor, leases, permits), func(ctx context.Context) ([]throttle.Promotion, error) { return p.Refund(ctx, r) })
}

// cancel gives the places of a job up in the background. It never blocks.
func (l lateGiveBacks) cancel(p *throttle.Policy, r throttle.Request) {
	leases, permits := throttle.ForWorkers.CountsFor(p, r)
	l.add(p, r, max(withdrawFor, leases, permits), func(ctx context.Context) ([]throttle.Promotion, error) { return p.Cancel(ctx, r) })
}

// release ends the leases of a grant in the background. They are not renewed any more, so nothing is left to be done
// after the length of the longest. It never blocks.
func (l lateGiveBacks) release(p *throttle.Policy, d throttle.Decision) {
	leases, _ := throttle.ForWorkers.CountsFor(p, d.Request)
	l.add(p, d.Request, leases, func(ctx context.Context) ([]throttle.Promotion, error) { return p.Release(ctx, d) })
}

// promotions moves tasks forward that may come earlier than they were promised, in any
// queue.
type promotions struct {
	*core
	waiting chan throttle.Promotion

	mu      sync.Mutex
	missing map[string]time.Time // jobs whose tasks were not there, since when
}

func newPromotions(c *core) *promotions {
	return &promotions{core: c, waiting: make(chan throttle.Promotion, promotionsMax), missing: make(map[string]time.Time)}
}

// add lets jobs come earlier, in the background. It never blocks: a promotion that finds
// no room is dropped, and its job comes later than it could.
func (ps *promotions) add(promoted ...throttle.Promotion) {
	for _, p := range promoted {
		select {
		case ps.waiting <- p:
		default:
		}
	}
}

// run passes promotions on, those of each queue by themselves: on a Cluster the master of one may be silent. All that have come in for
// a queue meanwhile are handled in one call. While a slot is free every call names the jobs that may have it, and one by one the work would
// never catch up.
func (ps *promotions) run(ctx context.Context, wakers map[string]*waker) {
	type result struct {
		queue string
		left  promotion.Tasks // to be passed on once more
	}
	busy := make(map[string]promotion.Tasks) // the queues of which some are passed on, and what has come for each meanwhile
	passed := make(chan result)
	start := func(queue string, tasks promotion.Tasks) {
		busy[queue] = make(promotion.Tasks)
		go func() { passed <- result{queue, ps.passOn(ctx, queue, tasks, wakers[queue])} }()
	}
	for {
		select {
		case <-ctx.Done():
			for len(busy) > 0 {
				delete(busy, (<-passed).queue)
			}
			return
		case r := <-passed:
			next := busy[r.queue]
			next.AddAll(r.left)
			if len(next) > 0 {
				start(r.queue, next)
			} else {
				delete(busy, r.queue)
			}
		case p := <-ps.waiting:
			for queue, tasks := range ps.gather(p) {
				next, underWay := busy[queue]
				switch {
				case !underWay:
					start(queue, tasks)
				case len(next) < promotionsMax: // else they are dropped, as those that find no room to wait
					next.AddAll(tasks)
				}
			}
		}
	}
}

// gather returns a promotion and those that wait behind it, by queue.
func (ps *promotions) gather(first throttle.Promotion) map[string]promotion.Tasks {
	promoted := []throttle.Promotion{first}
	for len(promoted) < promotionsTogether {
		select {
		case p := <-ps.waiting:
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
// they were promised. w is nil for a queue that is not served here. Those that Redis did not take it returns after a pause: they are to be
// passed on again, as their tasks would come at their old instants, which can be an hour away.
func (ps *promotions) passOn(ctx context.Context, queue string, tasks promotion.Tasks, w *waker) (left promotion.Tasks) {
	began := time.Now()
	var gone []throttle.BookingRef
	found := func(p throttle.Promotion, code int64) {
		if code == queuescripts.Ended || ps.stayedAway(p) {
			gone = append(gone, p.Booking)
		}
	}
	if w != nil {
		w.wakeOffered(ctx, tasks, found)
	}
	if len(tasks) > 0 {
		moved, err := tasks.Retime(ctx, ps.rdb, ps.keys(queue), found)
		for _, id := range moved {
			ps.promoted(ctx, queue, id, tasks[id])
		}
		switch {
		case err != nil:
			ps.logAndPause(ctx, "tasks that may come earlier can't be re-timed", err)
			if rediserr.MayPass(err) {
				left = tasks
				maps.DeleteFunc(left, func(id string, _ throttle.Promotion) bool { return slices.Contains(moved, id) })
			}
		case w != nil:
			w.expect(tasks.First())
		}
	}
	ps.cancelBookings(ctx, gone)
	if len(left) == 0 {
		return nil
	}
	pause := time.NewTimer(promotionPause)
	defer pause.Stop()
	select {
	case <-ctx.Done():
	case <-pause.C:
	}
	for id, p := range left {
		p.Wait = max(0, p.Wait-time.Since(began))
		left[id] = p
	}
	return left
}

// stayedAway says that a task that does not exist did not exist [goneAfter] before either.
// Until then it may come: a task that is booked when it is enqueued has its place before it
// is written. The first time, the promotion is handled once more after that.
func (ps *promotions) stayedAway(p throttle.Promotion) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	since, known := ps.missing[p.Job]
	if known && time.Since(since) < 20*goneAfter {
		if time.Since(since) < goneAfter {
			return false
		}
		delete(ps.missing, p.Job)
		return true
	}
	if len(ps.missing) >= promotionsMax {
		clear(ps.missing)
	}
	ps.missing[p.Job] = time.Now()
	time.AfterFunc(goneAfter, func() { ps.add(p) })
	return false
}

// cancelBookings gives places up, and lets those come that are next. It does not wait for long for a master of a Cluster that is silent: the
// call to it goes on.
func (ps *promotions) cancelBookings(ctx context.Context, places []throttle.BookingRef) {
	for some := range slices.Chunk(places, leaveTogether) {
		var wg sync.WaitGroup
		for _, p := range some {
			wg.Go(func() {
				promoted, err := throttle.ForWorkers.CancelBooking(ctx, p)
				if err != nil {
					ps.logAndPause(ctx, "the place of a task that is gone can't be given up", err)
				}
				ps.add(promoted...)
			})
		}
		if !ps.onCluster() {
			wg.Wait()
			continue
		}
		waiting, end := context.WithTimeout(ctx, leavePatience)
		bounded.Call(waiting, func() struct{} {
			wg.Wait()
			return struct{}{}
		})
		end()
	}
}

// promoted tells the observer of a task that may come earlier.
func (c *core) promoted(ctx context.Context, queue, id string, p throttle.Promotion) {
	if tell := c.cfg.Observer.Promoted; tell != nil {
		tell(ctx, event.Promoted{Task: event.Task{Queue: queue, ID: id}, At: p.At, Offered: p.Offered})
	}
}
